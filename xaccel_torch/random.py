"""torch's generators: seeding, and their states as plain arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from xaccel.errors import UnsupportedError


def set_seed(seed: int, deterministic: bool = False) -> None:
    """Seed torch on every device; with `deterministic` ask for deterministic algorithms."""
    torch.manual_seed(seed)
    if deterministic:
        torch.use_deterministic_algorithms(True)


def initial_seed() -> int:
    """The seed of torch's default generator, folded to 32 bits."""
    return torch.initial_seed() % 2**32


def generator_states() -> dict[str, np.ndarray]:
    """The state of torch's generator on each device, as uint8."""
    states = {"torch_cpu": torch.get_rng_state().numpy()}
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        states[f"torch_cuda_{index}"] = torch.cuda.get_rng_state(index).numpy()
    return states


def restore_generator_state(name: str, state: np.ndarray) -> bool:
    """Set the generator of that name; False where this machine has no such device."""
    if name == "torch_cpu":
        torch.set_rng_state(torch.from_numpy(state.copy()))
        return True
    index = int(name.removeprefix("torch_cuda_"))
    if not torch.cuda.is_available() or index >= torch.cuda.device_count():
        return False
    torch.cuda.set_rng_state(torch.from_numpy(state.copy()), index)
    return True


def synchronise(kinds: Sequence[str], collectives: Any) -> None:
    """Give process 0's generators of these kinds to all processes.

    Raises:
        UnsupportedError: "cuda" without a GPU, or "xla".
    """
    readers: dict[str, Callable[[], torch.Tensor]] = {"torch": torch.get_rng_state}
    writers: dict[str, Callable[[torch.Tensor], None]] = {"torch": torch.set_rng_state}
    if torch.cuda.is_available():
        readers["cuda"], writers["cuda"] = torch.cuda.get_rng_state, torch.cuda.set_rng_state
    absent = [kind for kind in kinds if kind not in readers]
    if absent:
        raise UnsupportedError(f"rng_types={list(kinds)}: this machine has generators of {', '.join(readers)}")
    states = collectives.broadcast_objects([readers[kind]().numpy() for kind in kinds], 0)
    for kind, state in zip(kinds, states, strict=True):
        writers[kind](torch.from_numpy(state.copy()))
