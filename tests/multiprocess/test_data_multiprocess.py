"""Loaders in real processes: dispatch, agreed ends, and metrics through real collectives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest


class Run:
    """The data vertical alone, from the torch adapter's pieces."""

    def __init__(self, **config: Any):
        from xaccel.collectives.communicator import Communicator
        from xaccel.config.data import DataLoaderConfiguration
        from xaccel.config.settings import Settings
        from xaccel.data.active import ActiveLoaders
        from xaccel.data.loader import LoaderContext
        from xaccel.environment import read_environment
        from xaccel.process.topology import ReplicaLayout
        from xaccel_torch.arrays import TorchArrays
        from xaccel_torch.collectives import TorchCollectives
        from xaccel_torch.feed import TorchFeed
        from xaccel_torch.launch import join

        topology, _ = join(read_environment(), Settings(cpu=True))
        self.process_index = topology.process_index
        collectives = TorchCollectives(topology, 30.0)
        self._communicator = Communicator(TorchArrays(), collectives, topology)
        self._context = LoaderContext(
            replicas=ReplicaLayout(num_replicas=topology.num_processes, local_replicas=(topology.process_index,)),
            config=DataLoaderConfiguration(**config),
            feed=TorchFeed(topology),
            collectives=collectives,
            active=ActiveLoaders(),
            seed=3,
            topology=topology,
        )

    def prepare(self, *loaders: Any) -> Any:
        from xaccel.data.loader import PlannedLoader
        from xaccel_torch.loaders import source_of

        made = [PlannedLoader(source_of(loader, self._context), self._context) for loader in loaders]
        return made[0] if len(made) == 1 else made

    def gather_for_metrics(self, value: Any) -> Any:
        from xaccel.gathering import gather_for_metrics

        return gather_for_metrics(value, self._communicator, self._context.active)


def torch_metrics(
    num_samples: int, batch_size: int, iterable: bool, options: dict[str, Any], config: dict[str, Any]
) -> tuple[list[int], list[int]]:
    from torch.utils.data import DataLoader, IterableDataset

    class Stream(IterableDataset):
        def __iter__(self) -> Any:
            return iter(range(num_samples))

    run = Run(**config)
    loader = run.prepare(DataLoader(Stream() if iterable else range(num_samples), batch_size, **options))
    seen, sizes = [], []
    for batch in loader:
        sizes.append(len(batch))
        seen += run.gather_for_metrics(batch).tolist()
    return seen, sizes


def torch_strings(num_samples: int) -> list[str]:
    from torch.utils.data import DataLoader

    run = Run()
    loader = run.prepare(DataLoader([f"s{index}" for index in range(num_samples)], 4))
    return [name for batch in loader for name in run.gather_for_metrics(batch)]


def torch_own_data() -> int:
    from torch.utils.data import DataLoader, IterableDataset

    run = Run(dispatch_batches=False)

    class Own(IterableDataset):
        def __iter__(self) -> Any:
            return iter(range(40 if run.process_index == 0 else 30))

    return sum(1 for _ in run.prepare(DataLoader(Own(), 4)))


def torch_failing() -> str:
    from torch.utils.data import DataLoader, IterableDataset

    class Broken(IterableDataset):
        def __iter__(self) -> Any:
            yield 1
            raise ValueError("broken file")

    try:
        list(Run().prepare(DataLoader(Broken(), 1)))
    except ValueError as error:
        return str(error)
    return "no error"


def torch_interleaved() -> list[int]:
    from torch.utils.data import DataLoader

    run = Run()
    train, evaluation = run.prepare(DataLoader(range(32), 4), DataLoader(range(5), 4))
    rows = []
    for step, batch in enumerate(train):
        rows.append(len(run.gather_for_metrics(batch)))
        if step == 1:
            assert sum(len(run.gather_for_metrics(each)) for each in evaluation) == 5
            rows.append(len(run.gather_for_metrics(batch)))
    return rows


@pytest.mark.parametrize("num_samples", [9, 97, 99])
@pytest.mark.parametrize(("iterable", "config"), [(False, {}), (True, {}), (True, {"dispatch_batches": False})])
def test_metrics_are_exactly_the_dataset(ranks, num_samples, iterable, config):
    for seen, _ in ranks("torch", 2).run(torch_metrics, num_samples, 5, iterable, {}, config):
        assert seen == list(range(num_samples))


def test_dropping_the_last_round_and_shuffling(ranks):
    results = ranks("torch", 2).run(torch_metrics, 22, 4, False, {"drop_last": True, "shuffle": True}, {})
    assert results[0] == results[1]
    assert len(set(results[0][0])) == 16


def test_a_dispatched_end_has_no_empty_batch(ranks):
    for seen, sizes in ranks("torch", 2).run(torch_metrics, 17, 4, True, {}, {}):
        assert seen == list(range(17))
        assert sizes == [4, 4, 1]


def test_dispatch_without_even_batches_loses_nothing(ranks):
    sizes = [each[1] for each in ranks("torch", 2).run(dispatched_sizes)]
    assert sizes == [[4, 4, 1], [4, 4]]


def dispatched_sizes() -> tuple[None, list[int]]:
    from torch.utils.data import DataLoader, IterableDataset

    class Stream(IterableDataset):
        def __iter__(self) -> Any:
            return iter(range(17))

    loader = Run(even_batches=False).prepare(DataLoader(Stream(), 4))
    return None, [len(batch) for batch in loader]


def test_strings_are_gathered_too(ranks):
    assert ranks("torch", 2).run(torch_strings, 11) == [[f"s{index}" for index in range(11)]] * 2


def test_processes_with_their_own_data_end_together(ranks):
    counts = ranks("torch", 2).run(torch_own_data)
    assert counts[0] == counts[1]


def test_an_error_of_the_dataset_reaches_every_process(ranks):
    assert ranks("torch", 2).run(torch_failing) == ["broken file"] * 2


def test_evaluation_in_the_middle_of_training(ranks):
    assert ranks("torch", 2).run(torch_interleaved) == [[8, 8, 8, 8, 8]] * 2


def draw_after_loading() -> tuple[float, float]:
    import torch

    from xaccel import Accelerator, ArrayLoader

    accelerator = Accelerator(backend="torch", cpu=True, rng_types=["torch"])
    torch.manual_seed(accelerator.process_index)
    before = float(torch.rand(1))
    for _ in accelerator.prepare(ArrayLoader(np.arange(8.0), batch_size=4)):
        break
    return before, float(torch.rand(1))


def test_rng_types_give_every_process_the_first_ones_generator(ranks: Any) -> None:
    (first_before, first), (second_before, second) = ranks("torch", 2).run(draw_after_loading)
    assert first_before != second_before
    assert first == second
