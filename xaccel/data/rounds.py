"""Rounds out of a stream whose end is not known: samples one by one, or batches that are already made."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
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
        full_batches: an incomplete round of samples is filled to full batches, not only until it divides over the replicas.
        equal_rows: a short ready batch is filled too, since one global array holds the rows of all replicas.
    """

    num_replicas: int
    replicas: tuple[int, ...]
    even_batches: bool = True
    drop_last: bool = False
    full_batches: bool = True
    equal_rows: bool = False


def sample_rounds(samples: Iterable[Any], rows_per_replica: int, collate: Collate, options: StreamOptions) -> Iterator[HostBatch]:
    """Rounds of consecutive samples, each replica's rows collated."""
    return with_end(_sample_rounds(iter(samples), rows_per_replica, collate, options))


def _sample_rounds(stream: Iterator[Any], rows_per_replica: int, collate: Collate, options: StreamOptions) -> Iterator[HostBatch]:
    size = rows_per_replica * options.num_replicas
    first: list[Any] = []
    while held := list(islice(stream, size)):
        if len(held) < size and options.drop_last:
            return
        first = first or held
        made = _round_of_samples(held, first, rows_per_replica, collate, options)
        if made is not None:
            yield made


def _round_of_samples(
    held: list[Any], first: list[Any], rows_per_replica: int, collate: Collate, options: StreamOptions
) -> HostBatch | None:
    real, fills = len(held), options.even_batches and options.num_replicas > 1
    each = -(-real // options.num_replicas) if fills and not options.full_batches else rows_per_replica
    rows = held + [first[index % len(first)] for index in range(each * options.num_replicas - real)] if fills else held
    parts = [rows[replica * each : (replica + 1) * each] for replica in options.replicas]
    filled = [collate(part) for part in parts if part]
    if not filled:
        return None
    return HostBatch(concatenate_rows(filled), real, real if real < len(rows) else -1, len(rows), is_last=False)


def batch_rounds(batches: Iterable[Any], options: StreamOptions, split: bool = False) -> Iterator[HostBatch]:
    """Rounds out of ready batches: replicas take turns, or (`split`) each batch is divided over the replicas.

    A batch is handed on as it is; where a round is incomplete, replicas without a batch get the epoch's first ones again.
    """
    return with_end(_batch_rounds(iter(batches), options, split))


def _batch_rounds(stream: Iterator[Any], options: StreamOptions, split: bool) -> Iterator[HostBatch]:
    take = 1 if split else options.num_replicas
    first: list[Any] = []
    while held := list(islice(stream, take)):
        if len(held) < take and options.drop_last:
            return
        first = first or held
        made = _split_batch(held[0], options) if split else _round_of_batches(held, first, options)
        if made is not None:
            yield made


def _round_of_batches(held: list[Any], first: list[Any], options: StreamOptions) -> HostBatch | None:
    real = sum(num_rows(batch) or 1 for batch in held)
    given = list(held)
    if options.even_batches and options.num_replicas > 1:
        if options.equal_rows:
            given[-1] = _lengthened(given[-1], first[0])
        given += [first[index % len(first)] for index in range(options.num_replicas - len(held))]
    own = [given[replica] for replica in options.replicas if replica < len(given)]
    if not own:
        return None
    total = sum(num_rows(batch) or 1 for batch in given)
    return HostBatch(concatenate_rows(own), real, real if total > real else -1, total, is_last=False)


def _lengthened(batch: Any, first: Any) -> Any:
    """A short batch filled up with rows of the epoch's first one, to as many rows as that has."""
    have, want = num_rows(batch) or 0, num_rows(first) or 0
    return batch if have >= want else concatenate_rows([batch, take_rows(first, range(want - have))])


def _split_batch(batch: Any, options: StreamOptions) -> HostBatch | None:
    real = num_rows(batch) or 0
    each = -(-real // options.num_replicas)
    total = each * options.num_replicas if options.even_batches else real
    wanted = [row for replica in options.replicas for row in range(replica * each, min((replica + 1) * each, total))]
    if not wanted:
        return None
    return HostBatch(take_rows(batch, [row % real for row in wanted]), real, real if total > real else -1, total, is_last=False)


def with_end(rounds: Iterator[HostBatch]) -> Iterator[HostBatch]:
    """The same rounds, the last one marked: read one ahead, since only the stream knows its end."""
    held = next(rounds, None)
    while held is not None:
        following = next(rounds, None)
        yield held if following is not None else dataclasses.replace(held, is_last=True)
        held = following


def agreed(rounds: Iterator[HostBatch], collectives: Any) -> Iterator[HostBatch]:
    """Rounds that every process reads by itself, ended on all when one of them ends: no process waits for a batch that never comes.

    Args:
        collectives: has `gather_objects`, called once for each round.
    """
    while True:
        own = next(rounds, None)
        last = collectives.gather_objects(None if own is None else own.is_last)
        if own is None or None in last:
            return
        yield dataclasses.replace(own, is_last=any(last))
        if any(last):
            return


def dispatch(rounds: Iterator[list[HostBatch | None]] | None, process_index: int, collectives: Any) -> Iterator[HostBatch]:
    """Rounds that process 0 reads and all receive; the end is agreed, since it is received too.

    Args:
        rounds: on process 0, for each round the part of every process, `None` for one without rows; elsewhere `None`.
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
        own = received[process_index]
        # A process without rows in the last round still takes part in the broadcasts, up to the agreed end.
        if own is not None:
            yield own


def _next_or_error(rounds: Iterator[list[HostBatch | None]]) -> list[HostBatch | None] | BaseException | None:
    """The next round; an error of the user's dataset travels to every process, which would otherwise wait for ever."""
    try:
        return next(rounds, None)
    except Exception as error:
        return error
