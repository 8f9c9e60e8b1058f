"""Several processes doing one thing: it succeeds on all of them or raises on all of them, and never hangs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from xaccel import errors
from xaccel.errors import CheckpointError

Result = TypeVar("Result")


class Coordinator(Protocol):
    """What writing together needs of the run."""

    process_index: int
    num_processes: int

    def barrier(self, name: str = "barrier") -> None:
        """Return once every process has called it."""

    def gather_objects(self, value: Any) -> list[Any]:
        """One picklable object from each process, in rank order, on every process."""

    def broadcast_objects(self, values: list[Any], from_process: int) -> list[Any]:
        """The list of `from_process`, on every process."""


class SoloCoordinator:
    """A run of one process."""

    process_index = 0
    num_processes = 1

    def barrier(self, name: str = "barrier") -> None:
        """Nobody to wait for."""

    def gather_objects(self, value: Any) -> list[Any]:
        """The one value."""
        return [value]

    def broadcast_objects(self, values: list[Any], from_process: int) -> list[Any]:
        """The same list."""
        return values


@dataclasses.dataclass(frozen=True)
class _Outcome:
    result: Any = None
    error_kind: str | None = None
    message: str = ""


# Kinds whose constructor takes just a message: these are raised as themselves on the processes that did not fail.
_KINDS: Mapping[str, type[CheckpointError]] = {
    kind.__name__: kind
    for kind in (
        errors.CheckpointNotFoundError,
        errors.CorruptCheckpointError,
        errors.CheckpointVersionError,
        errors.CheckpointSpaceError,
        errors.CheckpointMismatchError,
    )
}


def together(coordinator: Coordinator, what: str, work: Callable[[], Result]) -> list[Result]:
    """Do `work` on every process; returns all results in rank order. Every process must call it, and it is a barrier.

    Args:
        what: what is being done, for the message on the other processes.

    Raises:
        Exception: what `work` raised, on the process where it did; on the others an error of the same kind where it is one of this
            package's about checkpoints, else `CheckpointError`, naming the first process that failed.
    """
    own: Exception | None = None
    try:
        outcome = _Outcome(result=work())
    except Exception as error:  # kept and raised below: the other processes wait in the same gather
        own = error
        outcome = _Outcome(error_kind=type(error).__name__, message=str(error))
    outcomes: list[_Outcome] = coordinator.gather_objects(outcome)
    if own is not None:
        raise own
    for index, other in enumerate(outcomes):
        if other.error_kind is not None:
            kind = _KINDS.get(other.error_kind, CheckpointError)
            name = "" if other.error_kind in _KINDS else f"{other.error_kind}: "
            raise kind(f"{what} failed on process {index}: {name}{other.message}")
    return [other.result for other in outcomes]


def on_first(coordinator: Coordinator, what: str, work: Callable[[], Result]) -> Result:
    """Do `work` on process 0 only; every process gets its result or raises."""
    results = together(coordinator, what, lambda: work() if coordinator.process_index == 0 else None)
    first: Any = results[0]
    return first
