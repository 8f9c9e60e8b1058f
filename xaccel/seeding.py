"""`set_seed`: one call for Python, NumPy and the frameworks in use."""

from __future__ import annotations

import random
import sys

from xaccel.backend.backend import Backend
from xaccel.backend.registry import available, load_backend
from xaccel.environment import read_environment
from xaccel.errors import ConfigurationError
from xaccel.process.topology import current_topology

LARGEST_SEED = 2**32 - 1
"""NumPy's legacy generator takes 32 bits."""


def set_seed(seed: int, device_specific: bool = False, deterministic: bool = False) -> None:
    """Seed Python's, NumPy's and the framework's generators.

    Args:
        seed: from 0 to 2**32 - 1.
        device_specific: add the process index, so that processes draw different numbers.
        deterministic: also ask the framework for deterministic algorithms.

    Raises:
        ConfigurationError: the seed is out of range.
    """
    import numpy as np

    if device_specific:
        seed += _process_index()
    if not 0 <= seed <= LARGEST_SEED:
        raise ConfigurationError(f"set_seed({seed}): expected 0 to {LARGEST_SEED}")
    random.seed(seed)
    np.random.seed(seed)
    for backend in _backends_in_use():
        backend.set_seed(seed, deterministic)


def _process_index() -> int:
    topology = current_topology()
    return topology.process_index if topology is not None else read_environment().process_index or 0


def _backends_in_use() -> list[Backend]:
    """The backend of the running topology; before there is one, those whose framework is already imported."""
    topology = current_topology()
    if topology is not None:
        return [load_backend(topology.backend)]
    return [load_backend(name) for name in available() if name in sys.modules]
