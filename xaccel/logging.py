"""A logger that knows which process it is in."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any

from xaccel.environment import read_environment
from xaccel.process.topology import current_topology


class ProcessLogger(logging.LoggerAdapter):  # type: ignore[type-arg]
    """Logs on the main process only, unless the call says otherwise.

    Each logging method takes two more keywords:

    * `main_process_only` (default True): whether the other processes stay silent.
    * `in_order` (default False): every process logs, one after the other; a collective call.
    """

    def log(self, level: int, msg: Any, *args: Any, **kwargs: Any) -> None:
        """As `logging.Logger.log`, with the two keywords."""
        main_process_only = kwargs.pop("main_process_only", True)
        in_order = kwargs.pop("in_order", False)
        kwargs.setdefault("stacklevel", 2)
        if in_order:
            # Also where this process's level is higher: the others wait for it.
            self._log_in_order(level, msg, args, kwargs)
        elif self.isEnabledFor(level) and (not main_process_only or _process_index() == 0):
            self._emit(level, msg, args, kwargs)

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """Leave message and keywords as they are."""
        return msg, kwargs

    def warning_once(self, msg: str, **kwargs: Any) -> None:
        """Warn, once in this logger for each message."""
        seen: set[str] = self.extra["seen"]  # type: ignore[index,assignment]
        if msg not in seen:
            seen.add(msg)
            self.warning(msg, **kwargs)

    def _emit(self, level: int, msg: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        kwargs["stacklevel"] += 1
        self.logger.log(level, msg, *args, **kwargs)

    def _log_in_order(self, level: int, msg: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        from xaccel.backend.registry import load_backend

        kwargs["stacklevel"] += 1
        topology = current_topology()
        if topology is None:
            self._emit(level, msg, args, kwargs)
            return
        collectives = load_backend(topology.backend).collectives(topology)
        for index in range(topology.num_processes):
            if index == topology.process_index:
                self._emit(level, msg, args, dict(kwargs))
            collectives.barrier("log in order")


def get_logger(name: str, log_level: str | None = None) -> ProcessLogger:
    """A process-aware logger.

    Args:
        name: as for `logging.getLogger`.
        log_level: "DEBUG", "INFO", …; as configured where `None`.
    """
    logger = logging.getLogger(name)
    if log_level is not None:
        logger.setLevel(log_level.upper())
    return ProcessLogger(logger, {"seen": set()})


def _process_index() -> int:
    topology = current_topology()
    return topology.process_index if topology is not None else read_environment().process_index or 0
