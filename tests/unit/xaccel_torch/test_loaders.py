from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, WeightedRandomSampler

from xaccel.config.data import DataLoaderConfiguration
from xaccel.data.active import ActiveLoaders
from xaccel.data.loader import LoaderContext, PlannedLoader
from xaccel.errors import DataError
from xaccel.process.topology import ProcessTopology, ReplicaLayout
from xaccel_torch.feed import TorchFeed
from xaccel_torch.loaders import TorchLoaderPreparer, source_of


def replicas(loader: Any, count: int, seed: int = 3, **config: Any) -> list[PlannedLoader]:
    """The loaders that `count` replicas would have, in one process."""
    topology = ProcessTopology(device=torch.device("cpu"))
    made = []
    for index in range(count):
        given = LoaderContext(
            replicas=ReplicaLayout(num_replicas=count, local_replicas=(index,)),
            config=DataLoaderConfiguration(**config),
            feed=TorchFeed(topology),
            collectives=None,
            active=ActiveLoaders(),
            seed=seed,
            topology=topology,
        )
        made.append(PlannedLoader(source_of(loader, given), given))
    return made


def metrics(loaders: list[PlannedLoader]) -> list[int]:
    """What `gather_for_metrics` would give over one pass."""
    result: list[int] = []
    for batches in zip(*loaders, strict=True):
        row = torch.cat(batches).tolist()
        result += row[: loaders[0].remainder] if loaders[0].remainder >= 0 else row
    return result


class Stream(IterableDataset):
    def __init__(self, *items: Any):
        self.items = items

    def __iter__(self) -> Any:
        return iter(self.items)


class Hearing:
    """A batch sampler without `.sampler` and `.batch_size`."""

    drop_last = False

    def __init__(self, *batches: list[int]):
        self.batches = batches
        self.heard: list[int] = []

    def __iter__(self) -> Any:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)

    def set_epoch(self, epoch: int) -> None:
        self.heard.append(epoch)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize(("num_samples", "batch_size"), [(9, 5), (11, 5), (512, 16), (3, 4), (0, 2), (1, 1)])
@pytest.mark.parametrize("drop_last", [False, True])
def test_metrics_see_every_sample_once_in_order(num_samples, batch_size, count, drop_last):
    loaders = replicas(DataLoader(range(num_samples), batch_size, drop_last=drop_last), count)
    size = batch_size * count
    expected = list(range(num_samples // size * size if drop_last else num_samples))
    assert metrics(loaders) == expected
    assert [len(each) for each in loaders] == [len(list(each)) for each in loaders]


def test_shuffled_epochs_are_permutations_split_over_the_replicas():
    loaders = replicas(DataLoader(range(22), 4, shuffle=True), 2)
    first, second = metrics(loaders), metrics(loaders)
    assert sorted(first) == sorted(second) == list(range(22))
    assert first != second


def test_with_split_batches_the_global_order_is_that_of_any_replica_count():
    loader = DataLoader(range(21), 4, shuffle=True)
    assert len({tuple(metrics(replicas(loader, count, split_batches=True))) for count in (1, 2, 4)}) == 1


def test_a_generator_of_the_user_is_the_seed():
    def order(seed: int) -> list[int]:
        return metrics(replicas(DataLoader(range(20), 4, shuffle=True, generator=torch.Generator().manual_seed(seed)), 2))

    assert order(5) == order(5) != order(6)


def test_a_weighted_sampler_draws_once_in_each_epoch():
    (loader,) = replicas(DataLoader(range(10), 5, sampler=WeightedRandomSampler([1.0] + [0.0] * 9, 10)), 1)
    assert metrics([loader]) == [0] * 10


def test_a_sampler_with_a_generator_resumes_and_leaves_the_global_generator_alone():
    def fresh() -> list[PlannedLoader]:
        sampler = WeightedRandomSampler([1.0] * 30, 30, generator=torch.Generator().manual_seed(4))
        return replicas(DataLoader(range(30), 5, sampler=sampler), 2)

    bare = list(WeightedRandomSampler([1.0] * 30, 30, generator=torch.Generator().manual_seed(4)))
    before = torch.get_rng_state()
    running = fresh()
    first, second = metrics(running), metrics(running)
    assert first == bare != second
    again = fresh()
    for each in again:
        each.load_state_dict({"seed": 3, "epoch": 1, "samples": 10})
    assert metrics(again) == second[10:]
    assert torch.equal(before, torch.get_rng_state())


def test_every_batch_of_a_batch_sampler_goes_to_one_replica():
    sampler = Hearing([0, 1, 2], [3], [4, 5], [6, 7, 8, 9])
    loaders = replicas(DataLoader(range(10), batch_sampler=sampler), 2, even_batches=False)
    assert [[batch.tolist() for batch in loader] for loader in loaders] == [[[0, 1, 2], [4, 5]], [[3], [6, 7, 8, 9]]]


def test_even_batches_needs_a_batch_size():
    with pytest.raises(DataError, match="needs a batch_size, and Hearing has none"):
        replicas(DataLoader(range(4), batch_sampler=Hearing([0, 1], [2, 3])), 2)


class Buckets(Hearing):
    batch_size = 3


def test_the_last_round_of_a_batch_sampler_is_filled_behind_all_real_rows():
    loaders = replicas(DataLoader(range(10), batch_sampler=Buckets([0, 1, 2], [3, 4, 5], [6, 7])), 2)
    assert [[batch.tolist() for batch in loader] for loader in loaders] == [[[0, 1, 2], [6, 7, 0]], [[3, 4, 5], [1, 2, 3]]]
    assert metrics(loaders) == list(range(8))


def test_sampler_batch_sampler_and_dataset_hear_the_epoch():
    class Data(list):
        heard: list[int]

        def set_epoch(self, epoch: int) -> None:
            self.heard.append(epoch)

    sampler, data = Hearing([0], [1]), Data(range(2))
    data.heard = []
    (loader,) = replicas(DataLoader(data, batch_sampler=sampler), 1, even_batches=False)
    for _ in range(3):
        list(loader)
    loader.set_epoch(5)
    assert sampler.heard == data.heard == [0, 1, 2, 5]


def test_a_batch_sampler_as_sampler_collates_once():
    collated = []

    def collate(batch: Any) -> torch.Tensor:
        collated.append(batch)
        return torch.as_tensor(batch)

    class Data:
        def __len__(self) -> int:
            return 22

        def __getitem__(self, rows: list[int]) -> list[int]:
            return list(rows)

    data = Data()
    sampler = BatchSampler(RandomSampler(range(22), generator=torch.Generator().manual_seed(0)), 4, drop_last=False)
    (loader,) = replicas(DataLoader(data, sampler=sampler, batch_size=None, collate_fn=collate), 1)
    assert sorted(metrics([loader])) == list(range(22))
    assert len(collated) == 6


def test_an_iterable_is_dispatched_in_small_last_batches():
    loaders = replicas(DataLoader(Stream(*range(18)), 4), 4, dispatch_batches=True)
    assert [[len(batch) for batch in loader] for loader in loaders] == [[4, 1]] * 4
    assert metrics(loaders) == list(range(18))
    dropping = replicas(DataLoader(Stream(*range(18)), 4, drop_last=True), 4, dispatch_batches=True)
    assert metrics(dropping) == list(range(16))


def test_an_iterable_sharded_by_sample_is_seen_once():
    loaders = replicas(DataLoader(Stream(*range(10)), 4), 2, dispatch_batches=False)
    assert metrics(loaders) == list(range(10))


def test_ready_batches_of_an_iterable_go_out_untouched_in_reading_order():
    loader = DataLoader(Stream(torch.zeros(2, 5), torch.ones(2, 7)), batch_size=None)
    assert [[tuple(batch.shape) for batch in each] for each in replicas(loader, 2)] == [[(2, 5)], [(2, 7)]]


def test_a_list_of_images_stays_a_list():
    images = [torch.zeros(3, 4, 5), torch.zeros(3, 6, 7)]
    (loader,) = replicas(DataLoader(Stream(*images), 2, collate_fn=list), 1)
    (batch,) = list(loader)
    assert [tuple(image.shape) for image in batch] == [(3, 4, 5), (3, 6, 7)]


def test_without_a_length_only_len_fails():
    (loader,) = replicas(DataLoader(Stream(1, 2, 3), 2), 1)
    with pytest.raises(TypeError, match="no length"):
        len(loader)
    assert metrics([loader]) == [1, 2, 3]


@pytest.mark.parametrize("seedable", [True, False])
def test_resume_in_the_middle_of_an_epoch(seedable):
    def fresh() -> list[PlannedLoader]:
        return replicas(DataLoader(range(64), 4, shuffle=True), 2, use_seedable_sampler=seedable)

    torch.manual_seed(0)
    (running, _) = fresh()
    list(running)
    rest, state, between = [], {}, None
    for step, batch in enumerate(running, start=1):
        if step > 3:
            rest.append(batch.tolist())
        if step == 3:
            state, between = running.state_dict(), torch.get_rng_state()
    following = [batch.tolist() for batch in running]
    again, _ = fresh()
    again.load_state_dict(state)
    torch.set_rng_state(between)
    assert [batch.tolist() for batch in again] == rest
    assert [batch.tolist() for batch in again] == following


class Noisy:
    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> torch.Tensor:
        return index + torch.rand(())


def test_noise_of_the_dataset_goes_on_where_it_was():
    torch.manual_seed(0)
    (running,) = replicas(DataLoader(Noisy(), 4, shuffle=True), 1)
    rest, state, between = [], {}, None
    for step, batch in enumerate(running, start=1):
        if step > 5:
            rest.append(batch)
        if step == 5:
            state, between = running.state_dict(), torch.get_rng_state()
    torch.manual_seed(1)
    (again,) = replicas(DataLoader(Noisy(), 4, shuffle=True), 1, seed=8)
    again.load_state_dict(state)
    torch.set_rng_state(between)
    assert all(torch.equal(mine, theirs) for mine, theirs in zip(again, rest, strict=True))


def test_workers_stay():
    loader = DataLoader(range(11), 3, shuffle=True, num_workers=1, persistent_workers=True)
    loaders = replicas(loader, 1)
    assert [sorted(metrics(loaders)) for _ in range(2)] == [list(range(11))] * 2


def test_attributes_of_the_users_loader_are_there():
    loader = DataLoader(range(4), 2)
    (prepared,) = replicas(loader, 1)
    assert prepared.dataset is loader.dataset
    assert prepared.batch_sampler is loader.batch_sampler
    assert prepared.collate_fn is loader.collate_fn
    assert not TorchLoaderPreparer().claims([1, 2])
    assert TorchLoaderPreparer().claims(loader)
