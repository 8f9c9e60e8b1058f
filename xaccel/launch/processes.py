"""Start the processes of a run, watch them, and end all when one fails."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from types import FrameType

from xaccel.launch.ranks import LaunchRequest, rank_environments

GRACE_SECONDS = 5.0
"""Between SIGTERM and SIGKILL. JAX's preemption handler swallows SIGTERM, so SIGKILL must follow."""

POLL_SECONDS = 0.05


def launch(request: LaunchRequest, command: Sequence[str], inherited: Mapping[str, str] | None = None) -> int:
    """Run `command` once for each process of the request, with its rank in the environment.

    Args:
        request: what to start.
        command: program and arguments, the same for every process.
        inherited: environment to add to; this process's own by default.

    Returns:
        0 if all ended well, else the exit status of the first process that failed (128 + n if signal n ended it).
    """
    environments = rank_environments(request, os.environ if inherited is None else inherited)
    children = [subprocess.Popen(command, env=environment) for environment in environments]
    with _ForwardedSignals(children):
        try:
            return _wait(children)
        finally:
            end_all(children)


def _wait(children: Sequence[subprocess.Popen[bytes]]) -> int:
    running = dict(enumerate(children))
    while running:
        for index, child in list(running.items()):
            status = child.poll()
            if status is None:
                continue
            del running[index]
            if status != 0:
                _report(index, len(children), status)
                return status if status > 0 else 128 - status
        time.sleep(POLL_SECONDS)
    return 0


def _report(index: int, count: int, status: int) -> None:
    reason = f"exit status {status}" if status > 0 else f"signal {signal.Signals(-status).name}"
    print(f"xaccel launch: process {index} of {count} ended with {reason}; ending the others", file=sys.stderr)


def end_all(children: Sequence[subprocess.Popen[bytes]]) -> None:
    """SIGTERM, then SIGKILL for those that outlive the grace time."""
    for child in children:
        if child.poll() is None:
            child.terminate()
    deadline = time.monotonic() + GRACE_SECONDS
    for child in children:
        try:
            child.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


class _ForwardedSignals:
    """While active, SIGINT and SIGTERM end the children and then this process, with the usual exit status."""

    def __init__(self, children: Sequence[subprocess.Popen[bytes]]):
        self._children = children
        self._before: dict[int, object] = {}

    def __enter__(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._end)

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _end(self, number: int, _frame: FrameType | None) -> None:
        end_all(self._children)
        sys.exit(128 + number)
