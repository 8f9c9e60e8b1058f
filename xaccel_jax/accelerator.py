"""`Accelerator` on JAX."""

from __future__ import annotations

from typing import ClassVar

from xaccel import accelerator


class Accelerator(accelerator.Accelerator):
    """See `xaccel.Accelerator`."""

    backend_name: ClassVar[str | None] = "jax"
