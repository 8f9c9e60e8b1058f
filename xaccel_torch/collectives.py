"""Collectives over `torch.distributed`, and a world of one."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist

from xaccel.collectives.coalescing import Buffer, plan_buffers
from xaccel.errors import CollectiveError, CollectiveTimeoutError
from xaccel.process.topology import ProcessTopology
from xaccel_torch.arrays import from_numpy
from xaccel_torch.compat import all_gather_flat
from xaccel_torch.roll_call import absent_processes, announce_break, is_broken

Result = TypeVar("Result")

IN_PLACE_AT_LEAST_BYTES = 1 << 20
"""From here on memory matters more than the latency of several small messages."""

LOOK_UP_EVERY = datetime.timedelta(seconds=1)
"""Far below any time limit, far above what a collective usually takes."""

# How gloo words the end of a connection; after it the group is of no more use.
_BREAK_SIGNS = ("Connection closed by peer", "Connection reset", "Read error", "Write error", "Broken pipe", "connection between other")

# gloo and nccl refuse these; they travel as the bytes that they are, where elements only move.
_AS_BYTES = (torch.bool, torch.float8_e4m3fn, torch.float8_e5m2, torch.int16, torch.uint16, torch.uint32, torch.uint64)

# Types that no transport adds up; they are reduced in a wider type and come back in their own.
_REDUCED_IN = {
    torch.float8_e4m3fn: torch.float32,
    torch.float8_e5m2: torch.float32,
    torch.int16: torch.int32,
    torch.uint16: torch.int32,
    torch.uint32: torch.int64,
}

_REDUCE_OPS = {"sum": dist.ReduceOp.SUM, "mean": dist.ReduceOp.SUM, "max": dist.ReduceOp.MAX, "min": dist.ReduceOp.MIN}


def _tensor(array: Any) -> torch.Tensor:
    return from_numpy(array) if isinstance(array, np.ndarray) else array.detach()


def _reducible(tensor: torch.Tensor, reduction: str) -> torch.Tensor:
    """The tensor in the type in which the reduction is meant: sums of bools are counts, means of integers are floats."""
    if reduction == "mean" and not tensor.is_floating_point() and not tensor.is_complex():
        return tensor.to(torch.float64 if tensor.dtype in (torch.int64, torch.uint64) else torch.float32)
    if tensor.dtype is torch.bool:
        return tensor.to(torch.int64 if reduction == "sum" else torch.uint8)
    if reduction == "mean" and tensor.dtype in (torch.float16, torch.bfloat16):
        return tensor.to(torch.float32)  # the sum of many may overflow, where their mean does not
    return tensor.to(_REDUCED_IN[tensor.dtype]) if tensor.dtype in _REDUCED_IN else tensor


class SoloCollectives:
    """A world of one process."""

    def gather(self, arrays: Sequence[Any]) -> list[torch.Tensor]:
        return [tensor.clone().reshape(tensor.shape or (1,)) for tensor in map(_tensor, arrays)]

    def reduce(self, arrays: Sequence[Any], reduction: str, scale: float) -> list[torch.Tensor]:
        if reduction == "none":
            return [_scaled(_tensor(array).clone(), scale) for array in arrays]
        return [_finish(_reducible(tensor, reduction).clone(), tensor.dtype, reduction, scale, 1) for tensor in map(_tensor, arrays)]

    def broadcast(self, arrays: Sequence[Any], from_process: int) -> list[torch.Tensor]:
        return [_tensor(array).clone() for array in arrays]

    def gather_objects(self, value: Any) -> list[Any]:
        return [value]

    def broadcast_objects(self, values: list[Any], from_process: int) -> list[Any]:
        return list(values)

    def barrier(self, name: str = "barrier") -> None:
        """Everyone is here."""


class TorchCollectives:
    """The processes of the default group.

    Args:
        topology: where this process stands.
        timeout_seconds: how long `barrier` waits for the others.
    """

    def __init__(self, topology: ProcessTopology, timeout_seconds: float = 1800.0):
        self._topology = topology
        self._timeout = datetime.timedelta(seconds=timeout_seconds)
        self._count = topology.num_processes

    def gather(self, arrays: Sequence[Any]) -> list[torch.Tensor]:
        tensors = [tensor.reshape(tensor.shape or (1,)) for tensor in map(_tensor, arrays)]
        return self._through_buffers("gather", tensors, self._gather_buffer)

    def reduce(self, arrays: Sequence[Any], reduction: str, scale: float) -> list[torch.Tensor]:
        tensors = [_tensor(array) for array in arrays]
        if reduction == "none":
            return [_scaled(tensor.clone(), scale) for tensor in tensors]
        sources = [_reducible(tensor, reduction) for tensor in tensors]
        summed = self._through_buffers("reduce", sources, lambda buffer, flat: self._reduce_buffer(buffer, flat, reduction))
        return [_finish(result, tensor.dtype, reduction, scale, self._count) for result, tensor in zip(summed, tensors, strict=True)]

    def broadcast(self, arrays: Sequence[Any], from_process: int) -> list[torch.Tensor]:
        tensors = [_tensor(array) for array in arrays]
        return self._through_buffers("broadcast", tensors, lambda buffer, flat: self._broadcast_buffer(buffer, flat, from_process))

    def gather_objects(self, value: Any) -> list[Any]:
        everything: list[Any] = [None] * self._count
        self._run("gather_objects", lambda: dist.all_gather_object(everything, value))
        return everything

    def broadcast_objects(self, values: list[Any], from_process: int) -> list[Any]:
        received = list(values)
        # Lists of other lengths on other processes are allowed: the source's is sent as one object.
        holder: list[Any] = [received]
        self._run("broadcast_objects", lambda: dist.broadcast_object_list(holder, src=from_process))
        return holder[0]

    def barrier(self, name: str = "barrier") -> None:
        if dist.get_backend() == "gloo":
            self._run(name, lambda: dist.monitored_barrier(timeout=self._timeout, wait_all_ranks=True))
        else:
            self._run(name, lambda: dist.barrier(device_ids=[self._topology.local_process_index]))

    def _through_buffers(
        self, operation: str, tensors: list[torch.Tensor], move: Callable[[Buffer, torch.Tensor], list[torch.Tensor]]
    ) -> list[torch.Tensor]:
        """Pack the tensors into one flat buffer for each dtype, move each buffer, and put the results in the tensors' order."""
        results: list[torch.Tensor] = [torch.empty(0)] * len(tensors)
        for buffer in plan_buffers([tuple(tensor.shape) for tensor in tensors], [str(tensor.dtype) for tensor in tensors]):
            flat = self._pack(buffer, tensors)
            moved = self._run(operation, lambda buffer=buffer, flat=flat: move(buffer, flat))  # type: ignore[misc]
            for segment, result in zip(buffer.segments, moved, strict=True):
                results[segment.index] = result
        return results

    def _pack(self, buffer: Buffer, tensors: list[torch.Tensor]) -> torch.Tensor:
        parts = [tensors[segment.index].reshape(-1) for segment in buffer.segments]
        flat = parts[0].contiguous() if len(parts) == 1 else torch.cat(parts)
        flat = flat.to(self._topology.device)
        return flat.view(torch.uint8) if flat.dtype in _AS_BYTES else flat

    def _gather_buffer(self, buffer: Buffer, flat: torch.Tensor) -> list[torch.Tensor]:
        output = flat.new_empty((self._count, flat.numel()))
        if flat.numel() * flat.element_size() >= IN_PLACE_AT_LEAST_BYTES and dist.get_backend() == "gloo":
            self._gather_in_place(output, flat)
        elif flat.numel() > 0:
            _wait(all_gather_flat(output.view(-1), flat, async_op=True))
        rows = _typed(output, buffer.dtype)
        return [rows[:, s.start : s.stop].reshape((self._count * s.shape[0], *s.shape[1:])) for s in buffer.segments]

    def _gather_in_place(self, output: torch.Tensor, flat: torch.Tensor) -> None:
        """Every process's row straight into the output; gloo's own gather would receive into a second buffer of the output's size."""
        output[self._topology.process_index].copy_(flat)
        for work in [dist.broadcast(row, src=source, async_op=True) for source, row in enumerate(output)]:
            _wait(work)

    def _reduce_buffer(self, buffer: Buffer, flat: torch.Tensor, reduction: str) -> list[torch.Tensor]:
        copy = flat.clone() if len(buffer.segments) == 1 else flat
        if copy.numel() > 0:
            _wait(dist.all_reduce(copy, op=_REDUCE_OPS[reduction], async_op=True))
        return [copy[s.start : s.stop].view(s.shape) for s in buffer.segments]

    def _broadcast_buffer(self, buffer: Buffer, flat: torch.Tensor, from_process: int) -> list[torch.Tensor]:
        copy = flat.clone() if len(buffer.segments) == 1 else flat
        if copy.numel() > 0:
            _wait(dist.broadcast(copy, src=from_process, async_op=True))
        whole = _typed(copy, buffer.dtype)
        return [whole[s.start : s.stop].view(s.shape) for s in buffer.segments]

    def _run(self, operation: str, call: Callable[[], Result]) -> Result:
        """Run one collective; a broken connection or a time-out becomes an error that names the processes that are gone."""
        try:
            return call()
        except RuntimeError as error:
            if any(sign in str(error) for sign in _BREAK_SIGNS):
                announce_break()
            gone = absent_processes(self._topology)
            reason = str(error).strip().splitlines()[0][:300]
            who = f"process(es) {', '.join(map(str, gone))} did not answer" if gone else "a process left or never came"
            kind = CollectiveTimeoutError if gone or "imed out" in str(error) or "timeout" in str(error).lower() else CollectiveError
            raise kind(f"{operation} on process {self._topology.process_index} of {self._count}: {who} ({reason})") from error


def _wait(work: Any) -> None:
    """Wait for a collective; on gloo look up every second: who waits for a living process does not see another one die.

    Raises:
        RuntimeError: it failed, or the group broke elsewhere.
    """
    if dist.get_backend() != "gloo":
        work.wait()
        return
    while True:
        try:
            work.wait(LOOK_UP_EVERY)
            return
        except RuntimeError:
            if work.is_completed():
                raise
            if is_broken():
                raise RuntimeError("a connection between other processes broke") from None


def _typed(flat: torch.Tensor, dtype: str) -> torch.Tensor:
    wanted = getattr(torch, dtype.removeprefix("torch."))
    return flat.view(wanted) if flat.dtype is not wanted else flat


def _finish(reduced: torch.Tensor, dtype: torch.dtype, reduction: str, scale: float, count: int) -> torch.Tensor:
    if reduction == "mean":
        reduced = reduced / count
    becomes_float = reduction == "mean" and not dtype.is_floating_point and not dtype.is_complex
    if not becomes_float and not (dtype is torch.bool and reduction == "sum"):
        reduced = reduced.to(dtype)
    return _scaled(reduced, scale)


def _scaled(tensor: torch.Tensor, scale: float) -> torch.Tensor:
    return tensor if scale == 1.0 else tensor * scale
