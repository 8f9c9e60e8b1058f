"""Global arrays, 64-bit NumPy arrays, lazy compilation, and failures of JAX collectives."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xaccel.errors import CollectiveError, CollectiveTimeoutError
from xaccel.testing.ranks import RankError, load_module

benches = load_module(Path(__file__).parents[2] / "conformance" / "benches.py")


def global_array(values: np.ndarray) -> Any:
    import jax
    from jax.sharding import AxisType, NamedSharding, PartitionSpec

    mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
    return jax.make_array_from_callback(values.shape, NamedSharding(mesh, PartitionSpec("data")), lambda index: values[index])


def global_arrays_are_replicated() -> None:
    bench = benches.jax_bench()
    values = np.arange(32, dtype=np.float32).reshape(16, 2)
    array = global_array(values)
    gathered = bench.communicator.gather(array)
    assert gathered.is_fully_replicated
    bench.same(gathered, values, np.float32)
    # One value that all share: there is nothing to add up, however many processes there are.
    bench.same(bench.communicator.gather(bench.communicator.reduce(array, "sum", scale=2.0)), 2 * values, np.float32)
    bench.same(bench.communicator.gather(bench.communicator.broadcast(array)), values, np.float32)


def host_arrays_keep_64_bits() -> None:
    bench = benches.jax_bench()
    values = np.array([2**40 + bench.rank])
    gathered = bench.communicator.gather(values)
    assert isinstance(gathered, np.ndarray)
    assert gathered.tolist() == [2**40 + rank for rank in range(bench.count)]
    assert bench.communicator.reduce(values, "max").tolist() == [2**40 + bench.count - 1]
    assert bench.communicator.broadcast(values, bench.count - 1).tolist() == [2**40 + bench.count - 1]


def calls_of_one_shape_compile_once() -> int:
    from xaccel_jax import collectives

    bench = benches.jax_bench()
    before = collectives._program.cache_info().misses
    for scale in (1.0, 2.0, 3.0):
        bench.same(bench.communicator.gather(bench.make([scale])), [scale] * bench.count)
    return collectives._program.cache_info().misses - before


def killed_in_a_collective() -> None:
    bench = benches.jax_bench()
    bench.communicator.gather(bench.make([1.0]))
    if bench.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    try:
        bench.communicator.gather(bench.make(np.ones(1_000_000, np.float32)))
    except CollectiveError as error:
        message = f"seen by rank {bench.rank} after {time.monotonic() - began:.0f} s: {error}"
        raise AssertionError(message) from None


def one_never_comes() -> str:
    from xaccel_jax.collectives import JaxCollectives

    bench = benches.jax_bench()
    bench.collectives.barrier()
    if bench.rank == 1:
        time.sleep(2)
        return "late"
    try:
        JaxCollectives(bench.topology, timeout_seconds=1.0).barrier("before saving")
    except CollectiveTimeoutError as error:
        return str(error)
    return "no error"


@pytest.mark.parametrize("world", [(1, 8), (2, 4)])
def test_global_arrays_are_replicated(ranks: Any, world: tuple[int, int]) -> None:
    ranks("jax", *world).run(global_arrays_are_replicated)


@pytest.mark.parametrize("world", [(1, 8), (2, 4)])
def test_host_arrays_keep_64_bits(ranks: Any, world: tuple[int, int]) -> None:
    ranks("jax", *world).run(host_arrays_keep_64_bits)


def test_calls_of_one_shape_compile_once(ranks: Any) -> None:
    assert all(count <= 1 for count in ranks("jax", 2, 4).run(calls_of_one_shape_compile_once))


def test_a_rank_that_never_comes_is_named(ranks: Any) -> None:
    pool = ranks("jax", 2, 4)
    try:
        first, second = pool.run(one_never_comes)
    finally:
        pool.restart()  # the processes have counted different rounds
    assert second == "late"
    assert first == "before saving on process 0 of 2: process(es) 1 did not come within 1 s"


def test_a_killed_rank_is_named_by_the_other(ranks: Any) -> None:
    with pytest.raises(RankError) as caught:
        ranks("jax", 2, 4).run(killed_in_a_collective)
    text = str(caught.value)
    assert "rank 1 died with status -9" in text
    assert "seen by rank 0 after" in text
    assert "process(es) 1 did not answer" in text
