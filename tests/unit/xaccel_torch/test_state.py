"""Models, optimizers and registered objects as canonical tensors, and back."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch

from xaccel.checkpoint.object_state import ObjectState
from xaccel.checkpoint.values import decode, encode
from xaccel.errors import UnsupportedError
from xaccel.process.topology import ProcessTopology
from xaccel_torch.arrays import TorchArrays
from xaccel_torch.state import TorchState, full_state_dict

STATE = TorchState(ProcessTopology(device=torch.device("cpu"), device_kind="cpu", backend="torch"))


@dataclasses.dataclass
class Bare:
    """Stands for a prepared optimizer."""

    optimizer: torch.optim.Optimizer


def saved(state: ObjectState) -> tuple[dict[str, Any], dict[str, np.ndarray], Any]:
    """What a checkpoint would hold."""
    records = {record.name: record for record in state.describe()}
    arrays = {name: np.array(state.read(name, bounds)) for name, record in records.items() for bounds in record.owned}
    return records, arrays, encode(state.scalars(), "state", lambda value: np.asarray(value) if isinstance(value, torch.Tensor) else value)


def load(state: ObjectState, checkpoint: tuple[dict[str, Any], dict[str, np.ndarray], Any]) -> list[str]:
    records, arrays, scalars = checkpoint
    wanted = {each.name for each in state.wanted(records)}
    assert wanted <= records.keys(), wanted - records.keys()

    def read(name: str, bounds: Any) -> np.ndarray:
        return arrays[name][tuple(slice(*pair) for pair in bounds)]

    return state.load(read, decode(scalars, TorchArrays().from_numpy))


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    x = torch.linspace(-1, 1, 12).reshape(4, 3)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    for _ in range(steps):
        optimizer.step(closure)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.01),
    "amsgrad": lambda parameters: torch.optim.Adam(parameters, lr=0.01, amsgrad=True),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters),
    "rmsprop": lambda parameters: torch.optim.RMSprop(parameters, momentum=0.5, centered=True),
    "adadelta": lambda parameters: torch.optim.Adadelta(parameters),
    "adamax": lambda parameters: torch.optim.Adamax(parameters),
    "nadam": lambda parameters: torch.optim.NAdam(parameters),
    "radam": lambda parameters: torch.optim.RAdam(parameters),
    "asgd": lambda parameters: torch.optim.ASGD(parameters),
    "rprop": lambda parameters: torch.optim.Rprop(parameters),
    "adafactor": lambda parameters: torch.optim.Adafactor(parameters),
    "lbfgs": lambda parameters: torch.optim.LBFGS(parameters, max_iter=3),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_run_goes_on_as_if_it_had_not_stopped(name: str) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    optimizer = OPTIMIZERS[name](model.parameters())
    train(model, optimizer, 3)
    checkpoint = saved(STATE.model(model)), saved(STATE.optimizer(Bare(optimizer), [model]))
    train(model, optimizer, 3)

    other = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    fresh = OPTIMIZERS[name](other.parameters())  # its slots do not exist yet
    assert load(STATE.model(other), checkpoint[0]) == []
    assert load(STATE.optimizer(Bare(fresh), [other]), checkpoint[1]) == []
    train(other, fresh, 3)
    for mine, theirs in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_the_layout_of_optimizer_scalars() -> None:
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.AdamW([{"params": [model.weight]}, {"params": [model.bias], "weight_decay": 0.0}], lr=0.5)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    state = STATE.optimizer(Bare(optimizer), [model])
    scalars = state.scalars()
    assert sorted(record.name for record in state.describe()) == ["exp_avg/bias", "exp_avg/weight", "exp_avg_sq/bias", "exp_avg_sq/weight"]
    assert scalars.keys() == {"type", "groups", "steps"}
    assert scalars["type"] == "AdamW"
    assert scalars["steps"] == {"weight": 1, "bias": 1}
    assert [group["params"] for group in scalars["groups"]] == [["weight"], ["bias"]]
    assert scalars["groups"][1]["options"]["weight_decay"] == 0.0
    assert scalars["groups"][0]["options"]["betas"] == (0.9, 0.999)


def test_options_unknown_to_either_side_are_reported_and_defaults_stay() -> None:
    model = torch.nn.Linear(2, 1)
    records, arrays, scalars = saved(STATE.optimizer(Bare(torch.optim.SGD(model.parameters(), lr=0.25)), [model]))
    del scalars["groups"][0]["options"]["nesterov"]
    scalars["groups"][0]["options"]["turbo"] = 1
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    lost = load(STATE.optimizer(Bare(optimizer), [model]), (records, arrays, scalars))
    assert len(lost) == 2
    assert "turbo" in lost[0]
    assert "nesterov" in lost[1]
    assert optimizer.param_groups[0]["lr"] == 0.25
    assert optimizer.param_groups[0]["nesterov"] is False


def test_int64_and_bf16_keep_their_bits_and_a_float_buffer_converts() -> None:
    model = torch.nn.Module()
    model.register_buffer("count", torch.tensor([2**40 + 1]))
    model.register_buffer("low", torch.tensor([1.0, -2.5, 3e38, 1e-40, float("nan")], dtype=torch.bfloat16))
    checkpoint = saved(STATE.model(model))
    other = torch.nn.Module()
    other.register_buffer("count", torch.tensor([0]))
    other.register_buffer("low", torch.zeros(5, dtype=torch.bfloat16))
    load(STATE.model(other), checkpoint)
    assert other.count.item() == 2**40 + 1
    assert torch.equal(other.low.view(torch.int16), model.low.view(torch.int16))
    other.low = torch.zeros(5)
    load(STATE.model(other), checkpoint)
    assert torch.equal(other.low[:4], model.low.float()[:4])
    assert other.low[4].isnan()


class Extra(torch.nn.Module):
    def __init__(self, value: Any) -> None:
        super().__init__()
        self.value = value

    def get_extra_state(self) -> Any:
        return self.value

    def set_extra_state(self, state: Any) -> None:
        self.value = state


def test_extra_state_crosses() -> None:
    model = torch.nn.Sequential(Extra({"seen": (1, 2), 3: torch.tensor([1.5])}))
    other = torch.nn.Sequential(Extra(None))
    assert load(STATE.model(other), saved(STATE.model(model))) == []
    assert other[0].value["seen"] == (1, 2)
    assert torch.equal(other[0].value[3], torch.tensor([1.5]))
    assert load(STATE.model(torch.nn.Sequential()), saved(STATE.model(model))) == [
        "extra state of module '0': in only one of checkpoint and model"
    ]


def test_extra_state_that_no_checkpoint_holds_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="extra state of module '0' is a object"):
        STATE.model(torch.nn.Sequential(Extra(object()))).scalars()


class Holder:
    def __init__(self, state: Any):
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.state = state


def test_a_registered_object_gets_back_what_it_gave() -> None:
    state = {"ema": [torch.ones(2, 3), {"n": 4}], "table": np.arange(3), 7: "seven", "best": float("inf"), "pair": (1, 2)}
    holder = Holder(None)
    load(STATE.registered(holder), saved(STATE.registered(Holder(state))))
    assert torch.equal(holder.state["ema"][0], torch.ones(2, 3))
    assert isinstance(holder.state["table"], np.ndarray)
    assert holder.state["table"].tolist() == [0, 1, 2]
    assert (holder.state["ema"][1], holder.state[7], holder.state["best"], holder.state["pair"]) == (
        {"n": 4},
        "seven",
        float("inf"),
        (1, 2),
    )


def test_random_states_return() -> None:
    def draw() -> tuple[float, float, float]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))

    checkpoint = saved(STATE.rng())
    first = draw()
    assert draw() != first
    load(STATE.rng(), checkpoint)
    assert draw() == first


def test_each_tensor_has_one_owner() -> None:
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(3)))
    owned = []
    for index in range(2):
        topology = ProcessTopology(
            process_index=index,
            num_processes=2,
            num_local_processes=2,
            local_process_index=index,
            device="cpu",
            device_kind="cpu",
            backend="torch",
        )
        owned.append({record.name for record in TorchState(topology).model(model).describe() if record.owned})
    assert not owned[0] & owned[1]
    assert owned[0] | owned[1] == set(model.state_dict())
    assert owned[0]
    assert owned[1]


def test_full_state_dict_has_tied_names_twice() -> None:
    model = torch.nn.Module()
    model.a = torch.nn.Linear(2, 2, bias=False)
    model.b = model.a
    assert sorted(full_state_dict(torch.compile(model, backend="eager"))) == ["a.weight", "b.weight"]
