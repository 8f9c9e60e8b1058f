"""Nested containers: flatten to leaves and rebuild the same containers around new leaves.

Containers are tuples, named tuples, lists, mappings (`dict` and its subclasses, `UserDict`, 🤗 `BatchEncoding`, any `Mapping` that
can be built from a dict) and dataclass instances. Everything else is a leaf: arrays, numbers, `None`, strings, `bytes`, sets.
A container comes back as its own type.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Leaf = Any
Path = tuple[str | int, ...]


def is_namedtuple(value: Any) -> bool:
    """Whether `value` is an instance of a `namedtuple` (or `typing.NamedTuple`) class."""
    return isinstance(value, tuple) and isinstance(getattr(type(value), "_fields", None), tuple)


def is_container(value: Any) -> bool:
    """Whether `value` is one of the containers that this module opens."""
    if isinstance(value, (list, tuple, Mapping)):
        return True
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def children(container: Any) -> Iterator[tuple[str | int, Any]]:
    """The (key, child) pairs of one container, in its own order."""
    if isinstance(container, Mapping):
        yield from container.items()
    elif isinstance(container, (list, tuple)):
        yield from enumerate(container)
    else:
        for field in dataclasses.fields(container):
            yield field.name, getattr(container, field.name)


def rebuild(container: Any, new_children: list[Any]) -> Any:
    """A container like `container` (same type, same keys) around `new_children`, given in the order of `children`."""
    if isinstance(container, Mapping):
        return _rebuild_mapping(container, new_children)
    if is_namedtuple(container):
        return type(container)(*new_children)
    if isinstance(container, (list, tuple)):
        return type(container)(new_children)
    return _rebuild_dataclass(container, new_children)


def _rebuild_mapping(container: Mapping[Any, Any], new_children: list[Any]) -> Any:
    items = dict(zip(container.keys(), new_children, strict=True))
    if type(container) is dict:
        return items
    if isinstance(container, dict):
        # A subclass such as defaultdict or OrderedDict may take other constructor arguments: keep them by copying.
        clone = copy.copy(container)
        clone.update(items)
        return clone
    return type(container)(items)  # type: ignore[call-arg]


def _rebuild_dataclass(container: Any, new_children: list[Any]) -> Any:
    # Set on a copy: works for frozen classes, for fields with init=False, and runs no __post_init__ a second time.
    clone = copy.copy(container)
    for field, child in zip(dataclasses.fields(container), new_children, strict=True):
        object.__setattr__(clone, field.name, child)
    return clone


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """`function` applied to every leaf; the containers come back as they were.

    >>> map_leaves(lambda x: x + 1, {"a": [1, 2], "b": (3,)})
    {'a': [2, 3], 'b': (4,)}
    """
    if not is_container(tree):
        return function(tree)
    return rebuild(tree, [map_leaves(function, child) for _, child in children(tree)])


def leaves_with_paths(tree: Any, prefix: Path = ()) -> Iterator[tuple[Path, Any]]:
    """Every leaf with the keys that lead to it, depth first.

    >>> list(leaves_with_paths({"a": [1, None]}))
    [(('a', 0), 1), (('a', 1), None)]
    """
    if not is_container(tree):
        yield prefix, tree
        return
    for key, child in children(tree):
        yield from leaves_with_paths(child, (*prefix, key))


def leaves(tree: Any) -> list[Any]:
    """Every leaf, depth first."""
    return [leaf for _, leaf in leaves_with_paths(tree)]


def replace_leaves(tree: Any, new_leaves: Iterator[Any]) -> Any:
    """The same containers around the leaves that `new_leaves` yields, depth first."""
    if not is_container(tree):
        return next(new_leaves)
    return rebuild(tree, [replace_leaves(child, new_leaves) for _, child in children(tree)])


def select(tree: Any, predicate: Callable[[Any], bool]) -> tuple[list[Any], Callable[[list[Any]], Any]]:
    """The leaves for which `predicate` holds, and a function that puts as many new ones in their places.

    Returns:
        `(chosen, put_back)`: `put_back(new)` rebuilds the tree with `new[i]` where `chosen[i]` was; other leaves stay.

    >>> chosen, put_back = select({"x": 1, "name": "a"}, lambda leaf: isinstance(leaf, int))
    >>> chosen, put_back([10])
    ([1], {'x': 10, 'name': 'a'})
    """
    everything = leaves(tree)
    places = [index for index, leaf in enumerate(everything) if predicate(leaf)]

    def put_back(new: list[Any]) -> Any:
        filled = list(everything)
        for place, leaf in zip(places, new, strict=True):
            filled[place] = leaf
        return replace_leaves(tree, iter(filled))

    return [everything[index] for index in places], put_back


def path_name(path: Path) -> str:
    """A leaf's path as people write it: `batch['x'][0]` reads `['x'][0]`; a leaf at the top reads `<the value itself>`."""
    return "".join(f"[{key!r}]" for key in path) or "<the value itself>"
