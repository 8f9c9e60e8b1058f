"""What the user's model is, apart from its values: how to split it into leaves, call it on leaves, and give it back.

Leaves are flat and named by path: parameters, which are trained, and the rest: batch statistics, random streams, any other variables.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import flax.linen as nn
import jax
import numpy as np
from flax import nnx

from xaccel.errors import UnsupportedError

Path = tuple[str | int, ...]
Leaves = Sequence[Any]


class Definition(Protocol):
    """One for each library of models.

    Attributes:
        module: the user's object, for look-ups of layer types.
        param_paths, rest_paths: names of the leaves, in their order.
        kinds: kind of each leaf by path: "params", "batch_stats", "rng", …
        initial: the leaves as the user made them: (params, rest).
    """

    module: Any
    param_paths: tuple[Path, ...]
    rest_paths: tuple[Path, ...]
    kinds: dict[Path, str]
    initial: tuple[list[Any], list[Any]]

    def call(
        self, params: Leaves, rest: Leaves, training: bool | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, list[Any]]:
        """The model's outputs and its rest afterwards; traceable, without side effects.

        `training` is what `train()` or `eval()` said, `None` before either was called.
        """

    def rebuild(self, params: Leaves, rest: Leaves) -> Any:
        """The user's kind of object with these values."""


def define(model: Any) -> Definition | None:
    """The definition of a model that one of the libraries knows, else `None`."""
    if isinstance(model, nnx.Module):
        return NnxDefinition(model)
    if isinstance(model, nn.Module) and model.scope is not None:
        return LinenDefinition(model)
    return None


def is_model(value: Any) -> bool:
    """Whether `define` knows the value.

    Raises:
        UnsupportedError: a Linen module that is not bound to its variables.
    """
    if isinstance(value, nn.Module) and value.scope is None:
        raise UnsupportedError(f"{type(value).__name__} is a Linen module without variables: prepare module.bind(variables)")
    return isinstance(value, (nnx.Module, nn.Module))


def _plain(path: Any) -> Path:
    """A key path as strings and integers."""
    found: list[str | int] = []
    for key in path:
        for attribute in ("key", "idx", "name"):
            if attribute in getattr(key, "__dataclass_fields__", ()) or getattr(key, attribute, None) is not None:
                found.append(getattr(key, attribute))
                break
    # A Variable's value stands under an attribute of its own that says nothing; an attention's projection `value` is another matter.
    last = path[-1] if path else None
    return tuple(found[:-1] if isinstance(last, jax.tree_util.GetAttrKey) and last.name in ("value", "raw_value") else found)


class NnxDefinition:
    """Flax NNX modules: any `Variable`; shared variables are one leaf."""

    def __init__(self, module: nnx.Module):
        self.module = module
        graph, params, rest = _split(module)
        self._graphs = {None: graph, **_graphs_of_modes(module)}
        param_paths, params_tree = _flat(params)
        rest_paths, rest_tree = _flat(rest)
        self._trees = (params_tree, rest_tree)
        self.param_paths, self.rest_paths = tuple(param_paths), tuple(rest_paths)
        self.initial = (jax.tree.leaves(params), jax.tree.leaves(rest))
        variables = dict(nnx.to_flat_state(nnx.state(module)))
        self.kinds = {path: _kind(variables[path]) for path in (*self.param_paths, *self.rest_paths)}

    def call(
        self, params: Leaves, rest: Leaves, training: bool | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, list[Any]]:
        states = [jax.tree.unflatten(tree, list(leaves)) for tree, leaves in zip(self._trees, (params, rest), strict=True)]
        # copy=True: the merged module must not hold variables of another trace level.
        module = nnx.merge(self._graphs[training], *states, copy=True)
        outputs = module(*args, **kwargs)  # type: ignore[operator]
        return outputs, jax.tree.leaves(_split(module)[2])

    def rebuild(self, params: Leaves, rest: Leaves) -> nnx.Module:
        states = [jax.tree.unflatten(tree, list(leaves)) for tree, leaves in zip(self._trees, (params, rest), strict=True)]
        return nnx.merge(self._graphs[None], *states, copy=True)


def _split(module: nnx.Module) -> tuple[Any, Any, Any]:
    """Graph, parameters, and everything else."""
    parts: Any = nnx.split(module, nnx.Param, ...)
    return parts


def _flat(state: Any) -> tuple[list[Path], Any]:
    with_paths, tree = jax.tree_util.tree_flatten_with_path(state)
    return [_plain(path) for path, _ in with_paths], tree


def _graphs_of_modes(module: nnx.Module) -> dict[bool | None, Any]:
    """The graph in training and in evaluation mode; the user's module is left as it was."""
    twin = nnx.clone(module)
    twin.train()
    training = _split(twin)[0]
    twin.eval()
    return {True: training, False: _split(twin)[0]}


def _kind(variable: Any) -> str:
    if isinstance(variable, nnx.Param):
        return "params"
    if isinstance(variable, nnx.BatchStat):
        return "batch_stats"
    return "rng" if isinstance(variable, nnx.RngState) else type(variable).__name__.lower()


class LinenDefinition:
    """Bound Linen modules. Collections other than `params` are mutable in training mode; there is one stream for dropout.

    The dropout stream is a key among the rest: it advances at every call in training mode, from the seed given to `set_seed`.
    """

    def __init__(self, module: nn.Module):
        self.module, variables = module.unbind()
        plain: dict[str, Any] = jax.tree.map(lambda leaf: leaf, dict(variables))
        params = {"params": plain.pop("params", {})}
        self._collections = tuple(plain)
        rest = {**plain, "rng": {"dropout": jax.random.key(_seed_for_dropout())}}
        (param_paths, params_tree), (rest_paths, rest_tree) = _flat(params), _flat(rest)
        self._trees = (params_tree, rest_tree)
        self.initial = (jax.tree.leaves(params), jax.tree.leaves(rest))
        self.param_paths, self.rest_paths = tuple(param_paths), tuple(rest_paths)
        self.kinds = {path: str(path[0]) for path in (*self.param_paths, *self.rest_paths)}

    def call(
        self, params: Leaves, rest: Leaves, training: bool | None, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, list[Any]]:
        variables, others = (jax.tree.unflatten(tree, list(leaves)) for tree, leaves in zip(self._trees, (params, rest), strict=True))
        stream = others.pop("rng")["dropout"]
        if training is False:
            return self.module.apply({**variables, **others}, *args, **kwargs), list(rest)
        following, now = jax.random.split(stream)
        outputs, updated = self.module.apply(
            {**variables, **others}, *args, mutable=list(self._collections), rngs={"dropout": now}, **kwargs
        )
        return outputs, jax.tree.leaves({**others, **updated, "rng": {"dropout": following}})

    def rebuild(self, params: Leaves, rest: Leaves) -> nn.Module:
        variables, others = (jax.tree.unflatten(tree, list(leaves)) for tree, leaves in zip(self._trees, (params, rest), strict=True))
        others.pop("rng")
        return self.module.bind({**variables, **others})


def _seed_for_dropout() -> int:
    return int(np.random.randint(2**31))
