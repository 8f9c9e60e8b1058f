"""How a step runs on the mesh: GSPMD over the global batch, or each replica by itself with explicit means.

Both take the same function; only the hooks that it calls and the compile wrapper differ.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from xaccel_jax.model import Model, ModelView
from xaccel_jax.placement import is_key


class WholeBatch:
    """Under GSPMD a step sees the global batch, so there is nothing to average."""

    def local(self, leaves: list[Any]) -> list[Any]:
        return leaves

    def mean(self, leaves: list[Any]) -> list[Any]:
        return leaves

    def sum(self, leaves: list[Any]) -> list[Any]:
        return leaves

    def first(self, leaves: list[Any]) -> list[Any]:
        return leaves


class EachReplica:
    """Under `shard_map` a step sees one replica's batch; means over the replicas are explicit.

    Args:
        axis: name of the mesh's axis.
    """

    def __init__(self, axis: str):
        self._axis = axis

    def local(self, leaves: list[Any]) -> list[Any]:
        """The leaves as each replica's own: gradients stay local, and random streams differ."""
        return [self._own_key(leaf) if is_key(leaf) else jax.lax.pcast(leaf, self._axis, to="varying") for leaf in leaves]

    def _own_key(self, key: Any) -> Any:
        return jax.random.fold_in(key, jax.lax.axis_index(self._axis))

    def mean(self, leaves: list[Any]) -> list[Any]:
        """The mean over the replicas."""
        return [jax.lax.pmean(leaf, self._axis) for leaf in leaves]

    def sum(self, leaves: list[Any]) -> list[Any]:
        """The sum over the replicas."""
        return [jax.lax.psum(leaf, self._axis) for leaf in leaves]

    def first(self, leaves: list[Any]) -> list[Any]:
        """Replica 0's values, as DDP broadcasts rank 0's buffers."""
        return [self._first(leaf) for leaf in leaves]

    def _first(self, leaf: Any) -> Any:
        if is_key(leaf):
            return jax.random.wrap_key_data(self._first(jax.random.key_data(leaf)), impl=jax.random.key_impl(leaf))
        mine = jnp.where(jax.lax.axis_index(self._axis) == 0, leaf, jnp.zeros_like(leaf))
        return jax.lax.psum(mine, self._axis).astype(leaf.dtype)


class Compiler:
    """Compiles steps and forward passes for one mesh.

    Args:
        mesh: of one axis.
        global_statistics: whether batch normalisation is over the global batch.
    """

    def __init__(self, mesh: jax.sharding.Mesh, global_statistics: bool):
        self.mesh = mesh
        self.axis = mesh.axis_names[0]
        self.replicated = NamedSharding(mesh, PartitionSpec())
        self._global_statistics = global_statistics

    def step(self, model: Model, function: Callable[..., Any], sharded: Sequence[Sequence[bool]], updates: bool) -> Callable[..., Any]:
        """The compiled step.

        Args:
            function: `(hooks, params, rest, state, buffer, inputs, scales, limits, rates, items)`.
            sharded: for each micro-step, which inputs have their rows divided over the replicas.
            updates: whether parameters and optimizer state are replaced, and so donated.
        """
        whole = self._global_statistics or self.mesh.size == 1 or "batch_stats" not in model.definition.kinds.values()
        run = self._whole(function) if whole else self._each(function, sharded)
        same = self.replicated
        return jax.jit(run, donate_argnums=(0, 1, 2) if updates else (1, 3), out_shardings=(same, same, same, same, same, None, same))

    def _whole(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *arguments: function(WholeBatch(), *arguments)

    def _each(self, function: Callable[..., Any], sharded: Sequence[Sequence[bool]]) -> Callable[..., Any]:
        same, divided = PartitionSpec(), PartitionSpec(self.axis)
        input_specs = [[divided if flag else same for flag in flags] for flags in sharded]
        in_specs = (same, same, same, same, input_specs, same, same, same, same)
        out_specs = (same, same, same, same, same, divided, same)

        def run(*arguments: Any) -> Any:
            was_scalar: list[bool] = []

            def body(*local: Any) -> Any:
                *results, aux, norms = function(EachReplica(self.axis), *local)
                # Rows of auxiliary arrays are joined over the replicas; scalars become one entry each, and their mean is given back.
                leaves, tree = jax.tree.flatten(aux)
                was_scalar[:] = [jnp.ndim(leaf) == 0 for leaf in leaves]
                rows = [self._as_varying(jnp.atleast_1d(leaf)) for leaf in leaves]
                return (*results, jax.tree.unflatten(tree, rows), norms)

            *results, aux, norms = jax.shard_map(body, mesh=self.mesh, in_specs=in_specs, out_specs=out_specs)(*arguments)
            leaves, tree = jax.tree.flatten(aux)
            means = [jnp.mean(leaf) if scalar else leaf for leaf, scalar in zip(leaves, was_scalar, strict=True)]
            return (*results, jax.tree.unflatten(tree, means), norms)

        return run

    def _as_varying(self, leaf: Any) -> Any:
        return leaf if self.axis in jax.typeof(leaf).vma else jax.lax.pcast(leaf, self.axis, to="varying")

    def forward(self, model: Model, tree: Any, kinds: tuple[str, ...], leaves: Sequence[Any], precision: Any) -> Callable[..., Any]:
        """The compiled forward pass: `(params, rest, inputs) -> (outputs, rest)`."""
        statics = [leaf for leaf, kind in zip(leaves, kinds, strict=True) if kind == "static"]

        def run(params: Any, rest: Any, inputs: Any) -> Any:
            dynamic, static = iter(inputs), iter(statics)
            args, kwargs = jax.tree.unflatten(tree, [next(static) if kind == "static" else next(dynamic) for kind in kinds])
            view = ModelView(model, params, rest, precision)
            return view(*args, **kwargs), view.rest

        return jax.jit(run, out_shardings=(None, self.replicated))
