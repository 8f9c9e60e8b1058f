"""What each collective means, in NumPy. The loopback backend runs on these; the conformance suite judges the others by them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np


def gathered(everyone: Sequence[np.ndarray]) -> np.ndarray:
    """The processes' arrays `(b, ...)` joined in rank order; a 0-d array counts as `(1,)`.

    >>> gathered([np.array([1, 2]), np.array([3, 4])]).tolist()
    [1, 2, 3, 4]
    """
    return np.concatenate([array.reshape(array.shape or (1,)) for array in everyone])


def reduced(everyone: Sequence[np.ndarray], reduction: str, scale: float, mine: int) -> np.ndarray:
    """The arrays reduced element-wise, then times `scale`; what `none` leaves on process `mine` is its own.

    Elements are added in a type that can hold the result: bools count as int64, the mean of integers is a float; every other result
    has the dtype of the arrays.

    >>> reduced([np.array([0]), np.array([3])], "mean", 1.0, mine=0)
    array([1.5])
    """
    if reduction == "none":
        return scaled(everyone[mine].copy(), scale)
    dtype = everyone[0].dtype
    if reduction in ("max", "min"):
        stacked = np.stack(everyone)
        return scaled(stacked.max(axis=0) if reduction == "max" else stacked.min(axis=0), scale)
    result_dtype = mean_dtype(dtype) if reduction == "mean" else np.dtype(np.int64) if dtype == np.bool_ else dtype
    working = np.dtype(np.float32) if result_dtype.itemsize < 4 and not is_integral(result_dtype) else result_dtype
    total = sum_in(everyone, working)
    result = total / np.asarray(len(everyone), total.dtype) if reduction == "mean" else total
    return scaled(result.astype(result_dtype), scale)


def sum_in(everyone: Sequence[np.ndarray], dtype: np.dtype[Any]) -> np.ndarray:
    """The element-wise sum, added up in `dtype`, in rank order."""
    total = everyone[0].astype(dtype)
    for array in everyone[1:]:
        total = total + array.astype(dtype)
    return np.asarray(total)


def is_integral(dtype: np.dtype[Any]) -> bool:
    """Whether the type is an integer or bool (ml_dtypes' floats have NumPy's kind "V" or "f", so they are not)."""
    return dtype.kind in "iub"


def mean_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type of a mean: of integers and bools float32, of 64-bit integers float64, else the same."""
    if not is_integral(dtype):
        return dtype
    return np.dtype(np.float64 if dtype.itemsize == 8 else np.float32)


def scaled(array: np.ndarray, scale: float) -> np.ndarray:
    """The array times `scale`, in its own dtype; integers and bools become float32 (64-bit ones float64) unless the scale is 1."""
    if scale == 1.0:
        return array
    wide = array.astype(mean_dtype(array.dtype))
    return np.asarray(wide * np.asarray(scale, wide.dtype))
