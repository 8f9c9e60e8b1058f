"""A backend of its own: NumPy arrays, threads as ranks. Everything that is built on the protocols runs on it without a framework.

    def rank(topology):
        return Communicator(LoopbackArrays(), LoopbackCollectives(topology), topology).gather(np.array([topology.process_index]))

    run_threads(4, rank)        # four times array([0, 1, 2, 3])

The ranks of one run meet in a `Room`, which each topology carries as its device. What a thread receives it can change freely: nothing
is shared.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from xaccel.collectives import semantics
from xaccel.collectives.objects import from_bytes, to_bytes
from xaccel.errors import CollectiveError, CollectiveMismatchError, CollectiveTimeoutError, UnsupportedError
from xaccel.process.topology import ProcessTopology

if TYPE_CHECKING:
    from xaccel.accelerator import Accelerator
    from xaccel.backend.strategy import Strategy, StrategyRequest
    from xaccel.config.handlers import ProfileKwargs
    from xaccel.config.settings import Settings
    from xaccel.environment import LaunchEnvironment
    from xaccel.preparation.plan import Preparer

Result = TypeVar("Result")


class RankLeftError(CollectiveError):
    """Another rank has returned or failed, so a collective can never complete."""


class Room:
    """Where the ranks of one run exchange values, round by round.

    Args:
        num_ranks: how many take part in each round.
        timeout_seconds: how long one waits for the others.
    """

    def __init__(self, num_ranks: int, timeout_seconds: float = 30.0):
        self.num_ranks = num_ranks
        self.timeout_seconds = timeout_seconds
        self._changed = threading.Condition()
        self._rounds: dict[int, dict[int, tuple[str, Any]]] = {}
        self._next_round = [0] * num_ranks
        self._readers: dict[int, int] = {}
        self._left: set[int] = set()

    def __repr__(self) -> str:
        return f"Room({self.num_ranks} ranks)"

    def exchange(self, rank: int, operation: str, value: Any) -> list[Any]:
        """What each rank brings to this round, in rank order.

        Raises:
            CollectiveTimeoutError: names the ranks that did not come in time.
            RankLeftError: names the ranks that have ended.
            CollectiveMismatchError: the ranks call different operations; raised on all of them.
        """
        with self._changed:
            this_round = self._next_round[rank]
            self._next_round[rank] += 1
            brought = self._rounds.setdefault(this_round, {})
            brought[rank] = (operation, value)
            self._changed.notify_all()
            self._wait(rank, operation, brought)
            self._forget_when_read(this_round)
        operations = [brought[index][0] for index in range(self.num_ranks)]
        if len(set(operations)) > 1:
            raise CollectiveMismatchError("; ".join(f"process {index} calls {name}" for index, name in enumerate(operations)))
        return [brought[index][1] for index in range(self.num_ranks)]

    def leave(self, rank: int) -> None:
        """The rank will not come again: whoever waits for it stops waiting."""
        with self._changed:
            self._left.add(rank)
            self._changed.notify_all()

    def _wait(self, rank: int, operation: str, brought: dict[int, tuple[str, Any]]) -> None:
        deadline = time.monotonic() + self.timeout_seconds
        while len(brought) < self.num_ranks:
            missing = [index for index in range(self.num_ranks) if index not in brought]
            gone = [index for index in missing if index in self._left]
            where = f"{operation} on process {rank} of {self.num_ranks}"
            if gone:
                raise RankLeftError(f"{where}: process(es) {', '.join(map(str, gone))} ended and will not come")
            if not self._changed.wait(max(0.0, deadline - time.monotonic())) and time.monotonic() >= deadline:
                raise CollectiveTimeoutError(
                    f"{where}: process(es) {', '.join(map(str, missing))} did not come within {self.timeout_seconds:g} s"
                )

    def _forget_when_read(self, this_round: int) -> None:
        self._readers[this_round] = self._readers.get(this_round, 0) + 1
        if self._readers[this_round] == self.num_ranks:
            del self._readers[this_round], self._rounds[this_round]


def run_threads(num_ranks: int, function: Callable[[ProcessTopology], Result], timeout_seconds: float = 30.0) -> list[Result]:
    """`function(topology)` on every rank, each in a thread of its own.

    Args:
        timeout_seconds: how long a rank waits for the others in one collective.

    Returns:
        The results in rank order.

    Raises:
        Exception: what the first failing rank raised; what the others raised stands in its notes. A rank that failed only because another
            had ended comes last.
    """
    room = Room(num_ranks, timeout_seconds)
    results: dict[int, Result] = {}
    failures: dict[int, BaseException] = {}

    def run(rank: int) -> None:
        try:
            results[rank] = function(topology_of(room, rank))
        except BaseException as error:  # handed to the caller below, whatever it is
            failures[rank] = error
        finally:
            room.leave(rank)

    threads = [threading.Thread(target=run, args=(rank,), name=f"rank {rank}") for rank in range(num_ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        first, *others = sorted(failures, key=lambda rank: (isinstance(failures[rank], RankLeftError), rank))
        failures[first].add_note(f"raised on rank {first} of {num_ranks}")
        for rank in others:
            failures[first].add_note(f"rank {rank} raised {type(failures[rank]).__name__}: {failures[rank]}")
        raise failures[first]
    return [results[rank] for rank in range(num_ranks)]


def topology_of(room: Room, rank: int) -> ProcessTopology:
    """The topology of one rank; its device is the room."""
    return ProcessTopology(
        process_index=rank,
        num_processes=room.num_ranks,
        local_process_index=rank,
        num_local_processes=room.num_ranks,
        num_devices=room.num_ranks,
        device=room,
        backend="loopback",
        communication="threads",
    )


class LoopbackArrays:
    """See `xaccel.backend.arrays.Arrays`; the arrays are NumPy's."""

    def is_array(self, value: Any) -> bool:
        return isinstance(value, np.ndarray)

    def shape(self, array: np.ndarray) -> tuple[int, ...]:
        return array.shape

    def dtype_name(self, array: np.ndarray) -> str:
        return str(array.dtype)

    def to_numpy(self, array: np.ndarray) -> np.ndarray:
        return array

    def from_numpy(self, values: np.ndarray, like: Any = None) -> np.ndarray:
        return np.asarray(values)

    def concatenate(self, arrays: list[np.ndarray], dim: int) -> np.ndarray:
        return np.concatenate(arrays, axis=dim)

    def narrow(self, array: np.ndarray, dim: int, start: int, stop: int) -> np.ndarray:
        return np.asarray(array[(slice(None),) * dim + (slice(start, stop),)])

    def pad(self, array: np.ndarray, dim: int, before: int, after: int, value: float) -> np.ndarray:
        widths = [(before, after) if each == dim else (0, 0) for each in range(array.ndim)]
        return np.pad(array, widths, constant_values=np.asarray(value).astype(array.dtype))

    def to_device(self, array: np.ndarray, device: Any = None, non_blocking: bool = False) -> np.ndarray:
        return array

    def detach_scalar(self, array: np.ndarray) -> float | int | bool:
        return array.item()  # type: ignore[no-any-return]


class LoopbackCollectives:
    """See `xaccel.backend.collectives.Collectives`; the meaning of each operation is `xaccel.collectives.semantics`.

    Args:
        topology: of one rank of `run_threads`, or from `LoopbackBackend.start`.
    """

    def __init__(self, topology: ProcessTopology):
        self._rank = topology.process_index
        self._room: Room = topology.device

    def gather(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        return [semantics.gathered(column) for column in self._columns("gather", arrays)]

    def reduce(self, arrays: Sequence[np.ndarray], reduction: str, scale: float) -> list[np.ndarray]:
        return [semantics.reduced(column, reduction, scale, self._rank) for column in self._columns(f"reduce {reduction}", arrays)]

    def broadcast(self, arrays: Sequence[np.ndarray], from_process: int) -> list[np.ndarray]:
        return [column[from_process] for column in self._columns(f"broadcast from {from_process}", arrays)]

    def gather_objects(self, value: Any) -> list[Any]:
        return [from_bytes(data) for data in self._room.exchange(self._rank, "gather_objects", to_bytes(value))]

    def broadcast_objects(self, values: list[Any], from_process: int) -> list[Any]:
        return list(from_bytes(self._room.exchange(self._rank, f"broadcast_objects from {from_process}", to_bytes(values))[from_process]))

    def barrier(self, name: str = "barrier") -> None:
        self._room.exchange(self._rank, name, None)

    def _columns(self, operation: str, arrays: Sequence[np.ndarray]) -> list[list[np.ndarray]]:
        """For each array what every rank brought, as copies of this rank's own.

        They are copied before they are sent: once a rank has returned it may change its arrays while another still reads.
        """
        everyone = self._room.exchange(self._rank, operation, [array.copy() for array in arrays])
        counts = [len(brought) for brought in everyone]
        if len(set(counts)) > 1:
            raise CollectiveMismatchError(
                f"{operation}: " + ", ".join(f"process {index} brings {count} arrays" for index, count in enumerate(counts))
            )
        return [[array.copy() for array in column] for column in zip(*everyone, strict=True)]


class LoopbackBackend:
    """See `xaccel.backend.backend.Backend`. It moves arrays and objects; it trains nothing, so it has no strategy."""

    name = "loopback"

    def __init__(self) -> None:
        self.arrays = LoopbackArrays()
        self.strategies: tuple[type[Strategy], ...] = ()
        self.preparers: tuple[Preparer, ...] = ()
        self._seed = 0

    @property
    def accelerator_class(self) -> type[Accelerator]:
        """The core's own; imported when asked for, so that the collectives can be used without it."""
        from xaccel.accelerator import Accelerator

        return Accelerator

    def owns(self, value: Any) -> bool:
        """Nothing: NumPy arrays are taken by every adapter."""
        return False

    def start(self, environment: LaunchEnvironment, settings: Settings) -> ProcessTopology:
        """A run of one rank. Several ranks are threads: `run_threads`."""
        if environment.is_launched:
            raise UnsupportedError("the loopback backend connects threads, not processes: start it without a launcher and use run_threads")
        return topology_of(Room(1, settings.collective_timeout_seconds), 0)

    def stop(self) -> None:
        """Nothing was started."""

    def strategy(self, request: StrategyRequest) -> Strategy:
        raise UnsupportedError("the loopback backend trains nothing: use XACCEL_BACKEND=torch or jax")

    def collectives(self, topology: ProcessTopology) -> LoopbackCollectives:
        return LoopbackCollectives(topology)

    def initial_seed(self) -> int:
        return self._seed

    def set_seed(self, seed: int, deterministic: bool = False) -> None:
        """NumPy's global generator, the only one that the backend has; it is deterministic anyway."""
        self._seed = seed
        np.random.seed(seed % 2**32)

    def synchronise_generators(self, kinds: Sequence[str], collectives: Any) -> None:
        raise UnsupportedError(f"rng_types={list(kinds)}: ranks are threads here and share NumPy's generator")

    def empty_cache(self) -> None:
        """There is no device memory."""

    def profile(self, handler: ProfileKwargs, topology: ProcessTopology) -> AbstractContextManager[Any]:
        raise UnsupportedError("the loopback backend has no profiler: use XACCEL_BACKEND=torch or jax")
