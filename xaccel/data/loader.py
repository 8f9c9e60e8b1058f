"""The prepared loader: places rounds on the devices, knows where it stands, and goes on from there."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from typing import Any, Protocol

from xaccel.config.data import DataLoaderConfiguration
from xaccel.data.active import ActiveLoaders
from xaccel.data.rounds import HostBatch
from xaccel.errors import DataError
from xaccel.process.topology import ProcessTopology, ReplicaLayout


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoaderContext:
    """What a loader needs to know of the run.

    Attributes:
        replicas: how many, and which of them this process feeds.
        config: options.
        feed: moves host batches to the devices.
        collectives: for what processes must agree on.
        active: the stack of loaders being iterated.
        seed: of the shuffle, equal on all processes.
        topology: where this process stands.
        device_placement: whether batches are moved to the device.
        on_start: called at the start of each pass, on every process.
    """

    replicas: ReplicaLayout
    config: DataLoaderConfiguration
    feed: Any
    collectives: Any
    active: ActiveLoaders
    seed: int
    topology: ProcessTopology
    device_placement: bool = True
    on_start: Callable[[], None] | None = None


class Source(Protocol):
    """Where host batches come from. One for each kind of loader; positions are in samples over all replicas."""

    dataset: Any
    num_samples: int | None
    total_batch_size: int | None

    def rounds(self, epoch: int, position: int) -> Iterator[HostBatch]:
        """This process's part of the rounds of an epoch, from a position on."""

    def num_batches(self, position: int) -> int | None:
        """How many `rounds` gives; `None` where the data has no length."""

    def set_epoch(self, epoch: int) -> None:
        """Tell sampler, batch sampler and dataset, where they listen."""

    def with_even_batches(self, even_batches: bool) -> Source:
        """The same source with another end."""


@dataclasses.dataclass
class Progress:
    """Where a loader and all loaders made from it by skipping stand.

    Attributes:
        epoch: the epoch being iterated, or to come.
        consumed: samples of it given to the user, over all replicas.
        resume_at: where the next pass begins, after `load_state_dict`.
        ended: whether the batch last given was the last of the epoch.
    """

    epoch: int = 0
    consumed: int = 0
    resume_at: int = 0
    ended: bool = False


class PlannedLoader:
    """Iterates global batches; made by `prepare`.

    Attributes:
        end_of_dataloader: whether the batch last yielded is the last of the epoch.
        remainder: rows to keep of that batch over all replicas; -1 where nothing was filled up.
        global_rows: rows of that batch over all replicas, filling included.
    """

    def __init__(self, source: Source, context: LoaderContext):
        self._source = source
        self._context = context
        self._progress = Progress()
        self._skipped_batches = 0
        self.end_of_dataloader = False
        self.remainder = -1
        self.global_rows = 0

    def __iter__(self) -> Iterator[Any]:
        progress, start, complete = self._progress, self._start(), False
        self.end_of_dataloader, self.remainder = False, -1
        progress.consumed, progress.resume_at, progress.ended = start, 0, False
        self._source.set_epoch(progress.epoch)
        if self._context.on_start is not None:
            self._context.on_start()
        self._context.active.push(self)
        try:
            for host in self._rounds(progress.epoch, start):
                yield self._give(host)
            complete = True
        finally:
            self._context.active.pop(self)
            # A loop left by `break` in its last batch has seen the whole epoch; one left earlier begins the same epoch again.
            if complete or progress.ended:
                progress.epoch, progress.consumed, progress.ended = progress.epoch + 1, 0, False

    def _start(self) -> int:
        # Skipping counts from the beginning of the epoch: scripts skip what a checkpoint says was done, and `load_state` may have been there already.
        if self._skipped_batches and self._source.total_batch_size is not None:
            return self._skipped_batches * self._source.total_batch_size
        return self._progress.resume_at

    def _rounds(self, epoch: int, start: int) -> Iterator[HostBatch]:
        rounds = self._source.rounds(epoch, start)
        if self._skipped_batches and self._source.total_batch_size is None:
            for host in islice(rounds, self._skipped_batches):
                self._progress.consumed += host.num_real
        return rounds

    def _give(self, host: HostBatch) -> Any:
        placed = self._context.feed.place(host.batch, self._context.replicas) if self._context.device_placement else host.batch
        self._progress.consumed += host.num_real
        self._progress.ended = host.is_last
        self.end_of_dataloader, self.remainder, self.global_rows = host.is_last, host.remainder, host.global_rows
        self._context.active.advance(self)
        return placed

    def __len__(self) -> int:
        position = self._skipped_batches * (self._source.total_batch_size or 0)
        count = self._source.num_batches(position)
        if count is None:
            raise TypeError(f"{type(self.dataset).__name__} has no length: iterate it to find its end")
        return count

    @property
    def dataset(self) -> Any:
        """The user's dataset."""
        return self._source.dataset

    @property
    def total_batch_size(self) -> int | None:
        """Rows of a full batch over all replicas."""
        return self._source.total_batch_size

    @property
    def total_dataset_length(self) -> int | None:
        """Samples of an epoch."""
        return self._source.num_samples

    @property
    def epoch(self) -> int:
        """The epoch being iterated, or to come."""
        return self._progress.epoch

    def set_epoch(self, epoch: int) -> None:
        """The next pass is that of `epoch`; also told to sampler, batch sampler and dataset."""
        if epoch != self._progress.epoch:
            self._progress.epoch, self._progress.consumed, self._progress.resume_at, self._progress.ended = epoch, 0, 0, False
        self._source.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Seed, epoch and samples consumed over all replicas; at the end of an epoch the beginning of the next."""
        progress = self._progress
        if progress.ended:
            return {"seed": self._context.seed, "epoch": progress.epoch + 1, "samples": 0}
        return {"seed": self._context.seed, "epoch": progress.epoch, "samples": progress.resume_at or progress.consumed}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there: the next pass yields the rest of that epoch, in that seed's order.

        Raises:
            DataError: the state is not one of a loader.
        """
        missing = {"seed", "epoch", "samples"} - set(state)
        if missing:
            raise DataError(f"loader state {state!r} lacks {', '.join(sorted(missing))}")
        self._context = dataclasses.replace(self._context, seed=state["seed"])
        self._source = self._source_with_seed(state["seed"])
        progress = self._progress
        progress.epoch, progress.consumed, progress.resume_at, progress.ended = state["epoch"], 0, state["samples"], False
        self.end_of_dataloader = False

    def _source_with_seed(self, seed: int) -> Source:
        source: Any = copy.copy(self._source)
        source.seed = seed
        return source

    @contextmanager
    def with_even_batches(self, even_batches: bool) -> Iterator[None]:
        """Within the block, another setting of `even_batches`."""
        before = self._source
        self._source = before.with_even_batches(even_batches)
        try:
            yield
        finally:
            self._source = before

    def skipping(self, num_batches: int) -> PlannedLoader:
        """A loader whose passes begin `num_batches` batches into the epoch; it shares this one's epoch and position."""
        if num_batches < 0:
            raise DataError(f"skip_first_batches(num_batches={num_batches}): expected 0 or more")
        other = copy.copy(self)
        other._skipped_batches = self._skipped_batches + num_batches
        return other

    def __getattr__(self, name: str) -> Any:
        # `batch_sampler`, `sampler`, `collate_fn`, `batch_size`, …: the user's own loader's.
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._source.loader, name)  # type: ignore[attr-defined]


def skip_first_batches(dataloader: Any, num_batches: int = 0) -> Any:
    """A loader like `dataloader` whose passes begin `num_batches` batches into the epoch; map-style data is not read for what is skipped.

    Args:
        dataloader: a prepared loader, or any iterable of batches.
    """
    if isinstance(dataloader, PlannedLoader):
        return dataloader.skipping(num_batches)
    return _Skipping(dataloader, num_batches)


class _Skipping:
    """Any iterable of batches without its first ones."""

    def __init__(self, batches: Any, num_batches: int):
        self._batches = batches
        self._num_batches = num_batches

    def __iter__(self) -> Iterator[Any]:
        return islice(iter(self._batches), self._num_batches, None)

    def __len__(self) -> int:
        return max(0, len(self._batches) - self._num_batches)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._batches, name)
