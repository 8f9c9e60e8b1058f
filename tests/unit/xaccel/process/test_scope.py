"""How work is divided, and what runs where; over several ranks by threads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xaccel.errors import ConfigurationError
from xaccel.process.scope import ProcessScope, split_range
from xaccel.process.topology import ProcessTopology
from xaccel.testing.loopback import LoopbackCollectives, run_threads


class Rows:
    """As a 🤗 Dataset: indexing gives columns, `select` gives rows."""

    features = ("x",)

    def __init__(self, values: list[int]):
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def select(self, indices: list[int]) -> Rows:
        return Rows([self.values[index] for index in indices])


def split(inputs: Any, num_processes: int, apply_padding: bool = False) -> list[Any]:
    def rank(topology: ProcessTopology) -> Any:
        with ProcessScope(topology, LoopbackCollectives(topology)).split_between_processes(inputs, apply_padding) as part:
            return part

    return run_threads(num_processes, rank)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 100), st.integers(1, 12))
def test_parts_cover_the_range_once_in_order(length: int, count: int) -> None:
    parts = [split_range(length, count, index) for index in range(count)]
    assert [each for start, stop, _ in parts for each in range(start, stop)] == list(range(length))
    padded = [split_range(length, count, index, pad=True) for index in range(count)]
    assert {stop - start + missing for start, stop, missing in padded} == {-(-length // count)}


@pytest.mark.parametrize(("length", "count", "sizes"), [(17, 8, [3, 2, 2, 2, 2, 2, 2, 2]), (3, 4, [1, 1, 1, 0]), (0, 2, [0, 0])])
def test_sizes(length: int, count: int, sizes: list[int]) -> None:
    assert [len(part) for part in split(list(range(length)), count)] == sizes


def test_a_padded_tuple_stays_a_tuple() -> None:
    assert split((1, 2, 3), 2, apply_padding=True) == [(1, 2), (3, 3)]


def test_nothing_is_padded_when_it_divides() -> None:
    assert split([[1, 2], [3]], 2, apply_padding=True) == [[[1, 2]], [[3]]]
    assert split([], 2, apply_padding=True) == [[], []]


def test_more_processes_than_elements_padded() -> None:
    assert split([1, 2], 4, apply_padding=True) == [[1], [2], [2], [2]]


def test_a_dict_of_list_and_array() -> None:
    first, second = split({"a": [0, 1, 2], "b": np.array([0, 1, 2])}, 2, apply_padding=True)
    assert (first["a"], first["b"].tolist()) == ([0, 1], [0, 1])
    assert (second["a"], second["b"].tolist()) == ([2, 2], [2, 2])


def test_unequal_lengths_are_named() -> None:
    with pytest.raises(ConfigurationError, match=r"\{'a': 3, 'b': 2\}"):
        split({"a": [1, 2, 3], "b": [1, 2]}, 2)


def test_a_dataset_is_divided_by_rows() -> None:
    parts = split(Rows(list(range(17))), 4)
    assert [type(part) for part in parts] == [Rows] * 4
    assert [len(part) for part in parts] == [5, 4, 4, 4]


def test_the_main_process_goes_first() -> None:
    order: list[int] = []

    def rank(topology: ProcessTopology) -> None:
        with ProcessScope(topology, LoopbackCollectives(topology)).main_process_first():
            order.append(topology.process_index)

    run_threads(4, rank)
    assert order[0] == 0
    assert sorted(order) == [0, 1, 2, 3]


def test_print_on_the_local_main_process_only(capsys: pytest.CaptureFixture[str]) -> None:
    run_threads(2, lambda topology: ProcessScope(topology, LoopbackCollectives(topology)).print("rank", topology.process_index))
    assert capsys.readouterr().out == "rank 0\n"


def test_a_process_that_does_not_exist_is_refused() -> None:
    def rank(topology: ProcessTopology) -> None:
        ProcessScope(topology, LoopbackCollectives(topology)).on_process(process_index=2)

    with pytest.raises(ConfigurationError, match="process_index=2: expected 0 to 1"):
        run_threads(2, rank)
