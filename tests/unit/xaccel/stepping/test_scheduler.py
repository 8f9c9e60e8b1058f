"""A scheduler moves with real optimizer steps, and never beyond its end."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from xaccel.config.accumulation import GradientAccumulationPlugin
from xaccel.stepping.accumulation import Accumulation
from xaccel.stepping.scheduler import AcceleratedScheduler


class Schedule:
    """Counts its moves; refuses to go beyond its end, as OneCycleLR does."""

    def __init__(self, total_steps: int | None = None):
        self.last_epoch = 0
        self._step_count = 1
        if total_steps is not None:
            self.total_steps = total_steps

    def step(self) -> None:
        self.last_epoch += 1
        self._step_count += 1
        if self.last_epoch > getattr(self, "total_steps", self.last_epoch):
            raise ValueError("beyond the end")

    def get_last_lr(self) -> list[float]:
        return [0.1 / (1 + self.last_epoch)]

    def state_dict(self) -> dict[str, Any]:
        return {"last_epoch": self.last_epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.last_epoch = state["last_epoch"]


def make(
    schedule: Schedule, *, num_steps: int = 1, replicas: int = 1, skipped: bool = False, **options: Any
) -> tuple[AcceleratedScheduler, Accumulation]:
    accumulation = Accumulation(GradientAccumulationPlugin(num_steps=num_steps), SimpleNamespace(current=None))
    optimizer = SimpleNamespace(step_was_skipped=skipped)
    return AcceleratedScheduler(schedule, [optimizer], accumulation=accumulation, num_replicas=replicas, **options), accumulation


@pytest.mark.parametrize(
    ("replicas", "options", "moves"),
    [
        (1, {}, 1),
        (4, {}, 4),  # case 9
        (4, {"split_batches": True}, 1),
        (4, {"step_with_optimizer": False}, 1),
    ],
)
def test_moves_per_optimizer_step(replicas: int, options: dict[str, Any], moves: int) -> None:
    schedule = Schedule()
    scheduler, _ = make(schedule, replicas=replicas, **options)
    scheduler.step()
    assert schedule.last_epoch == moves


def test_no_move_on_accumulation_steps() -> None:
    schedule = Schedule()
    scheduler, accumulation = make(schedule, num_steps=3)
    moved = []
    for _ in range(6):
        accumulation.advance()
        scheduler.step()
        moved.append(schedule.last_epoch)
    assert moved == [0, 0, 1, 1, 1, 2]


def test_no_move_on_a_skipped_step() -> None:
    schedule = Schedule()
    scheduler, _ = make(schedule, skipped=True)
    scheduler.step()
    assert schedule.last_epoch == 0


def test_never_beyond_total_steps() -> None:
    """Case 10: OneCycleLR with 10 steps, 4 replicas."""
    schedule = Schedule(total_steps=10)
    scheduler, _ = make(schedule, replicas=4)
    for _ in range(4):
        scheduler.step()
    assert schedule.last_epoch == 10


def test_half_way_when_it_steps_by_itself() -> None:
    """Case C-51: 100 steps, 4 replicas, the flag off."""
    schedule = Schedule(total_steps=100)
    scheduler, _ = make(schedule, replicas=4, step_with_optimizer=False)
    for _ in range(50):
        scheduler.step()
    assert schedule.last_epoch == 50


def test_everything_else_is_the_wrapped_scheduler_s() -> None:
    schedule = Schedule(total_steps=7)
    scheduler, _ = make(schedule)
    scheduler.load_state_dict({"last_epoch": 1})
    assert scheduler.get_last_lr() == [0.05]
    assert scheduler.state_dict() == {"last_epoch": 1}
    assert scheduler.total_steps == 7
