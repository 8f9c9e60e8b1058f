from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xaccel.checkpoint.chunks import (
    byte_runs,
    extents,
    full_bounds,
    intersect,
    is_inside,
    merge_runs,
    relative,
    split_bounds,
    tiling_fault,
    volume,
)

quick = settings(max_examples=60, deadline=None)


@st.composite
def shapes_and_bounds(draw, num_bounds=1):
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=4)))
    result = []
    for _ in range(num_bounds):
        pairs = [sorted((draw(st.integers(0, size)), draw(st.integers(0, size)))) for size in shape]
        result.append(tuple((start, stop) for start, stop in pairs))
    return shape, *result


def taken(array: np.ndarray, bounds) -> np.ndarray:
    return array[tuple(slice(*pair) for pair in bounds)]


@given(shapes_and_bounds(), st.sampled_from([1, 2, 8]))
@quick
def test_runs_are_the_bytes_that_numpy_takes(case, itemsize):
    shape, bounds = case
    array = np.arange(math.prod(shape), dtype=f"u{itemsize}").reshape(shape)
    data = array.tobytes()
    runs = list(byte_runs(shape, bounds, itemsize))
    assert b"".join(data[offset : offset + length] for offset, length in runs) == taken(array, bounds).tobytes()
    # maximal: no run begins where the one before it ends
    assert all(first + length < second for (first, length), (second, _) in itertools.pairwise(runs))


@given(shapes_and_bounds(), st.integers(0, 40), st.integers(1, 60))
@quick
def test_merged_reads_hold_the_same_bytes(case, gap, most):
    shape, bounds = case
    data = np.arange(math.prod(shape), dtype=np.uint16).tobytes()
    runs = list(byte_runs(shape, bounds, 2))
    reads = list(merge_runs(runs, max_gap_bytes=gap, max_read_bytes=most))
    parts = [(read.offset + offset, length) for read in reads for offset, length in read.parts]
    assert parts == runs
    for read in reads:
        assert read.offset + read.length <= len(data)
        assert read.length <= most or len(read.parts) == 1


@given(shapes_and_bounds(2))
@quick
def test_intersection_is_numpys(case):
    shape, first, second = case
    mask = np.zeros((2, *shape), bool)
    mask[(0, ..., *(slice(*pair) for pair in first))] = True
    mask[(1, ..., *(slice(*pair) for pair in second))] = True
    both = mask[0] & mask[1]
    common = intersect(first, second)
    assert both.sum() == (0 if common is None else volume(common))
    if common is not None and volume(common):
        assert taken(both, common).all()


@given(shapes_and_bounds(), st.integers(1, 64))
@quick
def test_pieces_are_small_ordered_contiguous_and_complete(case, most):
    shape, bounds = case
    pieces = split_bounds(bounds, 2, most)
    array = np.arange(math.prod(shape), dtype=np.uint16).reshape(shape)
    assert b"".join(taken(array, piece).tobytes() for piece in pieces) == taken(array, bounds).tobytes()
    assert all(volume(piece) * 2 <= max(most, 2) for piece in pieces)
    assert all(len(list(byte_runs(extents(bounds), relative(piece, bounds), 2))) == 1 for piece in pieces)
    moved = [tuple((start - low, stop - low) for (start, stop), (low, _) in zip(piece, bounds)) for piece in pieces]
    assert tiling_fault(extents(bounds), moved) is None


@given(shapes_and_bounds(2))
@quick
def test_tiling_is_judged_by_counting(case):
    shape, first, second = case
    count = np.zeros(shape, int)
    for bounds in (first, second):
        count[(..., *(slice(*pair) for pair in bounds))] += 1
    assert (tiling_fault(shape, [first, second]) is None) == bool((count == 1).all())


def test_zero_dims_and_empty_tensors():
    assert list(byte_runs((), (), 4)) == [(0, 4)]
    assert split_bounds((), 8, 1) == [()]
    assert tiling_fault((), [()]) is None
    assert tiling_fault((), []) == "1 of 1 elements are written by nobody"
    assert list(byte_runs((3, 0), ((0, 3), (0, 0)), 4)) == []
    assert tiling_fault((3, 0), []) is None
    assert intersect((), ()) == ()


@pytest.mark.parametrize("bounds", [((0, 4),), ((-1, 2),), ((2, 1),), ((0, 1), (0, 1))])
def test_a_slice_outside_is_named(bounds):
    assert not is_inside(bounds, (3,))
    assert "not inside shape (3,)" in str(tiling_fault((3,), [bounds]))


def test_whole_tensors_are_one_run():
    assert list(byte_runs((7, 5, 3), full_bounds((7, 5, 3)), 4)) == [(0, 420)]
