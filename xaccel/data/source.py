"""Map-style data without any framework: `ArrayLoader`, and how it is divided into rounds. Also streams of ready batches."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from itertools import tee, zip_longest
from typing import Any

import numpy as np

from xaccel.data.batches import take_rows
from xaccel.data.loader import LoaderContext
from xaccel.data.order import epoch_order
from xaccel.data.plan import EpochPlan, global_batch_size
from xaccel.data.rounds import HostBatch, StreamOptions, agreed, batch_rounds, dispatch
from xaccel.errors import DataError
from xaccel.tree import leaves_with_paths, path_name


class ArrayLoader:
    """A loader over arrays in memory, for every framework.

    Args:
        arrays: nested arrays of the same number of rows, `(num_samples, ...)`; a batch is the same nesting of rows.
        batch_size: rows of a batch.
        shuffle: whether each epoch has its own order.
        drop_last: whether an incomplete last round is left out.

    Raises:
        DataError: no arrays, arrays of different lengths, or a batch size below 1.

    >>> loader = ArrayLoader({"x": np.arange(5)}, batch_size=2)
    >>> [batch["x"].tolist() for batch in loader], len(loader)
    ([[0, 1], [2, 3], [4]], 3)
    """

    def __init__(self, arrays: Any, batch_size: int = 1, *, shuffle: bool = False, drop_last: bool = False):
        lengths = {path_name(path): len(leaf) for path, leaf in leaves_with_paths(arrays)}
        if not lengths or len(set(lengths.values())) > 1:
            raise DataError(f"ArrayLoader: expected arrays of one length, got {lengths or 'none'}")
        if batch_size < 1:
            raise DataError(f"ArrayLoader(batch_size={batch_size}): expected at least 1")
        self.dataset = arrays
        self.num_samples = next(iter(lengths.values()))
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.seed: int | None = None
        self._epoch = 0

    def __iter__(self) -> Iterator[Any]:
        order = epoch_order(self.num_samples, shuffle=self.shuffle, seed=0, epoch=self._epoch)
        self._epoch += 1
        for start in range(0, len(self) * self.batch_size, self.batch_size):
            yield take_rows(self.dataset, order[start : start + self.batch_size])

    def __len__(self) -> int:
        return self.num_samples // self.batch_size if self.drop_last else -(-self.num_samples // self.batch_size)


class MapSource:
    """Rounds of an `ArrayLoader`. See `xaccel.data.loader.Source`.

    Args:
        loader: the user's.
        context: the run.
    """

    def __init__(self, loader: ArrayLoader, context: LoaderContext):
        self.loader: Any = loader
        self._options = loader
        self.dataset = loader.dataset
        self.num_samples: int | None = loader.num_samples
        self.seed = context.seed if loader.seed is None else loader.seed
        self._replicas = context.replicas
        self._even_batches = context.config.even_batches
        self.total_batch_size: int | None = global_batch_size(loader.batch_size, self._replicas.num_replicas, context.config.split_batches)
        self._plan(0)

    def _plan(self, position: int) -> EpochPlan:
        return EpochPlan(
            num_samples=self._options.num_samples,
            global_batch=self.total_batch_size or 1,
            num_replicas=self._replicas.num_replicas,
            even_batches=self._even_batches,
            drop_last=self._options.drop_last,
            position=position,
        )

    def rounds(self, epoch: int, position: int) -> Iterator[HostBatch]:
        order = epoch_order(self._options.num_samples, shuffle=self._options.shuffle, seed=self.seed, epoch=epoch)
        plan, count = self._plan(position), self.num_batches(position)
        places = (np.concatenate([plan.rows(index, replica) for replica in self._replicas.local_replicas]) for index in range(count))
        for index, batch in enumerate(self.read(order[rows] for rows in places)):
            yield host_batch(plan, index, batch, is_last=index == count - 1)

    def read(self, batches: Iterable[np.ndarray]) -> Iterator[Any]:
        """One host batch for each array of sample indices."""
        return (take_rows(self.dataset, indices) for indices in batches)

    def num_batches(self, position: int) -> int:
        plan = self._plan(position)
        return max(plan.num_batches(replica) for replica in self._replicas.local_replicas)

    def set_epoch(self, epoch: int) -> None:
        """The order is a function of the epoch that `rounds` is given; nobody else listens."""

    def with_even_batches(self, even_batches: bool) -> MapSource:
        other = copy.copy(self)
        other._even_batches = even_batches
        return other


def host_batch(plan: EpochPlan, round_index: int, batch: Any, is_last: bool) -> HostBatch:
    """One planned round."""
    real, remainder = plan.num_real(round_index), plan.remainder(round_index)
    return HostBatch(batch, real, remainder, plan.global_batch if remainder >= 0 else real, is_last)


class BatchStream:
    """Any iterable of ready batches. See `xaccel.data.loader.Source`.

    Replicas take turns; with `split_batches` each batch is divided over them. With `dispatch_batches=True` process 0 reads for all.

    Args:
        loader: the iterable; asked for a new iterator every epoch.
        context: the run.
        equal_rows: see `StreamOptions`.
    """

    def __init__(self, loader: Any, context: LoaderContext, *, equal_rows: bool = False):
        self.loader = loader
        self._equal_rows = equal_rows
        self.dataset = getattr(loader, "dataset", loader)
        self.num_samples: int | None = None
        self.total_batch_size: int | None = None
        self.seed = context.seed
        self._context = context
        self._even_batches = context.config.even_batches

    def rounds(self, epoch: int, position: int) -> Iterator[HostBatch]:
        rounds = self._all_rounds()
        consumed = 0
        while consumed < position:
            skipped = next(rounds, None)
            if skipped is None:
                return
            consumed += skipped.num_real
        yield from rounds

    def _all_rounds(self) -> Iterator[HostBatch]:
        context = self._context
        split = context.config.split_batches
        if context.topology.num_processes == 1 or not context.config.dispatch_batches:
            own = batch_rounds(self.loader, self._options(context.replicas.local_replicas), split)
            return agreed(own, context.collectives) if self._even_batches and context.topology.num_processes > 1 else own
        shares = context.collectives.gather_objects(context.replicas.local_replicas)
        return dispatch(self._rounds_for(shares, split), context.topology.process_index, context.collectives)

    def _rounds_for(self, shares: list[tuple[int, ...]], split: bool) -> Iterator[list[HostBatch | None]] | None:
        """On process 0, each process's part of the rounds."""
        if self._context.topology.process_index != 0:
            return None
        parts = [
            batch_rounds(copy_of, self._options(share), split)
            for share, copy_of in zip(shares, tee(iter(self.loader), len(shares)), strict=True)
        ]
        return zip_rounds(parts)

    def _options(self, replicas: tuple[int, ...]) -> StreamOptions:
        return StreamOptions(
            num_replicas=self._context.replicas.num_replicas,
            replicas=replicas,
            even_batches=self._even_batches,
            equal_rows=self._equal_rows,
        )

    def num_batches(self, position: int) -> int | None:
        if not isinstance(self.loader, Mapping) and getattr(self.loader, "__len__", None) is not None:
            count = len(self.loader)
            return count if self._context.config.split_batches else -(-count // self._context.replicas.num_replicas)
        return None

    def set_epoch(self, epoch: int) -> None:
        for listener in (self.loader, self.dataset):
            tell = getattr(listener, "set_epoch", None)
            if callable(tell):
                tell(epoch)

    def with_even_batches(self, even_batches: bool) -> BatchStream:
        other = copy.copy(self)
        other._even_batches = even_batches
        return other


def dispatching(context: LoaderContext) -> LoaderContext:
    """For a stream, dispatching is the default: processes that iterate the same thing by themselves need not see the same."""
    if context.config.dispatch_batches is not None:
        return context
    return dataclasses.replace(context, config=dataclasses.replace(context.config, dispatch_batches=True))


def zip_rounds(parts: list[Iterator[HostBatch]]) -> Iterator[list[HostBatch | None]]:
    """The same rounds read for several processes; one that has no rows in the last round ends earlier."""
    for together in zip_longest(*parts):
        yield list(together)
