"""NumPy's basic indexing as a slice to read and an index into what was read."""

from __future__ import annotations

from collections.abc import Sequence
from types import EllipsisType
from typing import Any, SupportsIndex

from xaccel.mesh.spec import Bounds

Index = SupportsIndex | slice | EllipsisType | tuple[SupportsIndex | slice | EllipsisType, ...]


def bounds_of_index(index: Index, shape: Sequence[int]) -> tuple[Bounds, tuple[Any, ...]]:
    """The smallest slice that holds all of `x[index]` for an `x` of `shape`, and the index that takes `x[index]` out of it.

    >>> bounds_of_index((1, slice(None, None, 2)), (3, 5))
    (((1, 2), (0, 5)), (0, slice(None, None, 2)))

    Raises:
        IndexError: too many indices, one outside its dim, or one that is no integer, slice or `...`.
    """
    whole: list[Any] = list(index) if isinstance(index, tuple) else [index]
    if sum(part is Ellipsis for part in whole) > 1:
        raise IndexError(f"index {index!r} holds more than one `...`")
    place = next((position for position, part in enumerate(whole) if part is Ellipsis), len(whole))
    before, after = whole[:place], whole[place + 1 :]
    if len(before) + len(after) > len(shape):
        raise IndexError(f"index {index!r} has more parts than the shape {tuple(shape)} has dims")
    parts = [*before, *[slice(None)] * (len(shape) - len(before) - len(after)), *after]
    pairs = [_one(part, size) for part, size in zip(parts, shape, strict=True)]
    return tuple(bounds for bounds, _ in pairs), tuple(rest for _, rest in pairs)


def _one(part: Any, size: int) -> tuple[tuple[int, int], Any]:
    if isinstance(part, slice):
        return _slice(part, size)
    if isinstance(part, bool) or not isinstance(part, SupportsIndex):
        raise IndexError(f"index {part!r} is not an integer, a slice or `...`; read a slice first and index the array")
    position = part.__index__()
    if not -size <= position < size:
        raise IndexError(f"index {position} is outside a dim of size {size}")
    position %= size
    return (position, position + 1), 0


def _slice(part: slice, size: int) -> tuple[tuple[int, int], slice]:
    chosen = range(*part.indices(size))
    if not chosen:
        return (0, 0), slice(None)
    low, high = min(chosen[0], chosen[-1]), max(chosen[0], chosen[-1]) + 1
    return (low, high), slice(None, None, chosen.step if abs(chosen.step) != 1 or chosen.step < 0 else None)
