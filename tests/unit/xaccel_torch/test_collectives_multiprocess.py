"""Failures of torch collectives: who is gone is named, within the time limit. Memory of a gather."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xaccel.errors import CollectiveError, CollectiveTimeoutError
from xaccel.testing.ranks import RankError, load_module

benches = load_module(Path(__file__).parents[2] / "conformance" / "benches.py")


def killed_in_a_collective() -> None:
    bench = benches.torch_bench()
    bench.communicator.gather(bench.make([1.0]))
    if bench.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    began = time.monotonic()
    try:
        bench.communicator.gather(bench.make(np.ones(1_000_000)))
    except CollectiveError as error:
        message = f"seen by rank {bench.rank} after {time.monotonic() - began:.0f} s: {error}"
        raise AssertionError(message) from None


def one_never_comes() -> str:
    from xaccel_torch.collectives import TorchCollectives

    bench = benches.torch_bench()
    bench.collectives.barrier()
    if bench.rank == 1:
        time.sleep(4)
        return "late"
    try:
        TorchCollectives(bench.topology, timeout_seconds=1.0).barrier("before saving")
    except CollectiveTimeoutError as error:
        return str(error)
    return "no error"


def peak_of_a_gather(num_bytes: int) -> tuple[float, int]:
    """Growth of the resident memory's peak, in bytes, beside the inputs."""
    bench = benches.torch_bench()
    bench.communicator.gather(bench.make(np.ones(16, np.float32)))
    array = bench.make(np.ones(num_bytes // 4, np.float32))
    before = _resident()
    # Linux: writing 5 sets the peak back to what is resident now.
    Path("/proc/self/clear_refs").write_text("5")
    result = bench.communicator.gather(array)
    return _peak() - before, result.numel() * 4


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def _peak() -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024


def test_a_killed_rank_is_named_by_the_others(ranks: Any) -> None:
    with pytest.raises(RankError) as caught:
        ranks("torch", 4).run(killed_in_a_collective)
    text = str(caught.value)
    assert "rank 1 died with status -9" in text
    for rank in (0, 2, 3):
        assert f"seen by rank {rank} after" in text
    assert text.count("process(es) 1 did not answer") >= 3


def test_a_rank_that_never_comes_is_named(ranks: Any) -> None:
    pool = ranks("torch", 2)
    try:
        first, second = pool.run(one_never_comes)
    finally:
        pool.restart()  # the group is broken
    assert second == "late"
    assert "before saving on process 0 of 2" in first
    assert "process(es) 1 did not" in first


@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
def test_a_gather_needs_no_more_than_its_output_and_one_input(ranks: Any) -> None:
    size = 64 << 20
    for peak, output in ranks("torch", 4).run(peak_of_a_gather, size):
        assert output == 4 * size
        assert peak <= 1.1 * (output + size)
