"""Threads as ranks, for tests of what several processes do together."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest


class ThreadCoordinator:
    """One rank of a run in which each rank is a thread."""

    def __init__(self, process_index: int, num_processes: int, barrier: threading.Barrier, board: list[Any]):
        self.process_index = process_index
        self.num_processes = num_processes
        self._barrier = barrier
        self._board = board

    def barrier(self, name: str = "barrier") -> None:
        self._barrier.wait(timeout=30)

    def gather_objects(self, value: Any) -> list[Any]:
        self._board[self.process_index] = value
        self._barrier.wait(timeout=30)
        result = list(self._board)
        self._barrier.wait(timeout=30)
        return result

    def broadcast_objects(self, values: list[Any], from_process: int) -> list[Any]:
        return self.gather_objects(values)[from_process]


def run_ranks_in_threads(num_processes: int, work: Callable[[ThreadCoordinator], Any]) -> list[Any]:
    """`work` on every rank; its result, or the exception that it raised, in rank order."""
    barrier, board = threading.Barrier(num_processes), [None] * num_processes

    def one(index: int) -> Any:
        try:
            return work(ThreadCoordinator(index, num_processes, barrier, board))
        except Exception as error:
            return error

    with ThreadPoolExecutor(num_processes) as pool:
        return list(pool.map(one, range(num_processes)))


@pytest.fixture
def run_ranks() -> Callable[..., list[Any]]:
    return run_ranks_in_threads
