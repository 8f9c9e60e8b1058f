"""Rows of nested host batches. Arrays are recognised by `shape` and slicing, so that any framework's host arrays are taken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from xaccel import tree
from xaccel.errors import DataError


def is_array(leaf: Any) -> bool:
    """Whether a leaf has rows: an array or tensor of at least one dim."""
    return len(getattr(leaf, "shape", ())) > 0


def num_rows(batch: Any) -> int | None:
    """Rows of the first array of a batch; where there is none, the length of a list of strings; else `None`."""
    for leaf in tree.leaves(batch):
        if is_array(leaf):
            return int(leaf.shape[0])
    return len(batch) if isinstance(batch, list) else None


def take_rows(batch: Any, rows: Sequence[int] | np.ndarray) -> Any:
    """The given rows of every array; other leaves unchanged."""
    index = np.asarray(rows)
    return tree.map_leaves(lambda leaf: leaf[index] if is_array(leaf) else leaf, batch)


def concatenate_rows(batches: Sequence[Any]) -> Any:
    """The batches of several replicas as one: arrays joined along dim 0, lists of other leaves one after the other.

    Raises:
        DataError: arrays that differ in a dim other than the first; the message names the leaf and the shapes.
    """
    if len(batches) == 1:
        return batches[0]
    first = batches[0]
    if isinstance(first, list) and not any(is_array(leaf) for leaf in tree.leaves(first)):
        return [leaf for batch in batches for leaf in batch]
    if tree.is_container(first):
        columns = [[child for _, child in tree.children(batch)] for batch in batches]
        keys = [key for key, _ in tree.children(first)]
        return tree.rebuild(first, [_named(keys[place], [column[place] for column in columns]) for place in range(len(keys))])
    if not is_array(first):
        return first
    return _joined(batches)


def _named(key: Any, parts: list[Any]) -> Any:
    try:
        return concatenate_rows(parts)
    except DataError as error:
        raise DataError(f"[{key!r}]{error}") from None


def _joined(arrays: Sequence[Any]) -> np.ndarray:
    shapes = [tuple(array.shape) for array in arrays]
    if len({shape[1:] for shape in shapes}) > 1:
        raise DataError(
            f": the replicas' batches have shapes {shapes}; one process feeds them all, so all dims but the first must agree: pad them"
        )
    return np.concatenate([np.asarray(array) for array in arrays])
