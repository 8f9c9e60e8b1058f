"""Mixed precision as an adapter provides it. The base behaviour is full precision: every hook does nothing."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol


class Precision(Protocol):
    """The hooks stand in the order of a training step."""

    name: str
    """`"no"`, `"bf16"`, `"fp16"` or `"fp8"`."""

    def convert(self, model: Any) -> Any:
        """The model, ready to compute in this precision; outputs come back in float32."""

    def autocast(self, handler: Any = None) -> AbstractContextManager[None]:
        """The context for computations of the user's own."""

    def state_dict(self) -> dict[str, Any]:
        """Loss scale and counters as JSON values; empty where there is none."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of `state_dict`."""
