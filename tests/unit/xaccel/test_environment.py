"""The environment is read once, typed, ours before the page's library's."""

from __future__ import annotations

import pytest

from xaccel.environment import LaunchEnvironment, read_environment
from xaccel.errors import ConfigurationError


def test_nothing_set() -> None:
    assert read_environment({}) == LaunchEnvironment()


def test_torchrun() -> None:
    read = read_environment(
        {
            "RANK": "3",
            "WORLD_SIZE": "4",
            "LOCAL_RANK": "1",
            "LOCAL_WORLD_SIZE": "2",
            "GROUP_RANK": "1",
            "MASTER_ADDR": "h",
            "MASTER_PORT": "29500",
        }
    )
    assert (read.process_index, read.num_processes, read.local_process_index, read.num_local_processes, read.machine_index) == (
        3,
        4,
        1,
        2,
        1,
    )
    assert (read.main_address, read.main_port) == ("h", 29500)
    assert read.is_launched


def test_slurm_writes_repeat_counts() -> None:
    read = read_environment({"SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_LOCALID": "1", "SLURM_NTASKS_PER_NODE": "4(x2)"})
    assert (read.process_index, read.num_local_processes) == (5, 4)


def test_our_names_come_first() -> None:
    both = {"XACCEL_MIXED_PRECISION": "bf16", "ACCELERATE_MIXED_PRECISION": "fp16", "ACCELERATE_DEBUG_MODE": "1"}
    read = read_environment(both)
    assert read.mixed_precision == "bf16"
    assert read.debug


@pytest.mark.parametrize(("value", "expected"), [("1", True), ("TRUE", True), ("yes", True), ("0", False), ("", False), ("off", False)])
def test_flags(value: str, expected: bool) -> None:
    assert read_environment({"XACCEL_DEBUG_MODE": value}).debug is expected


@pytest.mark.parametrize("variables", [{"RANK": "two"}, {"XACCEL_DEBUG_MODE": "maybe"}, {"XACCEL_COLLECTIVE_TIMEOUT_SECONDS": "soon"}])
def test_wrong_values_are_named(variables: dict[str, str]) -> None:
    ((name, value),) = variables.items()
    with pytest.raises(ConfigurationError, match=f"{name}='{value}'"):
        read_environment(variables)


def test_one_process_is_not_launched() -> None:
    assert not read_environment({"RANK": "0", "WORLD_SIZE": "1"}).is_launched
