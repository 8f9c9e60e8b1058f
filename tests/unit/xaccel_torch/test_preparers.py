"""Which objects are claimed, and as what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from xaccel.stepping.scheduler import AcceleratedScheduler
from xaccel.testing.ranks import load_module
from xaccel_torch.preparers import ModelPreparer, OptimizerPreparer, SchedulerPreparer

runs = load_module(Path(__file__).parent / "torch_runs.py")


class OwnScheduler:
    """Not one of torch's, but made for an optimizer."""

    def __init__(self, optimizer: torch.optim.Optimizer):
        self.optimizer = optimizer
        self.steps = 0

    def step(self) -> None:
        self.steps += 1

    def state_dict(self) -> dict[str, Any]:
        return {"steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.steps = state["steps"]


def test_roles() -> None:
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    values = [model, optimizer, cosine, plateau, OwnScheduler(optimizer), torch.ones(1), None]
    for preparer, claimed in ((ModelPreparer(), [0]), (OptimizerPreparer(), [1]), (SchedulerPreparer(), [2, 3, 4])):
        assert [index for index, value in enumerate(values) if preparer.claims(value)] == claimed


def test_each_scheduler_follows_its_own_optimizer() -> None:
    accelerator = runs.accelerator_of()
    models = [torch.nn.Linear(1, 1) for _ in range(2)]
    optimizers = [torch.optim.SGD(model.parameters(), lr=1.0) for model in models]
    schedulers = [OwnScheduler(optimizer) for optimizer in optimizers]
    *_, first, second, one, two = accelerator.prepare(*models, *optimizers, *schedulers)
    assert isinstance(one, AcceleratedScheduler)
    assert (one.optimizers, two.optimizers) == ([first], [second])
    first.step_was_skipped = True
    one.step()
    two.step()
    assert [scheduler.steps for scheduler in schedulers] == [0, 1]
    assert accelerator.prepare(one) is one


def test_a_scheduler_made_for_the_prepared_optimizer() -> None:
    accelerator = runs.accelerator_of()
    model = torch.nn.Linear(1, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=1.0))
    scheduler = accelerator.prepare(torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5))
    accelerator.backward(model(torch.ones(1, 1)).sum())
    optimizer.step()
    scheduler.step()
    assert scheduler.get_last_lr() == [0.5]
    assert scheduler.optimizers == [optimizer]
