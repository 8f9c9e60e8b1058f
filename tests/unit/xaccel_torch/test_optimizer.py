"""The wrapped optimizer: steps on sync only, and is a torch optimizer to everybody else."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch

from xaccel.config.accumulation import GradientAccumulationPlugin
from xaccel.data.active import ActiveLoaders
from xaccel.stepping.accumulation import Accumulation
from xaccel_torch.optimizer import AcceleratedOptimizer
from xaccel_torch.precision.full import FullPrecision


def make(num_steps: int = 1) -> tuple[AcceleratedOptimizer, torch.nn.Parameter, Accumulation]:
    accumulation = Accumulation(GradientAccumulationPlugin(num_steps=num_steps), ActiveLoaders())
    weight = torch.nn.Parameter(torch.tensor(1.0))
    return AcceleratedOptimizer(torch.optim.SGD([weight], lr=0.5, momentum=0.9), accumulation, FullPrecision()), weight, accumulation


def test_off_sync_neither_steps_nor_clears() -> None:
    optimizer, weight, accumulation = make(num_steps=2)
    for expected_weight, cleared in ((1.0, False), (0.0, True)):
        accumulation.advance()
        weight.backward()
        optimizer.step()
        optimizer.zero_grad()
        assert float(weight.detach()) == expected_weight
        assert (weight.grad is None) is cleared
        assert not optimizer.step_was_skipped


def test_state_and_groups_are_the_users_own() -> None:
    optimizer, _, _ = make()
    inner = optimizer.optimizer
    assert isinstance(optimizer, torch.optim.Optimizer)
    assert optimizer.param_groups is inner.param_groups
    assert optimizer.state is inner.state
    assert optimizer.defaults is inner.defaults
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))], "lr": 0.1})
    assert len(inner.param_groups) == 2
    state = copy.deepcopy(optimizer.state_dict())
    state["param_groups"][0]["lr"] = 0.125
    optimizer.load_state_dict(state)
    assert inner.param_groups[0]["lr"] == 0.125
    with pytest.raises(AttributeError):
        optimizer.no_such_thing  # noqa: B018


def test_closures_and_hooks() -> None:
    optimizer, weight, _ = make()
    seen = []
    optimizer.register_step_post_hook(lambda *_: seen.append("stepped"))

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = weight * 2
        loss.backward()
        return loss

    optimizer.step(closure)
    assert float(weight.detach()) == 0.0
    assert seen == ["stepped"]


def test_torch_schedulers_take_it_without_a_warning() -> None:
    optimizer, weight, _ = make()
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
    weight.backward()
    optimizer.step()
    scheduler.step()  # warnings are errors here
    assert optimizer.param_groups[0]["lr"] == 0.25


def test_it_can_be_pickled_and_copied() -> None:
    optimizer, _, _ = make()
    assert pickle.loads(pickle.dumps(optimizer)).param_groups[0]["lr"] == 0.5
    assert copy.deepcopy(optimizer).param_groups[0]["momentum"] == 0.9
