"""Host batches onto the mesh as global arrays. See `xaccel.backend.feed.Feed`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from xaccel import tree
from xaccel.errors import DataError
from xaccel.process.topology import ReplicaLayout
from xaccel_jax.arrays import narrowed


class JaxFeed:
    """Makes global arrays whose rows are divided over the replicas; strings, `None` and other leaves pass.

    Args:
        mesh: the devices.
        replica_axes: names of the axes that divide a batch.
    """

    def __init__(self, mesh: jax.sharding.Mesh, replica_axes: Sequence[str]):
        self._rows = NamedSharding(mesh, PartitionSpec(tuple(replica_axes)))
        self._whole = NamedSharding(mesh, PartitionSpec())
        self._all_local = self._rows.is_fully_addressable

    def place(self, batch: Any, layout: ReplicaLayout) -> Any:
        """See the protocol.

        Raises:
            DataError: rows that do not divide over this process's replicas, or integers that JAX would change.
        """
        return tree.map_leaves(lambda leaf: self._place(leaf, len(layout.local_replicas)), batch)

    def _place(self, leaf: Any, num_local: int) -> Any:
        values = host_array(leaf)
        if values is None:
            return leaf
        if values.ndim == 0:
            return jax.make_array_from_process_local_data(self._whole, values)
        if values.shape[0] % num_local:
            raise DataError(
                f"a batch of {values.shape[0]} rows does not divide over this process's {num_local} replicas: "
                "use even_batches=True or drop_last=True, so that every replica has the same number of rows"
            )
        if self._all_local:
            return jax.device_put(values, self._rows)
        return jax.make_array_from_process_local_data(self._rows, values)


def host_array(leaf: Any) -> np.ndarray | None:
    """A numeric array leaf on the host, in a type that JAX keeps; `None` for any other leaf."""
    if type(leaf).__module__.partition(".")[0] == "torch":
        leaf = np.asarray(leaf)
    if isinstance(leaf, jax.Array):
        return np.asarray(leaf)
    if isinstance(leaf, (np.ndarray, np.generic)) and leaf.dtype.kind in "biufcV":
        return narrowed(np.asarray(leaf))
    return None
