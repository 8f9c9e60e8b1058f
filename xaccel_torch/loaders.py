"""torch `DataLoader`s divided over replicas. The order is the core's; reading, collating and workers stay torch's."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterator
from itertools import islice, tee
from typing import Any

import numpy as np
import torch
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, SequentialSampler

from xaccel.data.loader import LoaderContext, PlannedLoader
from xaccel.data.order import epoch_order, epoch_seed
from xaccel.data.plan import EpochPlan, global_batch_size
from xaccel.data.rounds import HostBatch, StreamOptions, agreed, dispatch, sample_rounds
from xaccel.data.source import ArrayLoader, BatchStream, MapSource, dispatching, host_batch, zip_rounds
from xaccel.errors import DataError
from xaccel.preparation.plan import Item, Role


class TorchLoaderPreparer:
    """Claims torch loaders and `ArrayLoader`s."""

    role: Role = "loader"

    def claims(self, value: Any) -> bool:
        return isinstance(value, (DataLoader, ArrayLoader))

    def prepare(self, item: Item, context: Any) -> PlannedLoader:
        loaders = dataclasses.replace(context.loaders, device_placement=item.device_placement)
        return PlannedLoader(source_of(item.current, loaders), loaders)


def source_of(loader: Any, context: LoaderContext) -> Any:
    """The source for a loader, by what it reads."""
    if isinstance(loader, ArrayLoader):
        return MapSource(loader, context)
    if isinstance(loader.dataset, IterableDataset):
        return (
            BatchStream(_ReadyBatches(loader), dispatching(context))
            if loader.batch_size is None
            else SampleStream(loader, dispatching(context))
        )
    return SampledBatches(loader, context) if _is_standard(loader) else GivenBatches(loader, context)


def _is_standard(loader: DataLoader[Any]) -> bool:
    """Whether batches are consecutive samples of the sampler, so that the core's plan may cut them."""
    return type(loader.batch_sampler) is BatchSampler


def _reader(loader: DataLoader[Any], **replaced: Any) -> DataLoader[Any]:
    """A loader like the user's, reading in another order."""
    # Its own generator: torch draws a seed at every start of an iteration, which would change the user's random numbers on a resume.
    options = {
        "num_workers": loader.num_workers,
        "collate_fn": loader.collate_fn,
        "pin_memory": loader.pin_memory,
        "timeout": loader.timeout,
        "worker_init_fn": loader.worker_init_fn,
        "multiprocessing_context": loader.multiprocessing_context,
        "generator": loader.generator if loader.generator is not None else torch.Generator(),
        "prefetch_factor": loader.prefetch_factor,
        "persistent_workers": loader.persistent_workers,
        **replaced,
    }
    return DataLoader(loader.dataset, **options)


class _Indices:
    """A batch sampler whose batches are set before each pass."""

    def __init__(self) -> None:
        self.batches: Any = ()

    def __iter__(self) -> Iterator[Any]:
        return iter(self.batches)

    def __len__(self) -> int:
        return len(self.batches)


class _MapStyle:
    """What sources over map-style data share: one reading loader, kept for persistent workers."""

    def __init__(self, loader: DataLoader[Any], context: LoaderContext):
        self.loader = loader
        self.dataset = loader.dataset
        self.seed = context.seed
        self._context = context
        self._even_batches = context.config.even_batches
        found = [getattr(each, "generator", None) for each in self._samplers()]
        self._generators = [(each, each.initial_seed() % 2**63) for each in found if isinstance(each, torch.Generator)]
        self._indices = _Indices()
        auto_collation = loader.batch_size is not None or loader.batch_sampler is not None
        self._read = _reader(
            loader, **({"batch_sampler": self._indices} if auto_collation else {"sampler": self._indices, "batch_size": None})
        )

    def _samplers(self) -> list[Any]:
        batch_sampler = self.loader.batch_sampler
        inner = [getattr(each, "sampler", None) for each in (batch_sampler, self.loader.sampler)]
        return list({id(each): each for each in (batch_sampler, self.loader.sampler, *inner) if each is not None}.values())

    def set_epoch(self, epoch: int) -> None:
        for listener in (*self._samplers(), self.dataset):
            tell = getattr(listener, "set_epoch", None)
            if callable(tell):
                tell(epoch)

    def _drawn(self, sampler: Any, epoch: int) -> Any:
        """What process 0 draws in an epoch: generators of a user's sampler differ between processes.

        Drawing begins at a seed made from (seed, epoch), so that a resumed epoch has the same order, and leaves the global generator alone.
        """
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(epoch_seed(self.seed, epoch))
            for generator, seed in self._generators:
                generator.manual_seed(epoch_seed(seed, epoch))
            drawn = list(sampler)
        return self._context.collectives.broadcast_objects([drawn], 0)[0] if self._context.topology.num_processes > 1 else drawn

    def with_even_batches(self, even_batches: bool) -> Any:
        other = copy.copy(self)
        other._even_batches = even_batches
        return other


class SampledBatches(_MapStyle):
    """Batches of consecutive samples: sequential, shuffled, or in the order of a user's sampler (drawn once, then divided)."""

    def __init__(self, loader: DataLoader[Any], context: LoaderContext):
        super().__init__(loader, context)
        assert loader.batch_size is not None, "a standard batch sampler has a batch size"
        self.total_batch_size: int | None = global_batch_size(
            loader.batch_size, context.replicas.num_replicas, context.config.split_batches
        )
        self.num_samples: int | None = len(loader.sampler)  # type: ignore[arg-type]
        self._plan(self.num_samples, 0)

    def _plan(self, num_samples: int, position: int) -> EpochPlan:
        return EpochPlan(
            num_samples=num_samples,
            global_batch=self.total_batch_size or 1,
            num_replicas=self._context.replicas.num_replicas,
            even_batches=self._even_batches,
            drop_last=self.loader.drop_last,
            position=position,
        )

    def _order(self, epoch: int) -> np.ndarray:
        sampler: Any = self.loader.sampler
        if type(sampler) is SequentialSampler:
            return epoch_order(len(sampler), shuffle=False, seed=0, epoch=epoch)
        plain = type(sampler) is RandomSampler and not sampler.replacement and sampler.num_samples == len(sampler.data_source)
        if plain and self._context.config.use_seedable_sampler:
            seed = self.seed if sampler.generator is None else sampler.generator.initial_seed() % 2**63
            return epoch_order(len(sampler), shuffle=True, seed=seed, epoch=epoch)
        return np.asarray(self._drawn(sampler, epoch))

    def rounds(self, epoch: int, position: int) -> Iterator[HostBatch]:
        order = self._order(epoch)
        plan = self._plan(len(order), position)
        replica = self._context.replicas.local_replicas[0]
        count = plan.num_batches(replica)
        self._indices.batches = [order[plan.rows(index, replica)].tolist() for index in range(count)]
        for index, batch in enumerate(self._read):
            yield host_batch(plan, index, batch, is_last=index == count - 1)

    def num_batches(self, position: int) -> int:
        return self._plan(self.num_samples or 0, position).num_batches(self._context.replicas.local_replicas[0])


class GivenBatches(_MapStyle):
    """Batches of a user's batch sampler (or single samples without batching): it is asked for every batch, replicas take turns."""

    def __init__(self, loader: DataLoader[Any], context: LoaderContext):
        super().__init__(loader, context)
        self._batches: Any = loader.batch_sampler if loader.batch_sampler is not None else loader.sampler
        self._batch_size: int | None = getattr(self._batches, "batch_size", None)
        self.total_batch_size: int | None = None
        self.num_samples: int | None = None
        if (
            context.config.even_batches
            and self._batch_size is None
            and context.replicas.num_replicas > 1
            and loader.batch_sampler is not None
        ):
            raise DataError(
                f"even_batches needs a batch_size, and {type(self._batches).__name__} has none: set DataLoaderConfiguration(even_batches=False) or give it one"
            )

    def rounds(self, epoch: int, position: int) -> Iterator[HostBatch]:
        given = [batch if isinstance(batch, (list, tuple)) else [batch] for batch in self._drawn(self._batches, epoch)]
        planned = [each for each in self._planned(given) if each[1] > 0]
        start = _rounds_before(planned, position)
        own = [each for each in planned[start:] if each[0]]
        nested = self.loader.batch_sampler is not None or isinstance(self._batches, BatchSampler)
        self._indices.batches = [indices if nested else indices[0] for indices, *_ in own]
        for index, batch in enumerate(self._read):
            _, real, remainder, total = own[index]
            yield HostBatch(batch, real, remainder, total, is_last=index == len(own) - 1)

    def _planned(self, given: list[Any]) -> Iterator[tuple[list[Any], int, int, int]]:
        """For each round: this replica's indices, real rows of the round, rows to keep, and rows in all."""
        count, own = self._context.replicas.num_replicas, self._context.replicas.local_replicas[0]
        if self._context.config.split_batches:
            yield from (self._divided(list(batch), count, own) for batch in given)
            return
        everything = [index for batch in given for index in batch]
        for start in range(0, len(given), count):
            held = [list(batch) for batch in given[start : start + count]]
            real = sum(map(len, held))
            if getattr(self._batches, "drop_last", False) and len(held) < count:
                return
            if self._even_batches and count > 1 and start + count >= len(given):
                held = _filled(held, count, self._batch_size or 1, everything)
            total = sum(map(len, held))
            yield (held[own] if own < len(held) else []), real, real if total > real else -1, total

    def _divided(self, batch: list[Any], count: int, own: int) -> tuple[list[Any], int, int, int]:
        each = -(-len(batch) // count)
        rows = [batch[index % len(batch)] for index in range(each * count)] if self._even_batches else batch
        return rows[own * each : (own + 1) * each], len(batch), len(batch) if len(rows) > len(batch) else -1, len(rows)

    def num_batches(self, position: int) -> int:
        count = len(self._batches)
        replicas = self._context.replicas.num_replicas
        if self._context.config.split_batches:
            return count
        if getattr(self._batches, "drop_last", False):
            return count // replicas
        if self._even_batches:
            return -(-count // replicas)
        return -(-(count - self._context.replicas.local_replicas[0]) // replicas)


def _filled(held: list[list[Any]], count: int, batch_size: int, everything: list[Any]) -> list[list[Any]]:
    """The epoch's last round with a batch for every replica, filled from the beginning of the epoch, behind all rows that are real."""
    missing = max(0, batch_size - len(held[-1]))
    sizes = [missing] + [batch_size] * (count - len(held))
    filler = [everything[index % len(everything)] for index in range(sum(sizes))]
    return [
        *held[:-1],
        held[-1] + filler[:missing],
        *(filler[start : start + batch_size] for start in range(missing, len(filler), batch_size)),
    ]


def _rounds_before(planned: list[tuple[list[Any], int, int, int]], position: int) -> int:
    consumed = 0
    for index, (_, real, _, _) in enumerate(planned):
        if consumed >= position:
            return index
        consumed += real
    return len(planned) if position > 0 else 0


class _ReadyBatches:
    """An iterable dataset that gives whole batches: the user's loader, iterated anew every epoch."""

    def __init__(self, loader: DataLoader[Any]):
        self.dataset = loader.dataset
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        return iter(self.loader)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.loader, name)


class SampleStream:
    """An iterable dataset of samples: rounds of consecutive samples, each replica's rows collated."""

    def __init__(self, loader: DataLoader[Any], context: LoaderContext):
        assert loader.batch_size is not None, "a loader without a batch size gives ready batches"
        self.loader = loader
        self.dataset = loader.dataset
        self.seed = context.seed
        self._context = context
        self._even_batches = context.config.even_batches
        self.total_batch_size: int | None = None
        self.num_samples: int | None = None
        self._global = global_batch_size(loader.batch_size, context.replicas.num_replicas, context.config.split_batches)
        EpochPlan(num_samples=0, global_batch=self._global, num_replicas=context.replicas.num_replicas)
        self._read = _reader(loader, batch_size=None, collate_fn=_unchanged)

    def rounds(self, epoch: int, position: int) -> Iterator[HostBatch]:
        context = self._context
        if context.topology.num_processes == 1 or not context.config.dispatch_batches:
            own = self._rounds_for(context.replicas.local_replicas, iter(self._read), position)
            yield from agreed(own, context.collectives) if self._even_batches and context.topology.num_processes > 1 else own
            return
        shares = context.collectives.gather_objects(context.replicas.local_replicas)
        read = self._shared(shares, position) if context.topology.process_index == 0 else None
        yield from dispatch(read, context.topology.process_index, context.collectives)

    def _shared(self, shares: list[tuple[int, ...]], position: int) -> Iterator[list[HostBatch | None]]:
        streams = tee(iter(self._read), len(shares))
        return zip_rounds([self._rounds_for(share, stream, position) for share, stream in zip(shares, streams, strict=True)])

    def _rounds_for(self, replicas: tuple[int, ...], samples: Iterator[Any], position: int) -> Iterator[HostBatch]:
        options = StreamOptions(
            num_replicas=self._context.replicas.num_replicas,
            replicas=replicas,
            even_batches=self._even_batches,
            drop_last=self.loader.drop_last,
            full_batches=not self._context.config.dispatch_batches,
        )
        rows = self._global // self._context.replicas.num_replicas
        return sample_rounds(islice(samples, position, None), rows, self.loader.collate_fn, options)

    def num_batches(self, position: int) -> int | None:
        if getattr(self.dataset, "__len__", None) is None:
            return None
        plan = EpochPlan(
            num_samples=len(self.dataset),  # type: ignore[arg-type]
            global_batch=self._global,
            num_replicas=self._context.replicas.num_replicas,
            even_batches=self._even_batches,
            drop_last=self.loader.drop_last,
            position=position,
        )
        return plan.num_batches(self._context.replicas.local_replicas[0])

    def set_epoch(self, epoch: int) -> None:
        tell = getattr(self.dataset, "set_epoch", None)
        if callable(tell):
            tell(epoch)

    def with_even_batches(self, even_batches: bool) -> SampleStream:
        other = copy.copy(self)
        other._even_batches = even_batches
        return other


def _unchanged(sample: Any) -> Any:
    return sample
