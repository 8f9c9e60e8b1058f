"""Rounds out of a stream whose end is not known: samples one by one, or batches that are already made."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from xaccel.data.batches import concatenate_rows, num_rows, take_rows

Collate = Callable[[list[Any]], Any]


@dataclasses.dataclass(frozen=True)
class HostBatch:
    """This process's part of one round.

    Attributes:
        batch: nested host arrays: the rows of the local replicas, in replica order.
        num_real: rows of the whole round that are not filling.
        remainder: as `EpochPlan.remainder`.
        global_rows: rows of the whole round, filling included.
        is_last: whether the epoch ends with it.
    """

    batch: Any
    num_real: int
    remainder: int
    global_rows: int
    is_last: bool


@dataclasses.dataclass(frozen=True, kw_only=True)
class StreamOptions:
    """How a stream is divided.

    Attributes:
        num_replicas: replicas of the run.
        replicas: those whose rows are wanted, ascending.
        even_batches, drop_last: what happens at the end.
    """

    num_replicas: int
    replicas: tuple[int, ...]
    even_batches: bool = True
    drop_last: bool = False


def sample_rounds(samples: Iterable[Any], rows_per_replica: int, collate: Collate, options: StreamOptions) -> Iterator[HostBatch]:
    """Rounds of consecutive samples, each replica's rows collated."""
    stream, size = iter(samples), rows_per_replica * options.num_replicas
    first: list[Any] = []
    held = list(islice(stream, size))
    while held:
        following = list(islice(stream, size)) if len(held) == size else []
        first = first or held
        if len(held) == size or not options.drop_last:
            # The last full round is the last one if what follows will be dropped.
            is_last = not following or (options.drop_last and len(following) < size)
            made = _round_of_samples(held, first, rows_per_replica, collate, options, is_last)
            if made is not None:
                yield made
        held = following


def _round_of_samples(
    held: list[Any], first: list[Any], rows_per_replica: int, collate: Collate, options: StreamOptions, is_last: bool
) -> HostBatch | None:
    size = rows_per_replica * options.num_replicas
    real = len(held)
    rows = held + [first[index % len(first)] for index in range(size - real)] if options.even_batches else held
    parts = [rows[replica * rows_per_replica : (replica + 1) * rows_per_replica] for replica in options.replicas]
    filled = [collate(part) for part in parts if part]
    if not filled:
        return None
    return HostBatch(concatenate_rows(filled), real, real if real < len(rows) else -1, len(rows), is_last)


def batch_rounds(batches: Iterable[Any], options: StreamOptions, split: bool = False) -> Iterator[HostBatch]:
    """Rounds out of ready batches: replicas take turns, or (`split`) each batch is divided over the replicas.

    A batch is handed on as it is; where a round is incomplete, replicas without a batch get the epoch's first ones again.
    """
    stream = iter(batches)
    take = 1 if split else options.num_replicas
    first: list[Any] = []
    held = list(islice(stream, take))
    while held:
        following = list(islice(stream, take)) if len(held) == take else []
        first = first or held
        if len(held) == take or not options.drop_last:
            is_last = not following or (options.drop_last and len(following) < take)
            made = _split_batch(held[0], options, is_last) if split else _round_of_batches(held, first, options, is_last)
            if made is not None:
                yield made
        held = following


def _round_of_batches(held: list[Any], first: list[Any], options: StreamOptions, is_last: bool) -> HostBatch | None:
    given = held + [first[index % len(first)] for index in range(options.num_replicas - len(held))] if options.even_batches else held
    own = [given[replica] for replica in options.replicas if replica < len(given)]
    if not own:
        return None
    real = sum(num_rows(batch) or 1 for batch in held)
    total = sum(num_rows(batch) or 1 for batch in given)
    return HostBatch(concatenate_rows(own), real, real if len(given) > len(held) else -1, total, is_last)


def _split_batch(batch: Any, options: StreamOptions, is_last: bool) -> HostBatch | None:
    real = num_rows(batch) or 0
    each = -(-real // options.num_replicas)
    total = each * options.num_replicas if options.even_batches else real
    wanted = [row for replica in options.replicas for row in range(replica * each, min((replica + 1) * each, total))]
    if not wanted:
        return None
    return HostBatch(take_rows(batch, [row % real for row in wanted]), real, real if total > real else -1, total, is_last)


def dispatch(rounds: Iterator[HostBatch] | None, replicas: Sequence[tuple[int, ...]], process_index: int, collectives: Any) -> Iterator[HostBatch]:
    """Rounds that process 0 reads and all receive; the end is agreed, since it is received too.

    Args:
        rounds: on process 0 the rounds of *all* replicas, each batch a list with one entry for each process; elsewhere `None`.
        replicas: the replicas of each process.
        process_index: this process.
        collectives: has `broadcast_objects`.
    """
    while True:
        held: list[Any] = [_next_or_error(rounds)] if rounds is not None else [None]
        received = collectives.broadcast_objects(held, 0)[0]
        if received is None:
            return
        if isinstance(received, BaseException):
            raise received
        yield dataclasses.replace(received, batch=received.batch[process_index])


def _next_or_error(rounds: Iterator[HostBatch]) -> HostBatch | BaseException | None:
    """The next round; an error of the user's dataset travels to every process, which would otherwise wait for ever."""
    try:
        return next(rounds, None)
    except Exception as error:
        return error
