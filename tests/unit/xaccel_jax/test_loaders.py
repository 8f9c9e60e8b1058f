from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from xaccel.config.data import DataLoaderConfiguration
from xaccel.data.active import ActiveLoaders
from xaccel.data.loader import LoaderContext, PlannedLoader
from xaccel.data.source import ArrayLoader
from xaccel.errors import DataError, UnsupportedError
from xaccel.process.topology import ProcessTopology, ReplicaLayout
from xaccel_jax.feed import JaxFeed
from xaccel_jax.loaders import JaxLoaderPreparer, source_of


def prepared(loader: Any, count: int, seed: int = 3, **config: Any) -> PlannedLoader:
    given = LoaderContext(
        replicas=ReplicaLayout(num_replicas=count, local_replicas=tuple(range(count))),
        config=DataLoaderConfiguration(**config),
        feed=JaxFeed(Mesh(np.array(jax.devices()[:count]), ("dp",)), ("dp",)),
        collectives=None,
        active=ActiveLoaders(),
        seed=seed,
        topology=ProcessTopology(),
    )
    return PlannedLoader(source_of(loader, given), given)


def metrics(loader: PlannedLoader, take: Any = lambda batch: batch) -> list[int]:
    result: list[int] = []
    for batch in loader:
        row = np.asarray(take(batch)).tolist()
        result += row[: loader.remainder] if loader.remainder >= 0 else row
    return result


@pytest.mark.parametrize("count", [1, 4, 8])
@pytest.mark.parametrize("num_samples", [1, 10, 37])
def test_arrays_become_global_arrays_over_the_replicas(num_samples, count):
    loader = prepared(ArrayLoader({"x": np.arange(num_samples), "tags": {"y": np.ones((num_samples, 3))}}, 2), count)
    assert metrics(loader, lambda batch: batch["x"]) == list(range(num_samples))
    if count > 1:
        (batch, *_) = list(loader)
        assert batch["x"].shape == (2 * count,)
        assert {shard.data.shape for shard in batch["tags"]["y"].addressable_shards} == {(2, 3)}


def test_shapes_are_the_same_in_every_round():
    loader = prepared(ArrayLoader(np.arange(10), 1), 8)
    assert [batch.shape for batch in loader] == [(8,), (8,)]


def test_a_torch_loader_keeps_its_collating_and_gives_the_order_of_torch():
    data = pytest.importorskip("torch.utils.data")
    from xaccel_torch.loaders import source_of as torch_source_of

    class Tagged:
        def __len__(self) -> int:
            return 22

        def __getitem__(self, index: int) -> Any:
            return {"x": index, "name": f"n{index}"}

    torch_loader = data.DataLoader(Tagged(), 2, shuffle=True)
    loader = prepared(torch_loader, 4)
    seen = metrics(loader, lambda batch: batch["x"])
    assert sorted(seen) == list(range(22))
    first = next(iter(loader))
    assert first["name"] == [f"n{index}" for index in np.asarray(first["x"])]
    own: list[list[int]] = []
    for replica in range(4):
        given = LoaderContext(
            replicas=ReplicaLayout(num_replicas=4, local_replicas=(replica,)),
            config=DataLoaderConfiguration(),
            feed=None,
            collectives=None,
            active=ActiveLoaders(),
            seed=3,
            topology=ProcessTopology(),
            device_placement=False,
        )
        own.append([batch["x"].tolist() for batch in PlannedLoader(torch_source_of(torch_loader, given), given)])
    assert [row for batches in zip(*own, strict=True) for batch in batches for row in batch][:22] == seen


def test_a_generator_of_the_user_is_the_seed_as_in_torch():
    torch = pytest.importorskip("torch")

    def order(seed: int) -> list[int]:
        generator = torch.Generator().manual_seed(seed)
        return metrics(prepared(torch.utils.data.DataLoader(range(20), 2, shuffle=True, generator=generator), 2))

    assert order(5) == order(5) != order(6)


def test_a_sampler_of_the_user_is_asked():
    data = pytest.importorskip("torch.utils.data")
    assert metrics(prepared(data.DataLoader(range(6), 2, sampler=[5, 3, 1, 0, 2]), 2)) == [5, 3, 1, 0, 2]


def test_any_iterable_of_batches():
    def batches() -> Any:
        for start in range(0, 22, 4):
            yield {"x": np.arange(start, min(start + 4, 22)), "note": None}

    loader = prepared(batches(), 4)
    assert metrics(loader, lambda batch: batch["x"]) == list(range(22))
    with pytest.raises(TypeError):
        len(loader)


def test_integers_are_never_wrapped():
    with pytest.raises(DataError, match="do not fit into int32"):
        list(prepared(ArrayLoader(np.array([2**40]), 1), 1))
    (batch,) = prepared(ArrayLoader(np.array([7]), 1), 1)
    assert batch.dtype == np.int32


def test_uneven_shards_are_refused():
    with pytest.raises(UnsupportedError, match="use drop_last=True"):
        prepared(ArrayLoader(np.arange(3), 1), 2, even_batches=False)


def test_claims():
    claims = JaxLoaderPreparer().claims
    assert claims(ArrayLoader(np.arange(3)))
    assert claims(iter([1]))
    assert not claims({"x": 1})
    assert not claims(np.arange(3))
    assert not claims(len)
