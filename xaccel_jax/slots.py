"""optax's state by slot: which leaves belong to a parameter, under which of torch's slot names, and what else there is."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from xaccel_jax.definitions import Path

_SLOTS = {"mu": "exp_avg", "nu": "exp_avg_sq", "nu_max": "max_exp_avg_sq", "trace": "momentum_buffer", "sum_of_squares": "sum"}
_OPTIONS = {"learning_rate": "lr", "weight_decay": "weight_decay", "eps": "eps", "momentum": "momentum"}
_BETAS = ("b1", "b2")


@dataclasses.dataclass(frozen=True)
class SlotLeaf:
    """A leaf of the state that belongs to one parameter.

    Attributes:
        slot: torch's slot name, or `optax/<key path>` where torch has none.
        parameter: path of the parameter.
    """

    slot: str
    parameter: Path


def slot_leaves(paths: Sequence[Any], parameters: Sequence[Path]) -> dict[Any, SlotLeaf]:
    """The leaves of an optax state that belong to parameters, by key path.

    A leaf belongs to a parameter if its key path ends in the parameter's path; the field before that names the slot.
    """
    known = set(parameters)
    found = {}
    for path in paths:
        plain = tuple(_part(key) for key in path)
        place = next((place for place in range(len(plain)) if plain[place:] in known), None)
        if place is not None and place > 0:
            found[path] = (plain[:place], plain[place:])
    prefixes = {prefix for prefix, _ in found.values()}
    return {path: SlotLeaf(_slot(prefix, prefixes), parameter) for path, (prefix, parameter) in found.items()}


def _slot(prefix: tuple[Any, ...], prefixes: set[tuple[Any, ...]]) -> str:
    field = str(prefix[-1])
    alone = (*prefix[:-1], "mu") not in prefixes
    if field == "nu" and alone:
        return "square_avg"  # RMSprop keeps only this; Adam has mu beside it
    if field in _SLOTS and sum(1 for other in prefixes if other[-1] == field) == 1:
        return _SLOTS[field]
    return "optax/" + "/".join(str(part) for part in prefix)


def _part(key: Any) -> Any:
    for attribute in ("key", "idx", "name"):
        value = getattr(key, attribute, None)
        if value is not None:
            return value
    return str(key)


def is_count(path: Any) -> bool:
    """Whether a leaf counts steps."""
    return str(_part(path[-1])) == "count"


def is_hyperparameter(path: Any) -> bool:
    """Whether a leaf is a hyperparameter injected by `optax.inject_hyperparams`."""
    return len(path) >= 2 and str(_part(path[-2])) == "hyperparams"


def other_name(path: Any) -> str:
    """The stored name of a leaf that belongs to no parameter."""
    return "optax/" + "/".join(str(_part(key)) for key in path)


def options(hyperparameters: Mapping[str, float]) -> dict[str, Any]:
    """Injected hyperparameters under torch's option names."""
    found: dict[str, Any] = {_OPTIONS.get(name, name): value for name, value in hyperparameters.items() if name not in _BETAS}
    if all(name in hyperparameters for name in _BETAS):
        found["betas"] = [hyperparameters[name] for name in _BETAS]
    return found


def hyperparameters(given: Mapping[str, Any]) -> dict[str, Any]:
    """torch's options under optax's names."""
    back = {option: name for name, option in _OPTIONS.items()}
    found = {back.get(option, option): value for option, value in given.items() if option != "betas"}
    found.update(dict(zip(_BETAS, given.get("betas", ()), strict=False)))
    return found


def key_string(path: Any) -> str:
    """A key path as text, for messages."""
    return jax.tree_util.keystr(path)
