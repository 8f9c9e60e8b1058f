"""bf16: float32 parameters and inputs are cast to bfloat16 inside the traced step, outputs come back in float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import jax
import jax.numpy as jnp

from xaccel.config.handlers import AutocastKwargs
from xaccel_jax.precision.full import FullPrecision


def _cast(tree: Any, source: Any, target: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.astype(target) if getattr(leaf, "dtype", None) == source else leaf, tree)


class MixedPrecision(FullPrecision):
    """`mixed_precision="bf16"`.

    Args:
        handler: `AutocastKwargs(enabled=False)` switches the casts off.
    """

    name = "bf16"

    def __init__(self, handler: AutocastKwargs | None = None):
        self._enabled = handler is None or handler.enabled

    def inputs(self, tree: Any) -> Any:
        return _cast(tree, jnp.float32, jnp.bfloat16) if self._enabled else tree

    def outputs(self, tree: Any) -> Any:
        return _cast(tree, jnp.bfloat16, jnp.float32) if self._enabled else tree

    def autocast(self, handler: Any = None) -> AbstractContextManager[None]:
        return self._switched(handler.enabled if handler is not None else True)

    @contextmanager
    def _switched(self, enabled: bool) -> Iterator[None]:
        before, self._enabled = self._enabled, enabled
        try:
            yield
        finally:
            self._enabled = before

    @property
    def is_enabled(self) -> bool:
        """Whether casts happen in what is traced now; part of a program's key."""
        return self._enabled
