"""Which micro-steps sync."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from xaccel.config.accumulation import GradientAccumulationPlugin
from xaccel.errors import ConfigurationError
from xaccel.stepping.accumulation import Accumulation


def syncs(plugin: GradientAccumulationPlugin, batches_per_epoch: int, epochs: int = 1) -> list[int]:
    """Micro-step numbers (from 1, over all epochs) that sync."""
    position = SimpleNamespace(end_of_dataloader=False)
    machine = Accumulation(plugin, SimpleNamespace(current=position))
    found = []
    for number in range(1, batches_per_epoch * epochs + 1):
        position.end_of_dataloader = number % batches_per_epoch == 0
        if machine.advance():
            found.append(number)
        assert machine.sync_gradients == (number in found)
    return found


@pytest.mark.parametrize(
    ("num_steps", "with_loader", "batches", "expected"),
    [
        (1, True, 3, [1, 2, 3]),
        (4, True, 5, [4, 5]),  # case 13
        (4, False, 5, [4]),
        (4, True, 10, [4, 8, 10]),  # case C-39
        (4, True, 3, [3]),
        (2, True, 4, [2, 4]),
    ],
)
def test_one_epoch(num_steps: int, with_loader: bool, batches: int, expected: list[int]) -> None:
    assert syncs(GradientAccumulationPlugin(num_steps=num_steps, sync_with_dataloader=with_loader), batches) == expected


def test_counting_starts_anew_after_an_early_close_and_carries_over_without() -> None:
    assert syncs(GradientAccumulationPlugin(num_steps=4), 5, epochs=2) == [4, 5, 9, 10]
    assert syncs(GradientAccumulationPlugin(num_steps=4, sync_with_dataloader=False), 5, epochs=2) == [4, 8]


def test_without_an_active_loader_only_counting_decides() -> None:
    machine = Accumulation(GradientAccumulationPlugin(num_steps=2), SimpleNamespace(current=None))
    assert [machine.advance() for _ in range(4)] == [False, True, False, True]


def test_sync_each_batch_reduces_always_and_steps_at_the_end() -> None:
    machine = Accumulation(GradientAccumulationPlugin(num_steps=2, sync_each_batch=True), SimpleNamespace(current=None))
    assert [(machine.advance(), machine.defers_reduction) for _ in range(2)] == [(False, False), (True, False)]


def test_changing_the_number_of_steps_starts_a_new_window() -> None:
    machine = Accumulation(GradientAccumulationPlugin(num_steps=4), SimpleNamespace(current=None))
    machine.advance()
    machine.set_num_steps(2)
    assert [machine.advance() for _ in range(2)] == [False, True]


@pytest.mark.parametrize("wrong", [0, -1, 1.5, True, "2"])
def test_num_steps_must_be_a_positive_integer(wrong: object) -> None:
    with pytest.raises(ConfigurationError, match="num_steps"):
        GradientAccumulationPlugin(num_steps=wrong)  # type: ignore[arg-type]
