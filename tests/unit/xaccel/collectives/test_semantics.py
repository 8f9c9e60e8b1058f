"""The judge itself, held against values worked out by hand."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from xaccel.collectives import semantics


def test_scalars_gather_to_one_each() -> None:
    assert semantics.gathered([np.array(1), np.array(2)]).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("reduction", "expected"), [("sum", [5, 7]), ("mean", [2.5, 3.5]), ("max", [4, 5]), ("min", [1, 2]), ("none", [4, 5])]
)
def test_reductions(reduction: str, expected: list[float]) -> None:
    result = semantics.reduced([np.array([1, 2]), np.array([4, 5])], reduction, 1.0, mine=1)
    assert result.tolist() == expected


@pytest.mark.parametrize(
    ("dtype", "reduction", "result"),
    [
        (np.bool_, "sum", np.int64),
        (np.bool_, "max", np.bool_),
        (np.bool_, "mean", np.float32),
        (np.int32, "mean", np.float32),
        (np.int64, "mean", np.float64),
        (np.int8, "sum", np.int8),
        (ml_dtypes.bfloat16, "mean", ml_dtypes.bfloat16),
        (ml_dtypes.float8_e4m3fn, "sum", ml_dtypes.float8_e4m3fn),
    ],
)
def test_result_types(dtype: object, reduction: str, result: object) -> None:
    assert semantics.reduced([np.ones(2).astype(dtype)] * 2, reduction, 1.0, mine=0).dtype == result


def test_narrow_floats_are_added_in_float32() -> None:
    halves = [np.array([40000], np.float16)] * 4
    assert semantics.reduced(halves, "mean", 1.0, mine=0).tolist() == [40000]


def test_scaled_integers_are_floats() -> None:
    assert semantics.reduced([np.array([1, 2], np.int32)], "sum", 0.5, mine=0).tolist() == [0.5, 1.0]
    assert semantics.reduced([np.array([1, 2], np.int32)], "sum", 1.0, mine=0).dtype == np.int32
