"""Containers come back as their own type, around new leaves."""

from __future__ import annotations

import collections
import dataclasses
from typing import Any, NamedTuple

import pytest

from xaccel import tree


class Point(NamedTuple):
    x: Any
    y: Any


@dataclasses.dataclass(frozen=True)
class Batch:
    ids: Any
    name: str = "train"
    size: int = dataclasses.field(init=False, default=3)


class Encoding(collections.UserDict):  # type: ignore[type-arg]
    """A mapping that is no dict, as tokenizers return."""


def double(leaf: Any) -> Any:
    return leaf * 2 if isinstance(leaf, int) else leaf


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (1, 2),
        (None, None),
        ("text", "text"),
        (b"bytes", b"bytes"),
        ([1, (2, 3)], [2, (4, 6)]),
        ({"a": 1, "b": [None, "s"]}, {"a": 2, "b": [None, "s"]}),
        (Point(1, [2]), Point(2, [4])),
        (Encoding(a=1, b=Encoding(c=2)), Encoding(a=2, b=Encoding(c=4))),
        (collections.OrderedDict(b=1, a=2), collections.OrderedDict(b=2, a=4)),
        ([], []),
        ({}, {}),
    ],
)
def test_map_leaves_keeps_containers(value: Any, expected: Any) -> None:
    result = tree.map_leaves(double, value)
    assert result == expected
    assert type(result) is type(expected)


def test_mapping_inside_mapping_keeps_its_type() -> None:
    result = tree.map_leaves(double, Encoding(outer=Encoding(inner=1)))
    assert type(result["outer"]) is Encoding


def test_defaultdict_keeps_its_factory() -> None:
    source: collections.defaultdict[str, list[int]] = collections.defaultdict(list, a=[1])
    result = tree.map_leaves(double, source)
    assert result == {"a": [2]}
    assert result.default_factory is list


def test_frozen_dataclass_with_a_field_that_init_does_not_take() -> None:
    result = tree.map_leaves(double, Batch(ids=[1, 2]))
    assert result.ids == [2, 4]
    assert result.name == "train"
    assert result.size == 6


def test_the_source_is_left_as_it_was() -> None:
    source = {"a": [1]}
    tree.map_leaves(double, source)
    assert source == {"a": [1]}


def test_leaves_with_paths_in_order() -> None:
    value = {"a": Point(1, (2, None)), 3: "s"}
    assert list(tree.leaves_with_paths(value)) == [(("a", 0), 1), (("a", 1, 0), 2), (("a", 1, 1), None), ((3,), "s")]


def test_select_puts_new_leaves_where_the_chosen_ones_were() -> None:
    chosen, put_back = tree.select({"x": 1, "name": "a", "y": [2, None]}, lambda leaf: isinstance(leaf, int))
    assert chosen == [1, 2]
    assert put_back([10, 20]) == {"x": 10, "name": "a", "y": [20, None]}


def test_select_refuses_another_number_of_leaves() -> None:
    _, put_back = tree.select([1, 2], lambda leaf: True)
    with pytest.raises(ValueError, match="shorter"):
        put_back([1])


@pytest.mark.parametrize(("path", "name"), [((), "<the value itself>"), (("a", 0), "['a'][0]")])
def test_path_name(path: tree.Path, name: str) -> None:
    assert tree.path_name(path) == name
