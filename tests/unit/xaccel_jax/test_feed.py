from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from xaccel.errors import DataError
from xaccel.process.topology import ReplicaLayout
from xaccel_jax.feed import JaxFeed, host_array

FOUR = ReplicaLayout(num_replicas=4, local_replicas=(0, 1, 2, 3))


def feed() -> JaxFeed:
    return JaxFeed(Mesh(np.array(jax.devices()[:8]).reshape(4, 2), ("dp", "tp")), ("dp",))


def test_rows_are_divided_over_the_replica_axes_alone():
    placed = feed().place({"x": np.arange(8.0), "scale": np.float32(2), "name": "a", "none": None}, FOUR)
    assert placed["x"].sharding.spec == jax.sharding.PartitionSpec(("dp",))
    assert {shard.data.shape for shard in placed["x"].addressable_shards} == {(2,)}
    assert placed["scale"].sharding.is_fully_replicated
    assert placed["name"] == "a"
    assert placed["none"] is None


def test_rows_that_do_not_divide_are_refused():
    with pytest.raises(DataError, match="6 rows does not divide over this process's 4 replicas"):
        feed().place(np.arange(6), FOUR)


def test_torch_tensors_become_numpy():
    torch = pytest.importorskip("torch")
    values = host_array(torch.tensor([1, 2]))
    assert isinstance(values, np.ndarray)
    assert values.dtype == np.int32
