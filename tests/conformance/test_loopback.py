"""The conformance suite on threads."""

from __future__ import annotations

import pytest

from xaccel.process.topology import ProcessTopology
from xaccel.testing.conformance import CASES, Bench
from xaccel.testing.loopback import LoopbackArrays, LoopbackCollectives, run_threads


@pytest.mark.parametrize("num_ranks", [1, 2, 4])
@pytest.mark.parametrize("name", CASES)
def test_case(name: str, num_ranks: int) -> None:
    def run(topology: ProcessTopology) -> None:
        CASES[name](Bench(arrays=LoopbackArrays(), collectives=LoopbackCollectives(topology), topology=topology))

    run_threads(num_ranks, run, timeout_seconds=10)
