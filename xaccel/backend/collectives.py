"""Collectives as an adapter provides them: flat lists of arrays, nothing nested, nothing uneven.

Nesting, uneven shapes, debug checks and errors are the core's (`xaccel.collectives`). A list travels coalesced: one
collective per dtype and call (`xaccel.collectives.coalescing` plans it with integers alone).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

from xaccel.backend.arrays import Array

Reduction = Literal["sum", "mean", "max", "min", "none"]


class Collectives(Protocol):
    """Communication between the processes of the run. A world of one is an implementation of its own, not a special case."""

    def gather(self, arrays: Sequence[Array]) -> list[Array]:
        """Each array of shape `(b, ...)` from all processes, joined in rank order: `(num_processes * b, ...)`, equal on every process.

        A 0-d array counts as `(1,)`. Every process brings the same shapes and dtypes. In JAX a *global* array comes back
        replicated with its shape unchanged.
        """

    def reduce(self, arrays: Sequence[Array], reduction: Reduction, scale: float) -> list[Array]:
        """Each array reduced element-wise over the processes, then multiplied by `scale`; inputs are left unchanged.

        `mean` of an integer or boolean array is float32 (float64 for 64-bit integers). `sum` of bool counts as int64.
        """

    def broadcast(self, arrays: Sequence[Array], from_process: int) -> list[Array]:
        """The arrays of `from_process` on every process, as new arrays."""

    def gather_objects(self, value: Any) -> list[Any]:
        """One picklable object from each process, in rank order, on every process."""

    def broadcast_objects(self, values: list[Any], from_process: int) -> list[Any]:
        """The list of `from_process`, on every process."""

    def barrier(self, name: str = "barrier") -> None:
        """Return once every process has called it. Past the time limit: `CollectiveTimeoutError` naming those that did not come."""
