"""How much one process has to pad. Integers only."""

from __future__ import annotations


def dim_size(shape: tuple[int, ...], dim: int) -> int:
    """The size of `dim`, or 0 for an array that has no such dim.

    >>> dim_size((3, 5), -1), dim_size((3,), 1)
    (5, 0)
    """
    return shape[dim] if -len(shape) <= dim < len(shape) else 0


def padding_after(shape: tuple[int, ...], dim: int, longest: int) -> int:
    """Elements missing along `dim` to the longest; none for an array that has no such dim.

    >>> padding_after((3, 5), 0, 7), padding_after((), 0, 7)
    (4, 0)
    """
    return longest - shape[dim] if -len(shape) <= dim < len(shape) else 0
