"""Logging in order is a collective call of every process, whatever its level."""

from __future__ import annotations

import logging
from collections.abc import Callable


class Remembering(logging.Handler):
    """Keeps when each record came."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[float, str]] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append((record.created, record.getMessage()))


def log_in_order(quiet_rank: int | None) -> list[tuple[float, str]]:
    from xaccel import Accelerator
    from xaccel.logging import get_logger

    accelerator = Accelerator(backend="torch", cpu=True)
    logger = get_logger("xaccel.test.in_order", "ERROR" if accelerator.process_index == quiet_rank else "INFO")
    handler = Remembering()
    logger.logger.addHandler(handler)
    for _ in range(2):
        logger.info(f"rank {accelerator.process_index}", in_order=True)
    logger.logger.removeHandler(handler)
    return handler.seen


def test_one_after_the_other(ranks: Callable[..., object]) -> None:
    first, second = ranks("torch", 2).run(log_in_order, None)  # type: ignore[attr-defined]
    assert [message for _, message in sorted(first + second)] == ["rank 0", "rank 1"] * 2


def test_a_quiet_process_does_not_stop_the_others(ranks: Callable[..., object]) -> None:
    first, second = ranks("torch", 2).run(log_in_order, 1)  # type: ignore[attr-defined]
    assert [message for _, message in first] == ["rank 0"] * 2
    assert second == []
