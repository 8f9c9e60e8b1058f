"""How the checkpoint reaches into live objects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from xaccel.checkpoint.object_state import ObjectState


class StateAccess(Protocol):
    """Makes an `ObjectState` of a live object."""

    def model(self, model: Any) -> ObjectState:
        """State of a prepared (or bare) model: parameters, persistent buffers, batch statistics."""

    def optimizer(self, optimizer: Any, models: Sequence[Any]) -> ObjectState:
        """State of a prepared optimizer, named `<slot>/<canonical parameter name>`; `models` own the parameters."""

    def registered(self, value: Any) -> ObjectState:
        """State of an object with `state_dict` and `load_state_dict` (`register_for_checkpointing`)."""

    def rng(self) -> ObjectState:
        """Random states of this process: Python's, NumPy's, the framework's."""
