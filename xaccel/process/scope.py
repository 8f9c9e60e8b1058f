"""Code that runs on some processes only, and work divided among them."""

from __future__ import annotations

import builtins
import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from xaccel.errors import ConfigurationError
from xaccel.process.topology import ProcessTopology

Barrier = Callable[[str], None]
Function = Callable[..., Any]


class ProcessScope:
    """The process-control methods of `Accelerator` and `PartialState`.

    Args:
        topology: where this process stands.
        collectives: has `barrier(name)`.
    """

    def __init__(self, topology: ProcessTopology, collectives: Any):
        self._topology = topology
        self._barrier: Barrier = collectives.barrier

    def wait_for_everyone(self) -> None:
        """Return once every process has called it."""
        self._barrier("wait_for_everyone")

    def print(self, *args: Any, **kwargs: Any) -> None:
        """`print` on the first process of each machine."""
        if self._topology.is_local_main_process:
            builtins.print(*args, **kwargs)

    def on_main_process(self, function: Function | None = None) -> Function:
        """Decorator: run on process 0 only; elsewhere the call returns `None`."""
        return self._only_if(self._topology.is_main_process, function)

    def on_local_main_process(self, function: Function | None = None) -> Function:
        """Decorator: run on the first process of each machine only."""
        return self._only_if(self._topology.is_local_main_process, function)

    def on_last_process(self, function: Function | None = None) -> Function:
        """Decorator: run on the last process only."""
        return self._only_if(self._topology.is_last_process, function)

    def on_process(self, function: Function | None = None, process_index: int | None = None) -> Function:
        """Decorator: run on the process of that index only.

        Raises:
            ConfigurationError: `process_index` is missing or no process of this run.
        """
        _check_index("process_index", process_index, self._topology.num_processes)
        return self._only_if(self._topology.process_index == process_index, function)

    def on_local_process(self, function: Function | None = None, local_process_index: int | None = None) -> Function:
        """Decorator: run on the process of that index on each machine only."""
        _check_index("local_process_index", local_process_index, self._topology.num_local_processes)
        return self._only_if(self._topology.local_process_index == local_process_index, function)

    def _only_if(self, here: bool, function: Function | None) -> Function:
        if function is None:
            return functools.partial(self._only_if, here)

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs) if here else None

        return run

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """Process 0 goes through the block before the others enter it."""
        with self._first(self._topology.is_main_process):
            yield

    @contextmanager
    def local_main_process_first(self) -> Iterator[None]:
        """The first process of each machine goes through the block before its others enter it."""
        with self._first(self._topology.is_local_main_process):
            yield

    @contextmanager
    def _first(self, is_first: bool) -> Iterator[None]:
        if not is_first:
            self._barrier("process first")
        try:
            yield
        finally:
            # Also when the block raises: the others must not wait for a process that has left.
            if is_first:
                self._barrier("process first")

    @contextmanager
    def split_between_processes(self, inputs: Any, apply_padding: bool = False) -> Iterator[Any]:
        """This process's part of `inputs`; where it does not divide, the first processes get one element more.

        Args:
            inputs: a list, tuple, string-keyed dict of them (all equally long), array, or a dataset with `select`; `n` elements long.
            apply_padding: repeat the last element of `inputs` so that all parts have `ceil(n / num_processes)` elements.

        Raises:
            ConfigurationError: the members of a dict have different lengths; the message names them.

        Yields:
            A part of the same type.
        """
        length = _length(inputs)
        start, stop, missing = split_range(length, self._topology.num_processes, self._topology.process_index, apply_padding)
        yield _part(inputs, length, start, stop, missing)


def split_range(length: int, num_parts: int, part_index: int, pad: bool = False) -> tuple[int, int, int]:
    """Where one part of a range begins and ends, and how many copies of the last element fill it up.

    >>> [split_range(5, 3, index) for index in range(3)]
    [(0, 2, 0), (2, 4, 0), (4, 5, 0)]
    >>> split_range(5, 3, 2, pad=True)
    (4, 5, 1)
    """
    each, extra = divmod(length, num_parts)
    start = part_index * each + min(part_index, extra)
    stop = start + each + (part_index < extra)
    full = each + (extra > 0)
    return start, stop, (full - (stop - start)) if pad and length > 0 else 0


def _length(inputs: Any) -> int:
    if not isinstance(inputs, Mapping):
        return len(inputs)
    lengths = {key: len(value) for key, value in inputs.items()}
    if len(set(lengths.values())) > 1:
        raise ConfigurationError(f"split_between_processes: all members must be equally long, got lengths {lengths}")
    return next(iter(lengths.values()), 0)


def _part(inputs: Any, length: int, start: int, stop: int, missing: int) -> Any:
    if isinstance(inputs, Mapping):
        parts = {key: _part(value, length, start, stop, missing) for key, value in inputs.items()}
        return parts if type(inputs) is dict else type(inputs)(parts)  # type: ignore[call-arg]
    if isinstance(inputs, (list, tuple)):
        part = [*inputs[start:stop], *inputs[-1:] * missing]
        return part if isinstance(inputs, list) else tuple(part)
    indices = [*range(start, stop), *[length - 1] * missing]
    select = getattr(inputs, "select", None)
    if select is not None and getattr(inputs, "features", None) is not None:
        return select(indices)  # a 🤗 Dataset: indexing it would give a dict of columns
    return inputs[start:stop] if not missing else inputs[np.array(indices)]  # JAX refuses a list


def _check_index(name: str, index: int | None, count: int) -> None:
    if index is None or not 0 <= index < count:
        raise ConfigurationError(f"{name}={index}: expected 0 to {count - 1}")
