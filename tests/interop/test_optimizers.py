"""Three steps in one framework and three in the other make the updates that six steps in either make.

In float64: in float32 the two frameworks' bias corrections round differently, by more than the bound.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("jax")

import jax
import jax.numpy as jnp
import optax
import torch

from xaccel_jax import slots as jax_slots
from xaccel_torch import slots as torch_slots

PATHS = (("a",), ("b", 0))
NAMES = {("a",): "a", ("b", 0): "b.0"}
SHAPES = {("a",): (3, 2), ("b", 0): (4,)}
STEPS = 3

Arrays = dict[Any, np.ndarray]
State = tuple[dict[tuple[str, Any], np.ndarray], int]
"""(slot, parameter) -> values, and the number of steps."""


def draw(step: int) -> Arrays:
    """Start values for step -1, and the gradients of each step."""
    generator = np.random.default_rng(step + 1)
    return {path: generator.standard_normal(SHAPES[path]) for path in PATHS}


def nested(values: Arrays) -> dict[str, Any]:
    return {"a": jnp.asarray(values["a",]), "b": {0: jnp.asarray(values["b", 0])}}


def torch_steps(make: Callable[[Any], torch.optim.Optimizer], values: Arrays, state: State | None, steps: range) -> tuple[Arrays, State]:
    parameters = {path: torch.nn.Parameter(torch.from_numpy(values[path].copy())) for path in PATHS}
    optimizer = make(list(parameters.values()))
    if state is not None:
        for (slot, path), value in state[0].items():
            entry = torch_slots.live_entry(slot)
            assert entry is not None
            optimizer.state[parameters[path]][entry] = torch.from_numpy(value.copy())
        if torch_slots.counts_steps(optimizer):
            for parameter in parameters.values():
                optimizer.state[parameter]["step"] = torch_slots.step_tensor(parameter, optimizer.param_groups[0], state[1])
    for step in steps:
        for path, gradient in draw(step).items():
            parameters[path].grad = torch.from_numpy(gradient)
        optimizer.step()
    found = {
        (torch_slots.stored_slot(entry), path): value.numpy().copy()
        for path, parameter in parameters.items()
        for entry, value in torch_slots.array_entries(optimizer.state[parameter]).items()
    }
    return {path: parameter.detach().numpy().copy() for path, parameter in parameters.items()}, (found, steps.stop)


def jax_steps(transformation: Any, values: Arrays, state: State | None, steps: range) -> tuple[Arrays, State]:
    parameters = nested(values)
    live = transformation.init(parameters)
    with_paths, tree = jax.tree_util.tree_flatten_with_path(live)
    belongs = jax_slots.slot_leaves(live, [path for path, _ in with_paths], PATHS)

    def given(path: Any, leaf: Any) -> Any:
        if state is None:
            return leaf
        slot = belongs.get(path)
        return jnp.full_like(leaf, state[1]) if slot is None else jnp.asarray(state[0][slot.slot, slot.parameter])

    live = jax.tree.unflatten(tree, [given(path, leaf) for path, leaf in with_paths])
    for step in steps:
        updates, live = transformation.update(nested(draw(step)), live, parameters)
        parameters = optax.apply_updates(parameters, updates)
    found = {
        (belongs[path].slot, belongs[path].parameter): np.array(leaf)
        for path, leaf in jax.tree_util.tree_flatten_with_path(live)[0]
        if path in belongs
    }
    return {("a",): np.array(parameters["a"]), ("b", 0): np.array(parameters["b"][0])}, (found, steps.stop)


PAIRS: dict[str, tuple[Callable[[Any], torch.optim.Optimizer], Any]] = {
    "adam": (lambda each: torch.optim.Adam(each, 0.1), optax.adam(0.1)),
    "adamw": (lambda each: torch.optim.AdamW(each, 0.1, weight_decay=0.2), optax.adamw(0.1, weight_decay=0.2)),
    "sgd": (lambda each: torch.optim.SGD(each, 0.1), optax.sgd(0.1)),
    "momentum": (lambda each: torch.optim.SGD(each, 0.1, momentum=0.9), optax.sgd(0.1, momentum=0.9)),
    "nesterov": (lambda each: torch.optim.SGD(each, 0.1, momentum=0.9, nesterov=True), optax.sgd(0.1, momentum=0.9, nesterov=True)),
    "rmsprop": (lambda each: torch.optim.RMSprop(each, 0.1), optax.rmsprop(0.1, decay=0.99, eps_in_sqrt=False)),
    "centered": (
        lambda each: torch.optim.RMSprop(each, 0.1, centered=True),
        optax.rmsprop(0.1, decay=0.99, centered=True, eps_in_sqrt=False),
    ),
    "adagrad": (
        lambda each: torch.optim.Adagrad(each, 0.1, initial_accumulator_value=0.1),
        optax.adagrad(0.1, initial_accumulator_value=0.1, eps=1e-10),
    ),
    "adadelta": (lambda each: torch.optim.Adadelta(each, 0.5, rho=0.9, eps=1e-6), optax.adadelta(0.5, rho=0.9, eps=1e-6)),
}


@pytest.fixture(autouse=True)
def float64() -> Iterator[None]:
    with jax.enable_x64(True):
        yield


@pytest.mark.parametrize("name", PAIRS)
def test_the_state_crosses(name: str) -> None:
    make, transformation = PAIRS[name]
    before, after = range(STEPS), range(STEPS, 2 * STEPS)
    start = draw(-1)
    whole, _ = torch_steps(make, start, None, range(2 * STEPS))
    values, state = torch_steps(make, start, None, before)
    crossed, their_state = jax_steps(transformation, values, state, after)
    values, state = jax_steps(transformation, start, None, before)
    back, own_state = torch_steps(make, values, state, after)
    for path in PATHS:
        assert np.allclose(crossed[path], whole[path], rtol=1e-9, atol=1e-12), f"torch, then optax: {NAMES[path]}"
        assert np.allclose(back[path], whole[path], rtol=1e-9, atol=1e-12), f"optax, then torch: {NAMES[path]}"
    assert their_state[0].keys() == own_state[0].keys()
    for key, value in own_state[0].items():
        assert np.allclose(their_state[0][key], value, rtol=1e-9, atol=1e-12), key


def test_lion_crosses_between_optax_alone() -> None:
    """torch has no Lion; its slot is stored as torch's Adam names it."""
    start = draw(-1)
    whole, _ = jax_steps(optax.lion(0.1), start, None, range(2 * STEPS))
    values, state = jax_steps(optax.lion(0.1), start, None, range(STEPS))
    assert {slot for slot, _ in state[0]} == {"exp_avg"}
    again, _ = jax_steps(optax.lion(0.1), values, state, range(STEPS, 2 * STEPS))
    assert all(np.array_equal(again[path], whole[path]) for path in PATHS)
