"""Collectives over JAX arrays, and a world of one.

Two kinds of arrays come here. A *global* array lies on several devices, of this process or of all: it is one value that everybody shares
already, so `gather` only replicates it and `reduce` has nothing to add up. An array on one device (or a NumPy array) is this process's
own, and means what a tensor of a rank means in torch.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from xaccel.collectives import semantics
from xaccel.collectives.coalescing import plan_buffers
from xaccel.collectives.objects import from_bytes, to_bytes
from xaccel.errors import CollectiveError, CollectiveTimeoutError
from xaccel.process.topology import ProcessTopology
from xaccel_jax.arrays import materialise
from xaccel_jax.roll_call import absent_processes, shared_exchange

Result = TypeVar("Result")

DEFAULT_TIMEOUT_SECONDS = 1800.0


def spans_devices(array: Any) -> bool:
    """Whether this is one array over several devices, of this process or of several: a *global* array."""
    return isinstance(array, jax.Array) and len(array.sharding.device_set) > 1


def replicate(array: jax.Array) -> jax.Array:
    """A global array on all its devices whole, shape unchanged; a 0-d one becomes `(1,)`."""
    sharding = array.sharding
    if isinstance(sharding, NamedSharding):
        target: Any = NamedSharding(sharding.mesh, PartitionSpec())
    else:
        target = NamedSharding(Mesh(np.array(list(sharding._device_assignment)), ("devices",)), PartitionSpec())
    return _replicator(target)(array)


@functools.cache
def _replicator(target: NamedSharding) -> Callable[[jax.Array], jax.Array]:
    # Copied: a jitted identity may hand the input back, and a caller may donate that.
    return jax.jit(lambda array: jnp.copy(array).reshape(array.shape or (1,)), out_shardings=target)


class SoloCollectives:
    """A world of one process, which may drive several devices."""

    def gather(self, arrays: Sequence[Any]) -> list[Any]:
        values = map(materialise, arrays)
        return [replicate(array) if spans_devices(array) else array.reshape(array.shape or (1,)).copy() for array in values]

    def reduce(self, arrays: Sequence[Any], reduction: str, scale: float) -> list[Any]:
        return [_reduce_alone(materialise(array), reduction, scale) for array in arrays]

    def broadcast(self, arrays: Sequence[Any], from_process: int) -> list[Any]:
        return [materialise(array).copy() for array in arrays]

    def gather_objects(self, value: Any) -> list[Any]:
        return [value]

    def broadcast_objects(self, values: list[Any], from_process: int) -> list[Any]:
        return list(values)

    def barrier(self, name: str = "barrier") -> None:
        """Everyone is here."""


class JaxCollectives:
    """The processes of `jax.distributed`.

    Arrays of a process travel between the first devices of the processes, all arrays of a dtype in one collective; NumPy arrays and objects
    through the coordination service's store, so that their 64-bit types need no x64 mode.

    Args:
        topology: where this process stands.
        timeout_seconds: how long a barrier or an exchange of objects waits for the others.
    """

    def __init__(self, topology: ProcessTopology, timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS):
        self._topology = topology
        self._timeout = timeout_seconds

    def gather(self, arrays: Sequence[Any]) -> list[Any]:
        return self._by_kind("gather", arrays, replicate, semantics.gathered, _gather_rows)

    def reduce(self, arrays: Sequence[Any], reduction: str, scale: float) -> list[Any]:
        def on_host(everyone: list[np.ndarray]) -> np.ndarray:
            return semantics.reduced(everyone, reduction, scale, self._topology.process_index)

        if reduction == "none":
            return [_scaled(materialise(array).copy(), scale) for array in arrays]
        rows = functools.partial(_reduce_rows, reduction=reduction, scale=scale)
        return self._by_kind("reduce", arrays, lambda array: _reduce_alone(array, reduction, scale), on_host, rows)

    def broadcast(self, arrays: Sequence[Any], from_process: int) -> list[Any]:
        rows = functools.partial(_row, index=from_process)
        return self._by_kind("broadcast", arrays, lambda array: array.copy(), lambda everyone: everyone[from_process].copy(), rows)

    def gather_objects(self, value: Any) -> list[Any]:
        return self._exchange("gather_objects", value)

    def broadcast_objects(self, values: list[Any], from_process: int) -> list[Any]:
        mine = list(values) if self._topology.process_index == from_process else None
        return list(self._exchange("broadcast_objects", mine)[from_process])

    def barrier(self, name: str = "barrier") -> None:
        shared_exchange().all_bytes(name, b"", self._topology, self._timeout)

    def _exchange(self, operation: str, value: Any) -> list[Any]:
        received = shared_exchange().all_bytes(operation, to_bytes(value), self._topology, self._timeout)
        return [value if index == self._topology.process_index else from_bytes(data) for index, data in enumerate(received)]

    def _by_kind(
        self,
        operation: str,
        arrays: Sequence[Any],
        on_global: Callable[[jax.Array], Any],
        on_host: Callable[[list[np.ndarray]], np.ndarray],
        on_rows: Callable[..., Any],
    ) -> list[Any]:
        """Each array by the way that its kind goes; the results in the arrays' order."""
        arrays = [materialise(array) for array in arrays]
        results: list[Any] = [None] * len(arrays)
        host = [index for index, array in enumerate(arrays) if isinstance(array, np.ndarray)]
        own = [index for index, array in enumerate(arrays) if index not in host and not _is_global(array)]
        for index in set(range(len(arrays))) - {*host, *own}:
            results[index] = on_global(arrays[index])
        if host:
            everyone = self._exchange(operation, [arrays[index] for index in host])
            for place, index in enumerate(host):
                results[index] = on_host([each[place] for each in everyone])
        if own:
            mine: list[Any] = [arrays[index] for index in own]
            moved = self._run(operation, lambda: _move(mine, on_rows))
            for index, result in zip(own, moved, strict=True):
                results[index] = result
        return results

    def _run(self, operation: str, call: Callable[[], Result]) -> Result:
        """Run one collective and wait for it: a failure must show here, not where the result is first used."""
        try:
            return jax.block_until_ready(call())
        except (jax.errors.JaxRuntimeError, ValueError) as error:
            gone = absent_processes(self._topology)
            reason = str(error).strip().splitlines()[0][:300]
            who = f"process(es) {', '.join(map(str, gone))} did not answer" if gone else "all processes answer"
            kind = CollectiveTimeoutError if gone else CollectiveError
            raise kind(
                f"{operation} on process {self._topology.process_index} of {self._topology.num_processes}: {who} ({reason})"
            ) from error


def _is_global(array: jax.Array) -> bool:
    # An array over several devices of this process alone is its own when there are other processes.
    return not array.is_fully_addressable


@functools.cache
def _process_mesh() -> Mesh:
    """The first device of each process."""
    first: dict[int, Any] = {}
    for device in jax.devices():
        first.setdefault(device.process_index, device)
    return Mesh(np.array([first[index] for index in sorted(first)]), ("process",))


def _move(arrays: Sequence[jax.Array], on_rows: Callable[..., Any]) -> list[jax.Array]:
    """Stack every process's arrays as rows `(num_processes, ...)`, apply `on_rows` to each, and give the results, on this process's device."""
    mesh = _process_mesh()
    mine = mesh.local_devices[0]
    sharded = NamedSharding(mesh, PartitionSpec("process"))
    rows: list[Any] = []
    for array in arrays:
        local = jax.device_put(array, mine)[None]
        rows.append(jax.make_array_from_single_device_arrays((mesh.size, *array.shape), sharded, [local]))
    return [result.addressable_data(0) for result in _program(_key(on_rows))(rows)]


def _key(on_rows: Callable[..., Any]) -> tuple[Callable[..., Any], tuple[tuple[str, Any], ...]]:
    """A hashable form of a function with its bound arguments: the key under which its compiled program is kept."""
    if isinstance(on_rows, functools.partial):
        return on_rows.func, tuple(sorted(on_rows.keywords.items()))
    return on_rows, ()


@functools.cache
def _program(key: tuple[Callable[..., Any], tuple[tuple[str, Any], ...]]) -> Callable[[list[jax.Array]], list[jax.Array]]:
    function, keywords = key
    replicated = NamedSharding(_process_mesh(), PartitionSpec())

    def run(rows: list[jax.Array]) -> list[jax.Array]:
        return function(rows, replicated=replicated, **dict(keywords))  # type: ignore[no-any-return]

    return jax.jit(run, out_shardings=replicated)


def _packed(rows: list[jax.Array], move: Callable[[jax.Array], jax.Array]) -> list[jax.Array]:
    """`move` applied to one buffer `(num_processes, n)` for each dtype; rows `(num_rows, ...)` of each array back."""
    results: list[Any] = [None] * len(rows)
    for buffer in plan_buffers([row.shape[1:] for row in rows], [str(row.dtype) for row in rows]):
        parts = [rows[s.index].reshape(rows[s.index].shape[0], s.stop - s.start) for s in buffer.segments]
        moved = move(jnp.concatenate(parts, axis=1))
        for s in buffer.segments:
            results[s.index] = moved[:, s.start : s.stop].reshape(moved.shape[0], *s.shape)
    return results


def _gather_rows(rows: list[jax.Array], replicated: NamedSharding) -> list[jax.Array]:
    count = rows[0].shape[0]
    moved = _packed([_bits(row) for row in rows], lambda flat: jax.lax.with_sharding_constraint(flat, replicated))
    return [_joined(_from_bits(new, old.dtype), count, old.shape[1:]) for new, old in zip(moved, rows, strict=True)]


def _joined(rows: jax.Array, count: int, shape: tuple[int, ...]) -> jax.Array:
    shape = shape or (1,)
    return rows.reshape(count * shape[0], *shape[1:])


def _row(rows: list[jax.Array], replicated: NamedSharding, index: int) -> list[jax.Array]:
    moved = _packed([_bits(row) for row in rows], lambda flat: jax.lax.with_sharding_constraint(flat[index : index + 1], replicated))
    return [_from_bits(new, old.dtype).reshape(old.shape[1:]) for new, old in zip(moved, rows, strict=True)]


def _reduce_rows(rows: list[jax.Array], replicated: NamedSharding, reduction: str, scale: float) -> list[jax.Array]:
    combine: Any = {"sum": jnp.sum, "mean": jnp.sum, "max": jnp.max, "min": jnp.min}[reduction]
    working = [_working(row, reduction) for row in rows]

    def move(flat: jax.Array) -> jax.Array:
        reduced = combine(flat, axis=0, keepdims=True).astype(flat.dtype)
        return jax.lax.with_sharding_constraint(reduced, replicated)

    moved = _packed(working, move)
    return [_finish(new.reshape(old.shape[1:]), old, reduction, scale, old.shape[0]) for new, old in zip(moved, rows, strict=True)]


def _working(row: jax.Array, reduction: str) -> jax.Array:
    """In the type in which the reduction is meant: counts of bools, means of integers as floats, narrow floats added in float32."""
    if row.dtype == jnp.bool_:
        return row.astype(_mean_dtype(row) if reduction == "mean" else jax.dtypes.canonicalize_dtype(np.int64))
    if reduction == "mean" and jnp.issubdtype(row.dtype, jnp.integer):
        return row.astype(_mean_dtype(row))
    return row.astype(jnp.float32) if jnp.issubdtype(row.dtype, jnp.floating) and row.dtype.itemsize < 4 else row


def _mean_dtype(array: jax.Array) -> Any:
    return semantics.mean_dtype(np.dtype(array.dtype))


def _finish(reduced: jax.Array, original: jax.Array, reduction: str, scale: float, count: int) -> jax.Array:
    if reduction == "mean":
        reduced = reduced / jnp.asarray(count, reduced.dtype)
    counted = original.dtype == jnp.bool_ and reduction == "sum"
    if not counted and not (reduction == "mean" and semantics.is_integral(np.dtype(original.dtype))):
        reduced = reduced.astype(original.dtype)
    return _scaled(reduced, scale)


def _scaled(array: Any, scale: float) -> Any:
    if isinstance(array, np.ndarray):
        return semantics.scaled(array, scale)
    if scale == 1.0:
        return array
    wide = array.astype(_mean_dtype(array))
    return wide * jnp.asarray(scale, wide.dtype)


def _reduce_alone(array: Any, reduction: str, scale: float) -> Any:
    """What a reduction over one value is: its own type changes (counts, means of integers) and the scale."""
    if isinstance(array, np.ndarray):
        return semantics.reduced([array], reduction, scale, 0)
    if reduction == "none":
        return _scaled(array.copy(), scale)
    return _finish(_working(array, reduction).copy(), array, reduction, scale, 1)


def _bits(array: jax.Array) -> jax.Array:
    """Bools and 8-bit floats as the bytes that they are: not every transport knows them."""
    if array.dtype == jnp.bool_:
        return array.astype(jnp.uint8)
    return jax.lax.bitcast_convert_type(array, jnp.uint8) if str(array.dtype).startswith("float8") else array


def _from_bits(array: jax.Array, dtype: Any) -> jax.Array:
    if array.dtype == dtype:
        return array
    return array.astype(dtype) if dtype == jnp.bool_ else jax.lax.bitcast_convert_type(array, dtype)
