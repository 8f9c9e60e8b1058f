"""An `ObjectState` over plain NumPy arrays: for trees of arrays that a user saves, and for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from xaccel.checkpoint.chunks import full_bounds
from xaccel.checkpoint.object_state import ReadSlice
from xaccel.checkpoint.records import TensorRecord, WantedTensor
from xaccel.checkpoint.safetensors_file import dtype_tag
from xaccel.mesh.spec import Bounds


class ArrayState:
    """NumPy arrays by name, loaded in place.

    Args:
        arrays: name -> array; all of it, on every process.
        scalars: JSON values.
        owned: name -> slices that this process writes; all of a tensor where it is not named.
        aliases: name -> other names of the same tensor.
    """

    def __init__(
        self,
        arrays: Mapping[str, np.ndarray],
        scalars: Mapping[str, Any] | None = None,
        owned: Mapping[str, tuple[Bounds, ...]] | None = None,
        aliases: Mapping[str, tuple[str, ...]] | None = None,
    ):
        self.arrays = dict(arrays)
        self.values = dict(scalars or {})
        self._owned = dict(owned or {})
        self._aliases = dict(aliases or {})

    def describe(self) -> Sequence[TensorRecord]:
        """One record an array, in order."""
        return [
            TensorRecord(
                name=name,
                shape=array.shape,
                dtype=dtype_tag(array.dtype.name),
                owned=self._owned.get(name, (full_bounds(array.shape),)),
                aliases=self._aliases.get(name, ()),
            )
            for name, array in self.arrays.items()
        ]

    def read(self, name: str, bounds: Bounds) -> np.ndarray:
        """The slice, C-contiguous."""
        array = self.arrays[name]
        return np.ascontiguousarray(array[tuple(slice(*pair) for pair in bounds)]).reshape([stop - start for start, stop in bounds])

    def scalars(self) -> dict[str, Any]:
        """As given."""
        return dict(self.values)

    def wanted(self, stored: Mapping[str, TensorRecord]) -> Sequence[WantedTensor]:
        """Every array, whole."""
        return [
            WantedTensor(
                name=record.name, shape=record.shape, dtype=record.dtype, bounds=(full_bounds(record.shape),), aliases=record.aliases
            )
            for record in self.describe()
        ]

    def load(self, read: ReadSlice, scalars: Mapping[str, Any]) -> list[str]:
        """Fill the arrays in place; one that `read` does not have stays as it is."""
        for name, array in self.arrays.items():
            try:
                values = read(name, full_bounds(array.shape))
            except KeyError:
                continue
            array[...] = values.astype(array.dtype)
        self.values = dict(scalars)
        return []
