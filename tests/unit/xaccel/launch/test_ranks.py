"""Each process's environment."""

from __future__ import annotations

import pytest

from xaccel.errors import ConfigurationError
from xaccel.launch.ranks import LaunchRequest, rank_environments


def test_torch_on_two_processes() -> None:
    first, second = rank_environments(LaunchRequest(backend="torch", num_processes=2, main_port=1234, cpu=True), {"HOME": "/h"})
    assert (first["RANK"], second["RANK"], second["WORLD_SIZE"], second["LOCAL_WORLD_SIZE"]) == ("0", "1", "2", "2")
    assert (first["MASTER_ADDR"], first["MASTER_PORT"], first["HOME"], first["XACCEL_USE_CPU"]) == ("127.0.0.1", "1234", "/h", "1")
    assert "NPROC" not in first


def test_jax_on_virtual_devices() -> None:
    (only,) = rank_environments(LaunchRequest(backend="jax", num_devices=8), {"XLA_FLAGS": "--a --xla_force_host_platform_device_count=2"})
    assert only["XLA_FLAGS"] == "--a --xla_force_host_platform_device_count=8"
    assert (only["NPROC"], only["JAX_PLATFORMS"]) == ("16", "cpu")
    assert "RANK" not in only


def test_the_pool_is_twice_the_devices_and_the_user_s_own_number_stays() -> None:
    assert rank_environments(LaunchRequest(backend="jax", num_devices=32), {})[0]["NPROC"] == "64"
    assert rank_environments(LaunchRequest(backend="jax", num_devices=32), {"NPROC": "40"})[0]["NPROC"] == "40"


def test_settings_reach_the_script() -> None:
    request = LaunchRequest(backend="torch", mixed_precision="bf16", gradient_accumulation_steps=4, debug=True)
    (only,) = rank_environments(request, {})
    assert (only["XACCEL_MIXED_PRECISION"], only["XACCEL_GRADIENT_ACCUMULATION_STEPS"], only["XACCEL_DEBUG_MODE"]) == ("bf16", "4", "1")


@pytest.mark.parametrize("wrong", [{"num_processes": 0}, {"num_devices": 2}])
def test_wrong_requests(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigurationError):
        LaunchRequest(backend="torch", **wrong)  # type: ignore[arg-type]
