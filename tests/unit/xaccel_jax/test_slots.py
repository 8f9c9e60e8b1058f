"""optax's states under torch's slot names."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
import pytest

from xaccel_jax import slots

PARAMETERS = {"fc": {"kernel": jnp.ones((2, 3)), "bias": jnp.ones(3)}, "mu": jnp.ones(2)}
PATHS = (("fc", "kernel"), ("fc", "bias"), ("mu",))


def named(transformation: Any) -> dict[str, list[tuple[Any, ...]]]:
    """Slot -> the parameters that have it."""
    state = transformation.init(PARAMETERS)
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(state)[0]]
    found: dict[str, list[tuple[Any, ...]]] = {}
    for leaf in slots.slot_leaves(state, paths, PATHS).values():
        found.setdefault(leaf.slot, []).append(leaf.parameter)
    return {slot: sorted(parameters) for slot, parameters in found.items()}


EVERY = sorted(PATHS)
BOTH_MOMENTS = {"exp_avg": EVERY, "exp_avg_sq": EVERY}


@pytest.mark.parametrize(
    ("transformation", "expected"),
    [
        (optax.sgd(0.1), {}),
        (optax.sgd(0.1, momentum=0.9, nesterov=True), {"momentum_buffer": EVERY}),
        (optax.sgd(optax.linear_schedule(1.0, 0.0, 3), momentum=0.9), {"momentum_buffer": EVERY}),
        (optax.adam(0.1), BOTH_MOMENTS),
        (optax.adamw(0.1), BOTH_MOMENTS),
        (optax.amsgrad(0.1), {**BOTH_MOMENTS, "max_exp_avg_sq": EVERY}),
        (optax.lion(0.1), {"exp_avg": EVERY}),
        (optax.rmsprop(0.1), {"square_avg": EVERY}),
        (optax.rmsprop(0.1, bias_correction=True), {"square_avg": EVERY}),
        (optax.rmsprop(0.1, centered=True), {"square_avg": EVERY, "grad_avg": EVERY}),
        (optax.adagrad(0.1), {"sum": EVERY}),
        (optax.adadelta(0.1), {"square_avg": EVERY, "acc_delta": EVERY}),
        (optax.inject_hyperparams(optax.adamw)(0.1), BOTH_MOMENTS),
        (optax.chain(optax.clip(1.0), optax.adam(0.1)), BOTH_MOMENTS),
        (optax.apply_if_finite(optax.adam(0.1), 3), BOTH_MOMENTS),
        (optax.masked(optax.adam(0.1), {"fc": True, "mu": False}), dict.fromkeys(BOTH_MOMENTS, EVERY[:2])),
        (optax.multi_transform({"a": optax.adam(0.1), "b": optax.adam(0.2)}, {"fc": "a", "mu": "b"}), BOTH_MOMENTS),
    ],
)
def test_slots_are_named_as_torch_names_them(transformation: Any, expected: dict[str, list[tuple[Any, ...]]]) -> None:
    assert named(transformation) == expected


def test_rmsprop_sums_up_scaled_updates_which_torch_does_not() -> None:
    """Its trace holds -lr times torch's buffer, and lr is not to be read."""
    assert named(optax.rmsprop(0.1, momentum=0.9)) == {"square_avg": EVERY, "optax/2/trace": EVERY}


def test_a_field_of_the_same_name_in_another_state_is_not_taken_for_a_slot() -> None:
    """AdaBelief's `nu` is the variance of the gradient around `mu`."""
    assert named(optax.adabelief(0.1)) == {"optax/0/mu": EVERY, "optax/0/nu": EVERY}


def test_of_two_states_of_one_kind_the_second_has_no_counterpart() -> None:
    twice = optax.chain(optax.scale_by_adam(), optax.scale_by_adam())
    assert named(twice) == {**BOTH_MOMENTS, "optax/1/mu": EVERY, "optax/1/nu": EVERY}


def test_counts_and_hyperparameters_belong_to_no_parameter() -> None:
    state = optax.inject_hyperparams(optax.adamw)(0.1).init(PARAMETERS)
    paths = [path for path, _ in jax.tree_util.tree_flatten_with_path(state)[0]]
    others = [path for path in paths if path not in slots.slot_leaves(state, paths, PATHS)]
    assert [slots.other_name(path) for path in others if slots.is_count(path)] == ["optax/count", "optax/inner_state/0/count"]
    rates = {slots.other_name(path) for path in others if slots.is_hyperparameter(path)}
    assert "optax/hyperparams/learning_rate" in rates
    assert len(others) == len(rates) + 2


def test_options_cross_and_come_back() -> None:
    injected = {"learning_rate": 0.1, "b1": 0.8, "b2": 0.9, "eps": 1e-6, "weight_decay": 0.2}
    options = slots.options(injected)
    assert options == {"lr": 0.1, "betas": [0.8, 0.9], "eps": 1e-6, "weight_decay": 0.2}
    assert slots.hyperparameters([{"options": options}]) == injected
    assert slots.options({"b1": 0.8}) == {"b1": 0.8}
    assert slots.hyperparameters([]) == {}


def test_groups_that_disagree_are_named() -> None:
    groups = [{"options": {"lr": 0.1, "weight_decay": 0.0}}, {"options": {"lr": 0.1, "weight_decay": 0.5}}]
    assert slots.agreed_options(groups) == {"lr": 0.1}
    assert slots.differing_options(groups) == ["weight_decay"]
