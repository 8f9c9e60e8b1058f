"""From a slice of a tensor to byte ranges of a file, and back, with integers alone.

Requirements, and why it is written this way:

* A tensor lies in its file whole, in C order. Any number of processes writes it, each the slices that it owns, and any number reads it, each
  the slices that it needs; so both sides only ever ask "which bytes are these?", and no file says how many processes there were.
* A *slice* is `Bounds`: half-open `(start, stop)` per dim, in elements. `()` is the one slice of a 0-d tensor.
* A *run* is a byte range `(offset, length)` in which a slice is contiguous, counted from the tensor's first byte. The runs of a slice in
  ascending order are the slice's own bytes in C order: hashing runs as they pass is hashing the slice.
* A *chunk* is the unit of hashing: a written slice, cut along its leading dims to at most `CHUNK_BYTES`. Such a piece is contiguous in the
  array that holds the slice, so that writing and hashing copy nothing.
* Reads are merged over small gaps (`max_gap_bytes` bounds what is read for nothing) into reads of bounded size (`max_read_bytes` bounds
  memory): one concern a knob.

Nothing here touches an array or a file; the tests judge it by numpy.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence

from xaccel.mesh.spec import Bounds

CHUNK_BYTES = 16 * 2**20
"""Largest chunk: small enough that checking one hash reads little, large enough that a 100 GB checkpoint has some thousand entries."""

Run = tuple[int, int]
"""(offset, length) in bytes, from the tensor's first byte."""


def full_bounds(shape: Sequence[int]) -> Bounds:
    """The slice that is the whole tensor.

    >>> full_bounds((2, 3))
    ((0, 2), (0, 3))
    """
    return tuple((0, size) for size in shape)


def extents(bounds: Bounds) -> tuple[int, ...]:
    """The shape of a slice.

    >>> extents(((1, 3), (0, 5)))
    (2, 5)
    """
    return tuple(stop - start for start, stop in bounds)


def volume(bounds: Bounds) -> int:
    """Elements in a slice; 1 for `()`."""
    return math.prod(stop - start for start, stop in bounds)


def is_inside(bounds: Bounds, shape: Sequence[int]) -> bool:
    """Whether `bounds` is a slice of a tensor of `shape`."""
    return len(bounds) == len(shape) and all(0 <= start <= stop <= size for (start, stop), size in zip(bounds, shape))


def intersect(first: Bounds, second: Bounds) -> Bounds | None:
    """The common part of two slices of one tensor, or `None` where they share no element.

    >>> intersect(((0, 4), (0, 2)), ((3, 6), (1, 9)))
    ((3, 4), (1, 2))
    """
    common = tuple((max(a, c), min(b, d)) for (a, b), (c, d) in zip(first, second, strict=True))
    return common if all(start < stop for start, stop in common) else None


def relative(inner: Bounds, outer: Bounds) -> Bounds:
    """`inner` counted from the first element of `outer`.

    >>> relative(((3, 4),), ((2, 8),))
    ((1, 2),)
    """
    return tuple((start - base, stop - base) for (start, stop), (base, _) in zip(inner, outer, strict=True))


def byte_runs(shape: Sequence[int], bounds: Bounds, itemsize: int) -> Iterator[Run]:
    """The maximal contiguous byte ranges of a slice, ascending.

    >>> list(byte_runs((3, 4), ((0, 2), (1, 3)), 1))
    [(1, 2), (5, 2)]
    >>> list(byte_runs((3, 4), ((1, 3), (0, 4)), 2))
    [(8, 16)]
    """
    if volume(bounds) == 0:
        return
    inner = _first_partial_from_the_end(shape, bounds)
    strides = _byte_strides(shape, itemsize)
    # Dims after `inner` are whole, so the slice is contiguous from `inner` on; every index of the dims before starts a run.
    start, stop = bounds[inner] if bounds else (0, 1)
    stride = strides[inner] if bounds else itemsize
    length = (stop - start) * stride
    outer = [[index * strides[dim] for index in range(*bounds[dim])] for dim in range(inner)]
    for offsets in itertools.product(*outer):
        yield sum(offsets) + start * stride, length


def _first_partial_from_the_end(shape: Sequence[int], bounds: Bounds) -> int:
    """The dim from which on the slice is contiguous: the last one that it does not cover whole, else 0."""
    dim = max(len(shape) - 1, 0)
    while dim > 0 and bounds[dim] == (0, shape[dim]):
        dim -= 1
    return dim


def _byte_strides(shape: Sequence[int], itemsize: int) -> list[int]:
    strides = [itemsize] * len(shape)
    for dim in range(len(shape) - 2, -1, -1):
        strides[dim] = strides[dim + 1] * shape[dim + 1]
    return strides


@dataclasses.dataclass(frozen=True)
class MergedRead:
    """One read of a file and where its wanted parts lie in it.

    Attributes:
        offset, length: the bytes to read, from the tensor's first byte.
        parts: (offset within this read, length) of the wanted bytes, ascending.
    """

    offset: int
    length: int
    parts: tuple[Run, ...]


def merge_runs(runs: Iterable[Run], *, max_gap_bytes: int, max_read_bytes: int) -> Iterator[MergedRead]:
    """Join ascending runs into reads that skip at most `max_gap_bytes` at a time and, unless one run alone is longer, hold `max_read_bytes`.

    >>> [(read.offset, read.length) for read in merge_runs([(0, 4), (6, 4), (100, 4)], max_gap_bytes=8, max_read_bytes=64)]
    [(0, 10), (100, 4)]
    """
    first, end, parts = 0, 0, list[Run]()
    for offset, length in runs:
        if parts and (offset - end > max_gap_bytes or offset + length - first > max_read_bytes):
            yield MergedRead(first, end - first, tuple(parts))
            parts = []
        if not parts:
            first = offset
        parts.append((offset - first, length))
        end = offset + length
    if parts:
        yield MergedRead(first, end - first, tuple(parts))


def split_bounds(bounds: Bounds, itemsize: int, max_bytes: int = CHUNK_BYTES) -> list[Bounds]:
    """A slice cut along its leading dims into pieces of at most `max_bytes` (at least one element), in C order.

    Each piece is contiguous in an array that holds just the slice. A slice without elements gives no piece.

    >>> split_bounds(((0, 4), (2, 4)), itemsize=1, max_bytes=4)
    [((0, 2), (2, 4)), ((2, 4), (2, 4))]
    """
    if volume(bounds) == 0:
        return []
    if not bounds or volume(bounds) * itemsize <= max_bytes:
        return [bounds]
    (start, stop), rest = bounds[0], bounds[1:]
    rows = max_bytes // (volume(rest) * itemsize)
    if rows >= 1:
        return [((row, min(row + rows, stop)), *rest) for row in range(start, stop, rows)]
    pieces = split_bounds(rest, itemsize, max_bytes)
    return [((row, row + 1), *piece) for row in range(start, stop) for piece in pieces]


def tiling_fault(shape: Sequence[int], slices: Sequence[Bounds]) -> str | None:
    """Why `slices` do not cover a tensor of `shape` exactly once; `None` if they do.

    >>> tiling_fault((4,), [((0, 2),), ((3, 4),)])
    '1 of 4 elements are written by nobody'
    """
    for bounds in slices:
        if not is_inside(bounds, shape):
            return f"slice {bounds} is not inside shape {tuple(shape)}"
    filled = sorted(bounds for bounds in slices if volume(bounds))
    clash = _first_overlap(filled)
    if clash is not None:
        return f"slices {clash[0]} and {clash[1]} overlap"
    lacking = math.prod(shape) - sum(volume(bounds) for bounds in filled)
    return f"{lacking} of {math.prod(shape)} elements are written by nobody" if lacking else None


def _first_overlap(ascending: list[Bounds]) -> tuple[Bounds, Bounds] | None:
    for index, bounds in enumerate(ascending):
        for other in itertools.islice(ascending, index + 1, None):
            if bounds and other[0][0] >= bounds[0][1]:
                break  # sorted by the first dim: nothing further can reach back
            if intersect(bounds, other) is not None:
                return bounds, other
    return None
