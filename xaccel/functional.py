"""The collectives as functions, for code that has no `Accelerator` at hand: they use the run that this process has joined."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from xaccel.backend.registry import load_backend
from xaccel.collectives.communicator import Communicator
from xaccel.environment import read_environment
from xaccel.errors import ConfigurationError
from xaccel.process.topology import current_topology


def _communicator() -> Communicator:
    topology = current_topology()
    if topology is None:
        raise ConfigurationError("no run has been joined: make an Accelerator() or PartialState() first")
    backend = load_backend(topology.backend)
    return Communicator(backend.arrays, backend.collectives(topology), topology, read_environment().debug)


def gather(tensor: Any) -> Any:
    """As `Accelerator.gather`."""
    return _communicator().gather(tensor)


def gather_object(value: Any) -> list[Any]:
    """Picklable objects of all processes in rank order: lists are joined, anything else gives one entry for each process."""
    return _communicator().gather_object(value)


def reduce(tensor: Any, reduction: str = "mean", scale: float = 1.0) -> Any:
    """As `Accelerator.reduce`, the mean by default."""
    return _communicator().reduce(tensor, reduction, scale)


def broadcast(tensor: Any, from_process: int = 0) -> Any:
    """Nested arrays of one process on all."""
    return _communicator().broadcast(tensor, from_process)


def broadcast_object_list(object_list: list[Any], from_process: int = 0) -> list[Any]:
    """The list of one process on all; the argument is also filled in place."""
    return _communicator().broadcast_object_list(object_list, from_process)


def pad_across_processes(tensor: Any, dim: int = 0, pad_index: float = 0, pad_first: bool = False) -> Any:
    """As `Accelerator.pad_across_processes`."""
    return _communicator().pad_across_processes(tensor, dim, pad_index, pad_first)


def concatenate(data: Sequence[Any], dim: int = 0) -> Any:
    """Structures of the same shape joined leaf by leaf along `dim`."""
    return _communicator().concatenate(data, dim)


def send_to_device(tensor: Any, device: Any, non_blocking: bool = False, skip_keys: str | Sequence[str] | None = None) -> Any:
    """Nested arrays moved to a device."""
    return _communicator().send_to_device(tensor, device, non_blocking, skip_keys)


def recursively_apply(
    func: Callable[..., Any],
    data: Any,
    *args: Any,
    test_type: Callable[[Any], bool] | None = None,
    error_on_other_type: bool = False,
    **kwargs: Any,
) -> Any:
    """`func` on every array leaf (or every leaf for which `test_type` holds)."""
    return _communicator().recursively_apply(func, data, *args, test_type=test_type, error_on_other_type=error_on_other_type, **kwargs)


def wait_for_everyone() -> None:
    """Return once every process has called it."""
    topology = current_topology()
    if topology is not None:
        load_backend(topology.backend).collectives(topology).barrier("wait_for_everyone")
