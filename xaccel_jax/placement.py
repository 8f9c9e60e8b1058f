"""Values onto every device of the mesh, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding


def is_key(leaf: Any) -> bool:
    """Whether a leaf holds typed random keys."""
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def replicate(leaves: Sequence[Any], sharding: NamedSharding) -> list[jax.Array]:
    """New arrays with the leaves' values on every device; process 0's values where there are several processes."""
    if not sharding.is_fully_addressable:
        return _replicate_over_processes(leaves, sharding)
    # A copy: the step donates its inputs, and the user's own arrays must live on.
    return [jax.device_put(jax.random.clone(leaf) if is_key(leaf) else jnp.array(strong(leaf), copy=True), sharding) for leaf in leaves]


def strong(leaf: Any) -> Any:
    """The leaf without a weak type (`jnp.full(shape, 0.1)` has one): a step's outputs have none, and a second trace would follow the first."""
    return jax.lax.convert_element_type(leaf, leaf.dtype) if isinstance(leaf, jax.Array) and not is_key(leaf) else leaf


def _replicate_over_processes(leaves: Sequence[Any], sharding: NamedSharding) -> list[jax.Array]:
    from jax.experimental import multihost_utils

    hosts = [np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf) for leaf in leaves]
    agreed = multihost_utils.broadcast_one_to_all(hosts)
    placed = []
    for leaf, host in zip(leaves, agreed, strict=True):
        values = np.asarray(host)
        array = jax.make_array_from_callback(values.shape, sharding, lambda index, values=values: values[index])  # type: ignore[misc]
        placed.append(jax.random.wrap_key_data(array, impl=jax.random.key_impl(leaf)) if is_key(leaf) else array)
    return placed


def is_sharded(leaf: Any) -> bool:
    """Whether a leaf is a global array whose rows are divided over the devices."""
    return isinstance(leaf, jax.Array) and not leaf.is_fully_replicated


def local_value(leaf: jax.Array) -> jax.Array:
    """This process's copy of a replicated array."""
    return leaf if leaf.is_fully_addressable else leaf.addressable_data(0)
