"""A batch size is found; other errors pass."""

from __future__ import annotations

import pytest

from xaccel.errors import ConfigurationError
from xaccel.memory import find_executable_batch_size, release_memory


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        RuntimeError("CUDA out of memory. Tried to allocate"),
        RuntimeError("RESOURCE_EXHAUSTED: Out of memory allocating 1 bytes"),
    ],
)
def test_smaller_until_it_fits(error: Exception) -> None:
    tried = []

    @find_executable_batch_size(starting_batch_size=64, reduce_batch_size_fn=lambda size: size // 2)
    def train(batch_size: int, factor: int, *, name: str) -> tuple[int, int, str]:
        tried.append(batch_size)
        if batch_size > 16:
            raise error
        return batch_size, factor, name

    assert train(3, name="x") == (16, 3, "x")
    assert tried == [64, 32, 16]


def test_nine_tenths_by_default() -> None:
    tried = []

    @find_executable_batch_size(starting_batch_size=10)
    def train(batch_size: int) -> None:
        tried.append(batch_size)
        if batch_size > 8:
            raise MemoryError

    train()
    assert tried == [10, 9, 8]


def test_other_errors_pass() -> None:
    @find_executable_batch_size(starting_batch_size=4)
    def train(batch_size: int) -> None:
        raise RuntimeError("shapes differ")

    with pytest.raises(RuntimeError, match="shapes differ"):
        train()


def test_nothing_fits() -> None:
    @find_executable_batch_size(starting_batch_size=4, reduce_batch_size_fn=lambda size: size // 2)
    def train(batch_size: int) -> None:
        raise MemoryError

    with pytest.raises(ConfigurationError, match="from 4 down to 1"):
        train()


def test_a_batch_size_given_by_the_caller_is_an_error() -> None:
    @find_executable_batch_size(starting_batch_size=4)
    def train(batch_size: int, epochs: int) -> None: ...

    with pytest.raises(ConfigurationError, match="batch_size"):
        train(8, 3)


def test_release_memory_gives_as_many_nones() -> None:
    assert release_memory([1], [2]) == [None, None]
