"""The einops-sized array interface: what the core needs of a framework's arrays."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

Array = Any


class Arrays(Protocol):
    """Tiny operations on one framework's arrays. NumPy arrays are also accepted by every adapter and stay on the host.

    Dtypes are named as NumPy and ml_dtypes name them: `"bool"`, `"int64"`, `"bfloat16"`, `"float8_e4m3fn"`, …
    """

    def is_array(self, value: Any) -> bool:
        """Whether `value` is an array of this framework (or a NumPy array), as opposed to a scalar, string, or other leaf."""

    def shape(self, array: Array) -> tuple[int, ...]:
        """The array's (global) shape."""

    def dtype_name(self, array: Array) -> str:
        """The element type's name."""

    def to_numpy(self, array: Array) -> np.ndarray:
        """The values on the host, same shape and dtype (ml_dtypes for bf16 and fp8); a copy or a view, never to be written to."""

    def from_numpy(self, values: np.ndarray, like: Array | None = None) -> Array:
        """An array of this framework; on `like`'s device where given, else on this process's device."""

    def concatenate(self, arrays: list[Array], dim: int) -> Array:
        """The arrays joined along `dim`; one dtype."""

    def narrow(self, array: Array, dim: int, start: int, stop: int) -> Array:
        """The part `start:stop` of one dim."""

    def pad(self, array: Array, dim: int, before: int, after: int, value: float) -> Array:
        """`before` and `after` elements of `value`, cast to the array's dtype, added along `dim`. The dtype stays."""

    def to_device(self, array: Array, device: Any, non_blocking: bool = False) -> Array:
        """The array on `device`; `device=None` means this process's device."""

    def detach_scalar(self, array: Array) -> float | int | bool:
        """The single element as a Python number (waits for the device)."""
