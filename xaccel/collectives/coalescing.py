"""How a list of arrays travels as few flat buffers: one for each dtype. Integers and names only."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence


@dataclasses.dataclass(frozen=True)
class Segment:
    """Where one array lies in its buffer.

    Attributes:
        index: position of the array in the list.
        shape: its shape.
        start, stop: elements of the buffer.
    """

    index: int
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclasses.dataclass(frozen=True)
class Buffer:
    """Arrays of one dtype, one after the other.

    Attributes:
        dtype: name of the element type.
        size: elements.
        segments: the arrays, in the order of the list.
    """

    dtype: str
    size: int
    segments: tuple[Segment, ...]


def plan_buffers(shapes: Sequence[tuple[int, ...]], dtypes: Sequence[str]) -> tuple[Buffer, ...]:
    """One buffer for each dtype, in the order in which dtypes first appear; the same on every process for the same input.

    >>> [(buffer.dtype, buffer.size) for buffer in plan_buffers([(2, 3), (), (4,)], ["f4", "i8", "f4"])]
    [('f4', 10), ('i8', 1)]
    """
    groups: dict[str, list[Segment]] = {}
    sizes: dict[str, int] = {}
    for index, (shape, dtype) in enumerate(zip(shapes, dtypes, strict=True)):
        start = sizes.get(dtype, 0)
        stop = start + math.prod(shape)
        groups.setdefault(dtype, []).append(Segment(index, tuple(shape), start, stop))
        sizes[dtype] = stop
    return tuple(Buffer(dtype, sizes[dtype], tuple(segments)) for dtype, segments in groups.items())
