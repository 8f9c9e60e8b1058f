"""Threads as ranks: isolation, failures, time limits. What the collectives mean is the conformance suite's."""

from __future__ import annotations

import time

import numpy as np
import pytest

from xaccel.config.settings import Settings
from xaccel.environment import LaunchEnvironment
from xaccel.errors import CollectiveMismatchError, CollectiveTimeoutError, UnsupportedError
from xaccel.process.topology import ProcessTopology
from xaccel.testing.loopback import LoopbackBackend, LoopbackCollectives, RankLeftError, run_threads


def test_results_in_rank_order() -> None:
    assert run_threads(3, lambda topology: topology.process_index) == [0, 1, 2]


def test_nothing_is_shared() -> None:
    def rank(topology: ProcessTopology) -> list[int]:
        mine = np.array([topology.process_index])
        received = LoopbackCollectives(topology).broadcast([mine], 0)[0]
        received += 10 * (topology.process_index + 1)
        return [int(received[0]), int(mine[0])]

    assert run_threads(2, rank) == [[10, 0], [20, 1]]


def test_a_rank_that_never_comes_is_named() -> None:
    def rank(topology: ProcessTopology) -> None:
        if topology.process_index == 1:
            time.sleep(0.6)
        LoopbackCollectives(topology).barrier("save")

    with pytest.raises(CollectiveTimeoutError, match=r"save on process 0 of 2: process\(es\) 1 did not come within 0.2 s"):
        run_threads(2, rank, timeout_seconds=0.2)


def test_a_failure_on_one_rank_is_the_error_of_the_run() -> None:
    def rank(topology: ProcessTopology) -> None:
        if topology.process_index == 1:
            raise ValueError("on purpose")
        LoopbackCollectives(topology).barrier()

    with pytest.raises(ValueError, match="on purpose") as caught:
        run_threads(2, rank)
    assert caught.value.__notes__ == [
        "raised on rank 1 of 2",
        "rank 0 raised RankLeftError: barrier on process 0 of 2: process(es) 1 ended and will not come",
    ]


def test_a_rank_that_returned_is_not_waited_for() -> None:
    def rank(topology: ProcessTopology) -> None:
        if topology.process_index == 0:
            LoopbackCollectives(topology).barrier()

    with pytest.raises(RankLeftError, match="1 ended"):
        run_threads(2, rank)


def test_different_operations_are_named() -> None:
    def rank(topology: ProcessTopology) -> None:
        collectives = LoopbackCollectives(topology)
        if topology.process_index == 0:
            collectives.barrier("one")
        else:
            collectives.gather_objects(1)

    with pytest.raises(CollectiveMismatchError, match="process 0 calls one; process 1 calls gather_objects"):
        run_threads(2, rank)


def test_the_backend_is_a_run_of_one() -> None:
    backend = LoopbackBackend()
    topology = backend.start(LaunchEnvironment(), Settings())
    assert backend.collectives(topology).gather([np.array(3)])[0].tolist() == [3]
    with pytest.raises(UnsupportedError, match="run_threads"):
        backend.start(LaunchEnvironment(process_index=0, num_processes=2), Settings())
