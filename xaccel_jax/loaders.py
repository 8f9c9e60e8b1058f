"""Loaders divided over the replicas of a mesh: `ArrayLoader`s by plan, torch's `DataLoader`s over map-style data by the same plan, any other
iterable batch by batch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

import jax
import numpy as np

from xaccel.data.loader import LoaderContext, PlannedLoader
from xaccel.data.source import ArrayLoader, BatchStream, MapSource, dispatching
from xaccel.errors import UnsupportedError
from xaccel.preparation.plan import Item, Role


class JaxLoaderPreparer:
    """Claims `ArrayLoader`s, generators and other one-pass iterators, the loaders of known libraries, and anything else that iterates over batches."""

    role: Role = "loader"

    def claims(self, value: Any) -> bool:
        if isinstance(value, (ArrayLoader, Iterator)):
            return True
        if isinstance(value, (str, bytes, dict, list, tuple, set, jax.Array, np.ndarray)):
            return False
        return isinstance(value, Iterable)

    def prepare(self, item: Item, context: Any) -> PlannedLoader:
        loaders = dataclasses.replace(context.loaders, device_placement=item.device_placement)
        return PlannedLoader(source_of(item.current, loaders), loaders)


def source_of(loader: Any, context: LoaderContext) -> Any:
    """The source for a loader, by what it reads.

    Raises:
        UnsupportedError: `even_batches=False` over several replicas without `drop_last`: global arrays have equal shards.
    """
    source = _map_source(loader, context) or BatchStream(loader, dispatching(context), equal_rows=True)
    if not context.config.even_batches and context.replicas.num_replicas > 1 and not getattr(loader, "drop_last", False):
        raise UnsupportedError(
            "even_batches=False: the rows of a global array divide evenly over the replicas; use drop_last=True, or even_batches=True"
        )
    return source


def _map_source(loader: Any, context: LoaderContext) -> MapSource | None:
    if isinstance(loader, ArrayLoader):
        return MapSource(loader, context)
    return TorchMapSource(loader, context) if _is_standard_torch_loader(loader, context) else None


def _is_standard_torch_loader(loader: Any, context: LoaderContext) -> bool:
    """Whether it is a torch `DataLoader` that reads a map-style dataset in order or shuffled, which the core's plan can do."""
    if type(loader).__module__.partition(".")[0] != "torch" or type(getattr(loader, "batch_sampler", None)).__name__ != "BatchSampler":
        return False
    sampler = loader.sampler
    if type(sampler).__name__ == "SequentialSampler":
        return True
    plain = type(sampler).__name__ == "RandomSampler" and not sampler.replacement and len(sampler) == len(sampler.data_source)
    return plain and context.config.use_seedable_sampler


class _TorchPlan(ArrayLoader):
    """What the plan asks of a torch `DataLoader`."""

    def __init__(self, loader: Any):
        self.dataset = loader.dataset
        self.num_samples = len(loader.sampler)
        self.batch_size = loader.batch_size
        self.shuffle = type(loader.sampler).__name__ == "RandomSampler"
        self.drop_last = loader.drop_last
        generator = loader.sampler.generator if self.shuffle else None
        self.seed = None if generator is None else generator.initial_seed() % 2**63


class TorchMapSource(MapSource):
    """A torch `DataLoader` read in the core's order, by its own workers and `collate_fn`; a batch has the rows of all local replicas."""

    def __init__(self, loader: Any, context: LoaderContext):
        super().__init__(_TorchPlan(loader), context)
        self.loader = loader
        self._batches: list[list[int]] = []
        self._read = type(loader)(
            loader.dataset,
            batch_sampler=_Fixed(self._batches),
            num_workers=loader.num_workers,
            collate_fn=loader.collate_fn,
            timeout=loader.timeout,
            worker_init_fn=loader.worker_init_fn,
            multiprocessing_context=loader.multiprocessing_context,
            generator=loader.generator,
            prefetch_factor=loader.prefetch_factor,
            persistent_workers=loader.persistent_workers,
        )

    def read(self, batches: Iterable[np.ndarray]) -> Iterator[Any]:
        self._batches[:] = [indices.tolist() for indices in batches]
        return iter(self._read)

    def set_epoch(self, epoch: int) -> None:
        tell = getattr(self.dataset, "set_epoch", None)
        if callable(tell):
            tell(epoch)


class _Fixed:
    """A batch sampler over a list that is filled before each pass."""

    def __init__(self, batches: list[list[int]]):
        self._batches = batches

    def __iter__(self) -> Iterator[list[int]]:
        return iter(list(self._batches))

    def __len__(self) -> int:
        return len(self._batches)
