"""What the JAX strategies refuse, with the reason; and where prepared objects go."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import optax
import pytest
from flax import nnx

from xaccel import (
    Accelerator,
    ArrayLoader,
    AutocastKwargs,
    DistributedDataParallelKwargs,
    GradScalerKwargs,
    InitProcessGroupKwargs,
    ParallelismConfig,
    ProjectConfiguration,
)
from xaccel.errors import ConfigurationError, UnsupportedError


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"kwargs_handlers": [DistributedDataParallelKwargs()]}, "DistributedDataParallelKwargs"),
        ({"kwargs_handlers": [GradScalerKwargs()]}, "GradScalerKwargs"),
        ({"kwargs_handlers": [AutocastKwargs(cache_enabled=True)]}, "cache_enabled"),
        ({"kwargs_handlers": [InitProcessGroupKwargs(backend="gloo")]}, "InitProcessGroupKwargs"),
        ({"mixed_precision": "fp16"}, "fp16"),
        ({"parallelism_config": ParallelismConfig(tp_size=8)}, "'tp': 8"),
        ({"dynamo_backend": "inductor"}, "dynamo_backend"),
        ({"fsdp_plugin": object()}, "fsdp_plugin"),
    ],
)
def test_refused_with_the_reason(options: dict[str, Any], named: str) -> None:
    with pytest.raises(UnsupportedError, match=named):
        Accelerator(backend="jax", cpu=True, **options)


def test_a_mesh_of_another_size_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="= 4, but the run has 8 devices"):
        Accelerator(backend="jax", cpu=True, parallelism_config=ParallelismConfig(dp_replicate_size=4))


def test_saving_on_each_node_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="save_on_each_node"):
        ProjectConfiguration(save_on_each_node=True)


def test_a_loader_may_stay_on_the_host() -> None:
    accelerator = Accelerator(backend="jax", cpu=True)
    placed, host = accelerator.prepare(
        ArrayLoader(np.arange(16.0), batch_size=1), ArrayLoader(np.arange(16.0), batch_size=1), device_placement=[True, False]
    )
    assert isinstance(next(iter(placed)), jax.Array)
    assert isinstance(next(iter(host)), np.ndarray)


def test_a_model_may_not() -> None:
    accelerator = Accelerator(backend="jax", cpu=True)
    with pytest.raises(UnsupportedError, match="device_placement=False"):
        accelerator.prepare(nnx.Linear(1, 1, rngs=nnx.Rngs(0)), optax.sgd(0.1), device_placement=[False, True])


def test_labels_and_counts() -> None:
    accelerator = Accelerator(backend="jax", cpu=True)
    assert str(accelerator.distributed_type) == "JAX"
    assert (accelerator.num_processes, accelerator.num_replicas) == (1, 8)
    assert accelerator.use_distributed


def test_generators_cannot_be_synchronised() -> None:
    accelerator = Accelerator(backend="jax", cpu=True, rng_types=["torch"])
    with pytest.raises(UnsupportedError, match="rng_types"):
        next(iter(accelerator.prepare(ArrayLoader(np.arange(16.0), batch_size=1))))


def test_preparing_twice_gives_the_same_object_and_one_object_twice_is_an_error() -> None:
    accelerator = Accelerator(backend="jax", cpu=True)
    mine = nnx.Linear(1, 1, rngs=nnx.Rngs(0))
    model = accelerator.prepare(mine)
    assert accelerator.prepare(mine) is model
    assert accelerator.prepare(model) is model
    other = nnx.Linear(1, 1, rngs=nnx.Rngs(0))
    with pytest.raises(ConfigurationError, match="positions 0 and 1"):
        accelerator.prepare(other, other)


def test_an_abandoned_loader_is_collected() -> None:
    """Case 14."""
    import gc
    import weakref

    class Data(dict):  # type: ignore[type-arg]
        """A dict that can be referred to weakly."""

    accelerator = Accelerator(backend="jax", cpu=True)
    data = Data(x=np.arange(32.0))
    alive = weakref.ref(data)
    loader = accelerator.prepare(ArrayLoader(data, batch_size=1))
    for _ in loader:
        break
    accelerator.free_memory()
    del loader, data
    gc.collect()
    assert alive() is None
