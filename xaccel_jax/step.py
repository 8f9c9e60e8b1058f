"""Turns a recorded step into one function over flat leaves, and compiles it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import optax

from xaccel_jax.functions import FunctionParts
from xaccel_jax.model import Model, ModelView

MicroKey = Hashable


@dataclasses.dataclass(frozen=True, eq=False)
class MicroSpec:
    """How to run one micro-step: everything but its inputs.

    Attributes:
        parts: the loss function, taken apart.
        tree: structure of (captured values, args, kwargs).
        kinds: of each leaf: "model", "input", "sharded" or "static".
        statics: the static leaves.
        has_aux: whether the function returns `(loss, aux)`.
    """

    parts: FunctionParts
    tree: Any
    kinds: tuple[str, ...]
    statics: list[Any]
    has_aux: bool

    def loss(self, view: ModelView, inputs: Sequence[Any]) -> tuple[Any, Any]:
        """The loss and the auxiliary output (`None` without)."""
        dynamic, static = iter(inputs), iter(self.statics)
        leaves = [view if kind == "model" else next(static) if kind == "static" else next(dynamic) for kind in self.kinds]
        captured, args, kwargs = jax.tree.unflatten(self.tree, leaves)
        outcome = self.parts.rebuilt(captured)(*args, **kwargs)
        return outcome if self.has_aux else (outcome, None)


@dataclasses.dataclass(frozen=True)
class Tail:
    """What happens after the gradients.

    Attributes:
        clips: ("norm", max_norm, norm_type) or ("value", clip_value, 0), in order.
        transformation: the optax transformation that makes updates; `None` to only look at the gradients.
    """

    clips: tuple[tuple[str, float, float], ...]
    transformation: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tail) and self.structure == other.structure and self.transformation is other.transformation

    def __hash__(self) -> int:
        return hash((self.structure, id(self.transformation)))

    @property
    def structure(self) -> tuple[Hashable, ...]:
        """The clips without their limits, which are inputs of the program; the type of a norm is part of it."""
        return tuple((kind, extra) for kind, _, extra in self.clips)


@dataclasses.dataclass(frozen=True)
class Outcome:
    """What one call gives back."""

    params: list[Any]
    rest: list[Any]
    optimizer_state: list[Any]
    gradients: list[Any] | None
    losses: list[Any]
    aux: list[Any]
    norms: list[Any]


class Compiled:
    """One compiled step."""

    def __init__(self, call: Callable[..., Any], norms: Callable[..., Any], tail: Tail | None):
        self._call = call
        self._norms = norms
        self._tail = tail

    def __call__(
        self,
        params: list[Any],
        rest: list[Any],
        state: list[Any],
        buffer: list[Any] | None,
        inputs: list[list[Any]],
        scales: list[float],
        rates: dict[int, float],
        items: Any,
    ) -> Outcome:
        limits = [limit for _, limit, _ in self._tail.clips] if self._tail else []
        outcome: tuple[Any, ...] = self._call(params, rest, state, buffer, inputs, scales, limits, rates, items)
        return Outcome(*outcome)

    def norms(self, buffer: list[Any], items: Any) -> list[Any]:
        """The norms that the recorded clips would report."""
        return self._norms(buffer, items, [limit for _, limit, _ in self._tail.clips] if self._tail else [])


def build(compiler: Any, precision: Any, model: Model, specs: Sequence[MicroSpec], tail: Tail | None, scan: bool) -> Compiled:
    """The compiled step of these micro-steps and this tail."""
    structure = (model, list(specs), precision)

    def step(
        replicas: Any, params: Any, rest: Any, state: Any, buffer: Any, inputs: Any, scales: Any, limits: Any, rates: Any, items: Any
    ) -> Any:
        gradients, losses, aux = buffer, [], []
        if specs:
            run = _scanned if scan else _unrolled
            zeros = replicas.local([jnp.zeros_like(leaf) for leaf in params])
            added, rest, losses, aux = run(structure, replicas.local(params), replicas.local(rest), zeros, inputs, scales)
            # With token counts losses are sums, and so is what the replicas have together.
            join = replicas.mean if items is None else replicas.sum
            added, rest, losses = join(added), replicas.first(rest), join(losses)
            gradients = added if buffer is None else [old + new for old, new in zip(buffer, added, strict=True)]
        if tail is None:
            return [], rest, [], gradients, losses, aux, []
        gradients, norms = _clip(_divided(gradients, items), tail, limits)
        new_params, new_state = _update(tail.transformation, model, params, gradients, state, rates)
        return new_params, rest, new_state, None, losses, aux, norms

    def norms_of(buffer: Any, items: Any, limits: Any) -> Any:
        assert tail is not None, "norms are asked for by a tail"
        return _clip(_divided(buffer, items), tail, limits)[1]

    sharded = [[kind == "sharded" for kind in spec.kinds if kind in ("input", "sharded")] for spec in specs]
    return Compiled(compiler.step(model, step, sharded, updates=tail is not None), jax.jit(norms_of), tail)


def _micro(structure: Any, spec: MicroSpec, params: Any, rest: Any, inputs: Any, scale: Any) -> Any:
    """Gradients, rest, loss and aux of one micro-step."""
    model, _, precision = structure

    def scaled(leaves: Any) -> Any:
        view = ModelView(model, leaves, list(rest), precision)
        loss, aux = spec.loss(view, inputs)
        return (loss * scale).astype(loss.dtype), (loss, aux, view.rest)

    gradients, (loss, aux, new_rest) = jax.grad(scaled, has_aux=True)(list(params))
    return gradients, new_rest, loss, aux


def _unrolled(structure: Any, params: Any, rest: Any, gradients: Any, inputs: Any, scales: Any) -> Any:
    losses, aux = [], []
    for spec, leaves, scale in zip(structure[1], inputs, scales, strict=True):
        new, rest, loss, extra = _micro(structure, spec, params, rest, leaves, scale)
        gradients = [old + each for old, each in zip(gradients, new, strict=True)]
        losses.append(loss)
        aux.append(extra)
    return gradients, rest, losses, aux


def _scanned(structure: Any, params: Any, rest: Any, gradients: Any, inputs: Any, scales: Any) -> Any:
    stacked = [jnp.stack(column) for column in zip(*inputs, strict=True)]

    def body(carry: Any, each: Any) -> Any:
        gradients, rest = carry
        leaves, scale = each
        new, rest, loss, aux = _micro(structure, structure[1][0], params, rest, leaves, scale)
        return ([old + one for old, one in zip(gradients, new, strict=True)], rest), (loss, aux)

    (gradients, rest), (losses, aux) = jax.lax.scan(body, (gradients, rest), (stacked, jnp.asarray(scales, jnp.float32)))
    count = len(inputs)
    return (
        gradients,
        rest,
        [losses[index] for index in range(count)],
        [jax.tree.map(lambda leaf, i=index: leaf[i], aux) for index in range(count)],
    )


def _divided(gradients: list[Any], items: Any) -> list[Any]:
    """With token counts: the gradient of the sum, over all items (0 where there are none)."""
    if items is None:
        return gradients
    factor = jnp.where(items > 0, 1.0 / jnp.maximum(items, 1), 0.0)
    return [(leaf * factor).astype(leaf.dtype) for leaf in gradients]


def _clip(gradients: list[Any], tail: Tail, limits: Any) -> tuple[list[Any], list[Any]]:
    norms = []
    for (kind, _, extra), limit in zip(tail.clips, limits, strict=True):
        if kind == "value":
            gradients = [jnp.clip(leaf, -limit, limit) for leaf in gradients]
            continue
        norm = total_norm(gradients, extra)
        norms.append(norm)
        # 1e-6 as in torch.nn.utils.clip_grad_norm_, so that both frameworks take the same step.
        factor = jnp.minimum(limit / (norm + 1e-6), 1.0)
        gradients = [(leaf * factor).astype(leaf.dtype) for leaf in gradients]
    return gradients, norms


def total_norm(leaves: Sequence[Any], norm_type: float) -> Any:
    """The norm of all leaves taken as one vector, in float32 at least."""
    magnitudes = [jnp.abs(leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32))) for leaf in leaves]
    if norm_type == float("inf"):
        return jnp.max(jnp.stack([jnp.max(leaf) for leaf in magnitudes]))
    if norm_type == 2.0:
        return jnp.sqrt(sum(jnp.sum(jnp.square(leaf)) for leaf in magnitudes))
    return sum(jnp.sum(leaf**norm_type) for leaf in magnitudes) ** (1.0 / norm_type)


def _update(transformation: Any, model: Model, params: Any, gradients: Any, state: Any, rates: Any) -> tuple[list[Any], list[Any]]:
    tree = transformation.state_tree
    leaves = [jnp.asarray(rates[place], leaf.dtype) if place in rates else leaf for place, leaf in enumerate(state)]
    paths = model.definition.param_paths
    gradient_tree = nest(paths, gradients)
    param_tree = nest(paths, params)
    updates, new_state = transformation.optax.update(gradient_tree, jax.tree.unflatten(tree, leaves), param_tree)
    new_params = optax.apply_updates(param_tree, updates)
    return flatten(paths, new_params), jax.tree.leaves(new_state)


def nest(paths: Sequence[tuple[Any, ...]], leaves: Sequence[Any]) -> dict[Any, Any]:
    """Leaves by path as nested dictionaries: what optax's masks and labels see."""
    tree: dict[Any, Any] = {}
    for path, leaf in zip(paths, leaves, strict=True):
        node = tree
        for key in path[:-1]:
            node = node.setdefault(key, {})
        node[path[-1]] = leaf
    return tree


def flatten(paths: Sequence[tuple[Any, ...]], tree: Any) -> list[Any]:
    """The inverse of `nest`."""
    leaves = []
    for path in paths:
        node = tree
        for key in path:
            node = node[key]
        leaves.append(node)
    return leaves
