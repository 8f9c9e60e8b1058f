"""Every version difference of JAX, each with the version and the reason. Empty branches go when the lower bound rises."""

from __future__ import annotations

import jax
from packaging.version import Version

JAX_VERSION = Version(jax.__version__)


def backends_are_initialized() -> bool:
    """Whether some code has touched a device already, after which `jax.distributed` cannot join a run (JAX 0.10 has no public question)."""
    from jax._src import xla_bridge

    return bool(xla_bridge.backends_are_initialized())


def is_distributed() -> bool:
    """Whether `jax.distributed.initialize` was called."""
    return bool(jax.distributed.is_initialized())
