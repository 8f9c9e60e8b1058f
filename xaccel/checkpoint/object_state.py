"""What a live object answers when it is saved or loaded: names, slices and bytes, never the meaning of an element."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from xaccel.checkpoint.records import TensorRecord, WantedTensor
from xaccel.mesh.spec import Bounds

ReadSlice = Callable[[str, Bounds], np.ndarray]
"""(canonical name, bounds) -> that slice of the stored tensor, C-contiguous, in the *stored* dtype (ml_dtypes for bf16 and fp8).

`name` is a name of `wanted` (or one of its aliases). `KeyError` for a tensor that is not to be loaded (missing or mismatched under `strict=False`):
leave that one as it is."""


class ObjectState(Protocol):
    """One live object (a model, an optimizer, a registered object) seen as canonical tensors plus JSON scalars."""

    def describe(self) -> Sequence[TensorRecord]:
        """Every tensor, in an order equal on all processes, with the slices that this process writes."""

    def read(self, name: str, bounds: Bounds) -> np.ndarray:
        """One owned slice in canonical layout, C-contiguous, dtype as described; a view where possible."""

    def scalars(self) -> dict[str, Any]:
        """What is not an array, as JSON values: step counts, hyperparameters per group, buffers of Python type."""

    def wanted(self, stored: Mapping[str, TensorRecord]) -> Sequence[WantedTensor]:
        """What loading needs. `stored` describes the checkpoint (shape, dtype, aliases, adapter record; `owned` is empty)."""

    def load(self, read: ReadSlice, scalars: Mapping[str, Any]) -> list[str]:
        """Assign everything in place; called only once all checks have passed on all processes.

        Returns:
            Names of what could not cross from the framework that wrote it (an optax state without counterpart, say).
        """
