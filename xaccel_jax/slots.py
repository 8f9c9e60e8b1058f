"""optax's state by slot: which leaves belong to a parameter, under which of torch's slot names, and what else there is."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from jax.tree_util import DictKey, GetAttrKey, SequenceKey

from xaccel_jax.definitions import Path

_SLOTS: dict[str, dict[str, str]] = {
    "ScaleByAdamState": {"mu": "exp_avg", "nu": "exp_avg_sq"},
    "ScaleByAmsgradState": {"mu": "exp_avg", "nu": "exp_avg_sq", "nu_max": "max_exp_avg_sq"},
    "ScaleByLionState": {"mu": "exp_avg"},
    "ScaleByRmsState": {"nu": "square_avg"},
    "ScaleByRmsWithCountState": {"nu": "square_avg"},
    "ScaleByRStdDevState": {"mu": "grad_avg", "nu": "square_avg"},
    "ScaleByRStdDevWithCountState": {"mu": "grad_avg", "nu": "square_avg"},
    "ScaleByRssState": {"sum_of_squares": "sum"},
    "ScaleByAdaDeltaState": {"e_g": "square_avg", "e_x": "acc_delta"},
    "TraceState": {"trace": "momentum_buffer"},
}
"""By type and field of optax's states. The same field means other things in other types (AdaBelief's `nu` is a variance), so an unknown type has
no counterpart."""
_OPTIONS = {"learning_rate": "lr", "decay": "alpha"}
_BETAS = ("b1", "b2")
CROSSING_OPTIONS = ("lr", "betas", "eps", "weight_decay", "momentum", "alpha", "rho")
"""torch's options that optax's transformations have too."""


@dataclasses.dataclass(frozen=True)
class SlotLeaf:
    """A leaf of the state that belongs to one parameter.

    Attributes:
        slot: torch's slot name, or `optax/<key path>` where torch has none.
        parameter: path of the parameter.
    """

    slot: str
    parameter: Path


def slot_leaves(state: Any, paths: Sequence[Any], parameters: Sequence[Path]) -> dict[Any, SlotLeaf]:
    """The leaves of an optax state that belong to parameters, by key path.

    A leaf belongs to a parameter if its key path ends in the parameter's path; the field before that, and the type that has it, say the slot.

    Args:
        state: the optax state.
        paths: key paths of its leaves.
        parameters: paths of the parameters.
    """
    known = set(parameters)
    found: dict[Any, SlotLeaf] = {}
    first: dict[tuple[str, Path], Any] = {}
    scaled: set[Path] = set()
    for path in paths:
        plain = tuple(_part(key) for key in path)
        # Parameters stand in nested dicts: a field `count` of a state is no parameter of that name.
        fields = 1 + max((place for place, key in enumerate(path) if not isinstance(key, DictKey)), default=0)
        place = next((place for place in range(fields, len(plain)) if plain[place:] in known), None)
        if place is None or plain[place - 1] == "hyperparams":
            continue
        parameter, foreign = plain[place:], "optax/" + "/".join(str(part) for part in plain[:place])
        slot = _SLOTS.get(type(_at(state, path[: place - 1])).__name__, {}).get(str(plain[place - 1]))
        if slot == "momentum_buffer" and parameter in scaled:
            slot = None  # optax's rmsprop sums up scaled updates where torch's sums up gradients
        if slot is not None and first.setdefault((slot, parameter), path) != path:
            slot = None  # the second of its kind
        scaled |= {parameter} if slot not in (None, "momentum_buffer") else set()
        found[path] = SlotLeaf(slot or foreign, parameter)
    return found


def _at(state: Any, path: Any) -> Any:
    """The part of a state that a key path leads to; `None` where a container of the user's own does not say how to go on."""
    for key in path:
        if isinstance(key, GetAttrKey):
            state = getattr(state, key.name)
        elif isinstance(key, (DictKey, SequenceKey)):
            state = state[_part(key)]
        else:
            return None
    return state


def _part(key: Any) -> Any:
    for attribute in ("key", "idx", "name"):
        value = getattr(key, attribute, None)
        if value is not None:
            return value
    return str(key)


def is_count(path: Any) -> bool:
    """Whether a leaf that belongs to no parameter counts steps."""
    return str(_part(path[-1])) == "count"


def is_hyperparameter(path: Any) -> bool:
    """Whether a leaf is a hyperparameter injected by `optax.inject_hyperparams`."""
    return len(path) >= 2 and str(_part(path[-2])) == "hyperparams"


def other_name(path: Any) -> str:
    """The stored name of a leaf that belongs to no parameter."""
    return "optax/" + "/".join(str(_part(key)) for key in path)


def options(hyperparameters: Mapping[str, float]) -> dict[str, Any]:
    """Injected hyperparameters under torch's option names.

    >>> options({"learning_rate": 0.1, "b1": 0.9, "b2": 0.99})
    {'lr': 0.1, 'betas': [0.9, 0.99]}
    """
    found: dict[str, Any] = {_OPTIONS.get(name, name): value for name, value in hyperparameters.items() if name not in _BETAS}
    if all(name in hyperparameters for name in _BETAS):
        found["betas"] = [hyperparameters[name] for name in _BETAS]
    else:
        found.update({name: hyperparameters[name] for name in _BETAS if name in hyperparameters})
    return found


def hyperparameters(groups: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The options of torch's groups under optax's names; those on which all groups agree.

    >>> hyperparameters([{"options": {"lr": 0.1, "betas": [0.9, 0.99]}}, {"options": {"lr": 0.2, "betas": [0.9, 0.99]}}])
    {'b1': 0.9, 'b2': 0.99}
    """
    back = {option: name for name, option in _OPTIONS.items()}
    found = {back.get(option, option): value for option, value in agreed_options(groups).items() if option != "betas"}
    found.update(dict(zip(_BETAS, agreed_options(groups).get("betas", ()), strict=False)))
    return found


def agreed_options(groups: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Options on which all groups agree."""
    every = [group["options"] for group in groups]
    return {option: value for option, value in every[0].items() if all(other.get(option) == value for other in every)} if every else {}


def differing_options(groups: Sequence[Mapping[str, Any]]) -> list[str]:
    """Options that optax knows too, on which groups do not agree."""
    agreed = agreed_options(groups)
    return [name for name in CROSSING_OPTIONS if name not in agreed and any(name in group["options"] for group in groups)]


def crossing(options_of_torch: Mapping[str, Any], injected: Sequence[str]) -> list[str]:
    """Options of a torch run, as `name=value`, that the transformation may have as well but does not let anyone set.

    >>> crossing({"lr": 0.1, "betas": [0.9, 0.99], "foreach": None, "momentum": 0}, ["learning_rate"])
    ['betas=[0.9, 0.99]', 'momentum=0']
    """
    settable = options(dict.fromkeys(injected, 0.0))
    return [f"{name}={options_of_torch[name]}" for name in CROSSING_OPTIONS if name in options_of_torch and name not in settable]
