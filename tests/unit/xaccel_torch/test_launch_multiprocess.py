"""Joining a run: our own process group, the user's, and other places to meet."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from xaccel.config.settings import Settings
from xaccel.environment import read_environment
from xaccel.testing.ranks import load_module
from xaccel_torch.backend import TorchBackend

runs = load_module(Path(__file__).parent / "launch_runs.py")


@pytest.fixture
def fresh(ranks: Any) -> Any:
    """Two processes without a process group, before and after."""
    pool = ranks("torch", 2)
    pool.restart()
    yield pool
    pool.restart()


def test_what_we_made_is_torn_down(fresh: Any) -> None:
    assert fresh.run(runs.own_group) == [(index, 2, "gloo", 2.0, False) for index in range(2)]


def test_what_the_user_made_is_left_alone(fresh: Any) -> None:
    assert fresh.run(runs.foreign_group) == [True, True]


def test_another_place_to_meet_and_time_limit(fresh: Any, tmp_path: Path) -> None:
    assert fresh.run(runs.meeting_in_a_file, str(tmp_path / "meet")) == [(2, "0:00:17")] * 2


def test_nccl_needs_gpus(fresh: Any) -> None:
    for message in fresh.run(runs.nccl_on_the_cpu):
        assert "use 'gloo'" in message


def test_alone_there_is_no_process_group() -> None:
    backend = TorchBackend()
    topology = backend.start(read_environment(), Settings(cpu=True))
    assert (topology.num_processes, str(topology.device), topology.communication) == (1, "cpu", "none")
    backend.stop()
