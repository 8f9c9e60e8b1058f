"""Full precision: nothing is cast. The base of the others."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any


class FullPrecision:
    """`mixed_precision="no"`. See `xaccel.backend.precision.Precision`; casts happen inside the traced step."""

    name = "no"

    def convert(self, model: Any) -> Any:
        return model

    def autocast(self, handler: Any = None) -> AbstractContextManager[None]:
        return nullcontext()

    def inputs(self, tree: Any) -> Any:
        """Parameters or inputs in the type to compute in."""
        return tree

    def outputs(self, tree: Any) -> Any:
        """A model's outputs in the type to give back."""
        return tree

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """There is no state; one of a scaled run has nothing to set here."""
