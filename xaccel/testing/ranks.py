"""Real processes, started once, that run many cases: what multi-process tests are made of.

    with RankPool("torch", 2) as pool:
        results = pool.run(case, argument)      # case(argument) on both ranks; results in rank order

A case is a module-level function, found again in the workers by its file and name. A rank that fails is reported with its own
traceback. When a rank dies or a case passes its time limit, all ranks are killed, and the next case starts fresh ones.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import importlib.util
import os
import pickle
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from multiprocessing.connection import Client, Connection, Listener, wait
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Literal

from xaccel.launch.ranks import LaunchRequest, rank_environments

Kind = Literal["torch", "jax"]

START_SECONDS = 60.0
"""Importing a framework on a busy two-core machine takes up to half of this."""


class RankError(AssertionError):
    """A case failed on some rank, or a rank died or did not answer."""


def load_module(path: Path) -> ModuleType:
    """The module at `path`, loaded once for each process under a name made from its path, equal in tests and workers."""
    name = "ranks_" + "_".join(path.with_suffix("").parts[-3:])
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        sys.path.insert(0, str(path.parent))
        try:
            spec.loader.exec_module(module)
        finally:
            sys.path.remove(str(path.parent))
    return sys.modules[name]


@dataclasses.dataclass
class _Rank:
    process: subprocess.Popen[bytes]
    connection: Connection
    log: Path


class RankPool:
    """Processes with ranks.

    Args:
        kind: "torch" (gloo) or "jax" (`jax.distributed` when there are several).
        num_processes: how many.
        devices_per_process: JAX: virtual CPU devices of each.
        env: further environment variables.
    """

    def __init__(self, kind: Kind, num_processes: int, devices_per_process: int = 1, *, env: Mapping[str, str] | None = None):
        self.request = LaunchRequest(backend=kind, num_processes=num_processes, num_devices=devices_per_process, cpu=True)
        self._env = dict(env or {})
        self._ranks: list[_Rank] = []
        self._folder = tempfile.TemporaryDirectory(prefix="xaccel-ranks-")

    def __enter__(self) -> RankPool:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def run(self, function: Callable[..., Any], *args: Any, timeout_seconds: float = 60.0, **kwargs: Any) -> list[Any]:
        """`function(*args, **kwargs)` on every rank.

        Returns:
            The results in rank order; they travel by pickle.

        Raises:
            RankError: with each failing rank's traceback, once where several fail alike.
        """
        if not self._ranks:
            self._start()
        path = Path(sys.modules[function.__module__].__file__ or "").resolve()
        # The arguments by themselves: they may be of classes that the worker knows only once it has loaded the file.
        message = pickle.dumps((str(path), function.__qualname__, pickle.dumps((args, kwargs))))
        for rank in self._ranks:
            rank.connection.send_bytes(message)
        return self._collect(timeout_seconds)

    def restart(self) -> None:
        """End all ranks; the next case starts fresh ones. For cases that break the process group on purpose."""
        self._kill()

    def close(self) -> None:
        """End all ranks."""
        self._kill()
        self._folder.cleanup()

    def _start(self) -> None:
        address = str(Path(self._folder.name) / f"socket{os.urandom(4).hex()}")
        # The tests' own process has eight virtual devices; a rank has as many as it was asked to have.
        inherited = {**os.environ, "XLA_FLAGS": "", **self._env, "OMP_NUM_THREADS": "1"}
        with Listener(address, "AF_UNIX", backlog=self.request.num_processes) as listener:
            started = []
            for index, environment in enumerate(rank_environments(self.request, inherited)):
                log = Path(self._folder.name) / f"rank{index}.log"
                with log.open("ab") as output:
                    command = [sys.executable, "-m", "xaccel.testing.ranks", address, str(index)]
                    started.append(
                        (subprocess.Popen(command, env=environment, stdout=output, stderr=output, stdin=subprocess.DEVNULL), log)
                    )
            connections: dict[int, Connection] = {}
            for _ in started:
                connection = listener.accept()
                connections[connection.recv()] = connection
        self._ranks = [_Rank(process, connections[index], log) for index, (process, log) in enumerate(started)]

    def _collect(self, timeout_seconds: float) -> list[Any]:
        deadline = time.monotonic() + timeout_seconds
        answers: dict[int, tuple[bool, Any]] = {}
        waiting: dict[Any, int] = {rank.connection: index for index, rank in enumerate(self._ranks)}
        while waiting:
            ready = wait(list(waiting), timeout=max(0.0, deadline - time.monotonic()))
            if not ready:
                self._fail(
                    f"no answer within {timeout_seconds:g} s from rank(s) {sorted(waiting.values())}",
                    answers,
                    dump=sorted(waiting.values()),
                )
            for connection in ready:
                index = waiting.pop(connection)
                try:
                    answers[index] = pickle.loads(connection.recv_bytes())  # type: ignore[union-attr]
                except (EOFError, ConnectionError):
                    status = self._ranks[index].process.wait(10)
                    # The others may be waiting for it in a collective: give them a moment to say so.
                    deadline = min(deadline, time.monotonic() + 15)
                    answers[index] = (False, f"rank {index} died with status {status}\n{self._tail(index)}")
        if not all(fine for fine, _ in answers.values()):
            died = [rank for rank in self._ranks if rank.process.poll() is not None]
            text = _distinct({index: text for index, (fine, text) in answers.items() if not fine})
            if died or self.request.num_processes > 1:
                # A failure on one rank leaves collectives out of step on the others.
                self._kill()
            raise RankError(text)
        return [answers[index][1] for index in range(len(self._ranks))]

    def _fail(self, reason: str, answers: dict[int, tuple[bool, Any]], dump: list[int]) -> None:
        for index in dump:
            self._ranks[index].process.send_signal(signal.SIGUSR1)
        time.sleep(0.5)
        texts = {index: str(text) for index, (fine, text) in answers.items() if not fine}
        texts.update({index: f"rank {index} was here:\n{self._tail(index)}" for index in dump})
        self._kill()
        raise RankError(f"{reason}\n{_distinct(texts)}")

    def _tail(self, index: int, num_characters: int = 4000) -> str:
        return self._ranks[index].log.read_text(errors="replace")[-num_characters:]

    def _kill(self) -> None:
        for rank in self._ranks:
            rank.process.kill()
        for rank in self._ranks:
            rank.process.wait()
            rank.connection.close()
        self._ranks = []


def _distinct(texts: Mapping[int, str]) -> str:
    groups: dict[str, list[int]] = {}
    for index, text in sorted(texts.items()):
        groups.setdefault(text, []).append(index)
    return "\n".join(f"--- rank(s) {', '.join(map(str, ranks))}:\n{text}" for text, ranks in groups.items())


def _resolve(path: str, qualname: str) -> Callable[..., Any]:
    value: Any = load_module(Path(path))
    for name in qualname.split("."):
        value = getattr(value, name)
    return value


def _work(address: str, index: int) -> None:
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    connection = Client(address, "AF_UNIX")
    connection.send(index)
    while True:
        try:
            message = connection.recv_bytes()
        except EOFError:
            return
        try:
            path, qualname, packed = pickle.loads(message)
            function = _resolve(path, qualname)
            args, kwargs = pickle.loads(packed)
            answer = pickle.dumps((True, function(*args, **kwargs)))
        except BaseException:  # reported to the parent, whatever it is; the worker lives on for the next case
            answer = pickle.dumps((False, traceback.format_exc()))
        connection.send_bytes(answer)


if __name__ == "__main__":
    _work(sys.argv[1], int(sys.argv[2]))
