"""Moving a host batch to the devices. What to read is the data plan's matter; a `Feed` only moves."""

from __future__ import annotations

from typing import Any, Protocol

from xaccel.process.topology import ReplicaLayout


class Feed(Protocol):
    """Places nested host batches."""

    def place(self, batch: Any, layout: ReplicaLayout) -> Any:
        """The batch on this process's devices, containers and non-array leaves unchanged.

        Args:
            batch: nested host arrays `(rows of this process, ...)`: the rows of all local replicas, joined in the order of
                `layout.local_replicas`.
            layout: the replicas.

        Returns:
            In torch the same rows on the device. In JAX global arrays `(rows of all replicas, ...)` sharded over the replicas.
        """
