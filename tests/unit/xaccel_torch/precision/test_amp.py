"""Autocast and the loss scale."""

from __future__ import annotations

import copy
import inspect
import pickle

import pytest
import torch

from xaccel.config.handlers import AutocastKwargs, GradScalerKwargs
from xaccel_torch.precision.amp import AutocastPrecision, ScaledPrecision, to_float32


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(2, 2)
        self.seen: torch.dtype | None = None

    def forward(self, x: torch.Tensor, *, twice: bool = False) -> dict[str, torch.Tensor]:
        y = self.fc(x)
        self.seen = y.dtype
        return {"y": y + y if twice else y, "count": torch.tensor(2)}


@pytest.mark.parametrize(("precision", "dtype"), [(AutocastPrecision("cpu"), torch.bfloat16), (ScaledPrecision("cpu"), torch.float16)])
def test_a_model_computes_in_half_precision_and_answers_in_float32(precision: AutocastPrecision, dtype: torch.dtype) -> None:
    model = precision.convert(Net())
    outputs = model(torch.ones(1, 2), twice=True)
    assert model.seen is dtype
    assert outputs["y"].dtype is torch.float32
    assert outputs["count"].dtype is torch.int64
    assert model.fc.weight.dtype is torch.float32
    assert precision.convert(model) is model
    assert not hasattr(model.forward.forward, "forward"), "converted once only"


def test_a_converted_model_keeps_its_signature_and_can_be_pickled_and_copied() -> None:
    model = AutocastPrecision("cpu").convert(Net())
    assert list(inspect.signature(model.forward).parameters) == ["x", "twice"]
    x = torch.ones(1, 2)
    for twin in (pickle.loads(pickle.dumps(model)), copy.deepcopy(model)):
        assert torch.equal(twin(x)["y"], model(x)["y"])
        torch.nn.init.zeros_(twin.fc.weight)
        assert not torch.equal(twin(x)["y"], model(x)["y"]), "the twin computes with its own weights"


def test_restore_gives_the_users_forward_back() -> None:
    precision = AutocastPrecision("cpu")
    model = precision.convert(Net())
    precision.restore(model)
    assert "forward" not in model.__dict__
    assert model(torch.ones(1, 2))["y"].dtype is torch.float32
    assert model.seen is torch.float32


def test_autocast_may_be_switched_off() -> None:
    model = AutocastPrecision("cpu", AutocastKwargs(enabled=False)).convert(Net())
    model(torch.ones(1, 2))
    assert model.seen is torch.float32
    with AutocastPrecision("cpu").autocast(AutocastKwargs(enabled=False)):
        assert not torch.is_autocast_enabled("cpu")
    with AutocastPrecision("cpu").autocast():
        assert torch.is_autocast_enabled("cpu")


def test_to_float32_leaves_the_rest() -> None:
    outputs = to_float32([torch.ones(1, dtype=torch.float16), (torch.ones(1, dtype=torch.float64), "text", None)])
    assert [outputs[0].dtype, outputs[1][0].dtype, *outputs[1][1:]] == [torch.float32, torch.float64, "text", None]


def stepper(**options: float) -> tuple[ScaledPrecision, torch.nn.Parameter, torch.optim.Optimizer]:
    weight = torch.nn.Parameter(torch.tensor(1.0))
    precision = ScaledPrecision("cpu", None, GradScalerKwargs(init_scale=16.0, **options))  # type: ignore[arg-type]
    return precision, weight, torch.optim.SGD([weight], lr=1.0)


def test_an_overflow_skips_the_step_and_halves_the_scale() -> None:
    precision, weight, optimizer = stepper()
    precision.scale(weight * float("inf")).backward()
    assert not precision.step(optimizer)
    optimizer.zero_grad()
    precision.forget(optimizer)
    assert float(weight.detach()) == 1.0
    assert precision.state_dict()["scale"] == 8.0
    precision.scale(weight * 0.5).backward()
    assert precision.step(optimizer)
    assert float(weight.detach()) == 0.5


def test_the_scale_grows_and_its_state_crosses() -> None:
    precision, weight, optimizer = stepper(growth_interval=2)
    for _ in range(3):
        precision.scale(weight * 0.25).backward()
        precision.step(optimizer)
        optimizer.zero_grad()
        precision.forget(optimizer)
    state = precision.state_dict()
    assert (state["scale"], state["_growth_tracker"]) == (32.0, 1)
    other, _, _ = stepper(growth_interval=2)
    other.load_state_dict(state)
    assert other.state_dict() == state


def test_a_step_without_gradients_or_twice_in_a_row() -> None:
    precision, weight, optimizer = stepper()
    assert precision.step(optimizer)
    precision.scale(weight * 0.25).backward()
    assert precision.step(optimizer)
    assert precision.step(optimizer)  # the same gradients once more, unscaled once
    assert float(weight.detach()) == 0.5


def test_a_disabled_scaler_steps() -> None:
    precision, weight, optimizer = stepper(enabled=False)
    precision.scale(weight * 0.25).backward()
    assert precision.step(optimizer)
    assert float(weight.detach()) == 0.75
    assert precision.state_dict() == {}
