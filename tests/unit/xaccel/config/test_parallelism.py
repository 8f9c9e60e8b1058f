"""Sizes are checked against the run."""

from __future__ import annotations

import json

import pytest

from xaccel.config.parallelism import ParallelismConfig
from xaccel.errors import ConfigurationError, UnsupportedError


def test_sizes_and_names() -> None:
    config = ParallelismConfig(dp_replicate_size=2, dp_shard_size=3, tp_size=4)
    assert (config.total_size, config.data_parallel_size, config.non_data_parallel_size) == (24, 6, 4)
    assert config.active_mesh_dims == ["dp_replicate", "dp_shard", "tp"]
    assert (config.dp_dim_names, config.non_dp_dim_names) == (["dp_replicate", "dp_shard"], ["tp"])
    assert config.mesh().sizes == {"dp_replicate": 2, "dp_shard": 3, "tp": 4}
    config.validate(24)


def test_the_product_is_written_out() -> None:
    with pytest.raises(
        ConfigurationError, match=r"dp_replicate\(2\) \* dp_shard\(1\) \* cp\(1\) \* sp\(1\) \* tp\(2\) = 4, but the run has 8"
    ):
        ParallelismConfig(dp_replicate_size=2, tp_size=2).validate(8)


@pytest.mark.parametrize(
    "wrong",
    [
        {"tp_size": 0},
        {"dp_shard_size": 1.5},
        {"tp_size": True},
        {"cp_size": 2, "sp_size": 2},
        {"cp_backend": "deepspeed"},
        {"sp_backend": "torch"},
    ],
)
def test_wrong_sizes(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigurationError):
        ParallelismConfig(**wrong)


def test_no_active_axis_is_a_mesh_of_one() -> None:
    assert ParallelismConfig().mesh().num_devices == 1


def test_sizes_of_none_are_one() -> None:
    assert ParallelismConfig(dp_shard_size=None, tp_size=2) == ParallelismConfig(tp_size=2)


def test_axes_that_cp_joins() -> None:
    config = ParallelismConfig(dp_replicate_size=2, dp_shard_size=2, cp_size=2, cp_backend="torch", tp_size=2)
    assert config.dp_shard_cp_dim_names == ["dp_shard", "cp"]
    assert config.dp_cp_dim_names == ["dp_replicate", "dp_shard", "cp"]
    assert json.loads(config.to_json())["cp_backend"] == "torch"


def test_handlers_are_refused_not_ignored() -> None:
    with pytest.raises(UnsupportedError, match="tp_handler, sp_handler"):
        ParallelismConfig(tp_handler=object(), sp_handler=object())
