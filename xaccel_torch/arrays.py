"""torch tensors as the core sees arrays; NumPy arrays are taken too, and stay on the host."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import torch

from xaccel.process.topology import current_topology

# NumPy has no such element types; ml_dtypes does, with the same bits.
_BY_BITS: dict[torch.dtype, tuple[torch.dtype, np.dtype[Any]]] = {
    torch.bfloat16: (torch.int16, np.dtype(ml_dtypes.bfloat16)),
    torch.float8_e4m3fn: (torch.uint8, np.dtype(ml_dtypes.float8_e4m3fn)),
    torch.float8_e5m2: (torch.uint8, np.dtype(ml_dtypes.float8_e5m2)),
}
_TORCH_OF = {numpy_dtype: torch_dtype for torch_dtype, (_, numpy_dtype) in _BY_BITS.items()}
_BITS_OF: dict[int, Any] = {2: np.int16, 1: np.uint8}


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """The tensor's values on the host, same shape; a view where it is a CPU tensor."""
    host = tensor.detach().to("cpu")
    if host.dtype in _BY_BITS:
        bits, dtype = _BY_BITS[host.dtype]
        return host.contiguous().view(bits).numpy().view(dtype)
    return host.resolve_conj().resolve_neg().numpy()


def from_numpy(values: np.ndarray, device: Any = "cpu") -> torch.Tensor:
    """A tensor of the values on `device`; a view of them on the CPU where they are writable."""
    if values.dtype in _TORCH_OF:
        bits = np.ascontiguousarray(values).view(_BITS_OF[values.dtype.itemsize]).reshape(values.shape)
        return _wrap(bits).view(_TORCH_OF[values.dtype]).to(device)
    return _wrap(values).to(device)


def _wrap(values: np.ndarray) -> torch.Tensor:
    # torch warns of arrays that it could write through, and refuses negative strides and other byte orders.
    fine = values.flags.writeable and values.dtype.isnative and all(stride >= 0 for stride in values.strides)
    return torch.from_numpy(values if fine else np.array(values, dtype=values.dtype.newbyteorder("=")))


class TorchArrays:
    """See `xaccel.backend.arrays.Arrays`."""

    def is_array(self, value: Any) -> bool:
        return isinstance(value, (torch.Tensor, np.ndarray))

    def shape(self, array: Any) -> tuple[int, ...]:
        return tuple(array.shape)

    def dtype_name(self, array: Any) -> str:
        return str(array.dtype).removeprefix("torch.")

    def to_numpy(self, array: Any) -> np.ndarray:
        return array if isinstance(array, np.ndarray) else to_numpy(array)

    def from_numpy(self, values: np.ndarray, like: Any = None) -> torch.Tensor:
        return from_numpy(values, like.device if isinstance(like, torch.Tensor) else _own_device())

    def concatenate(self, arrays: list[Any], dim: int) -> Any:
        if isinstance(arrays[0], np.ndarray):
            return np.concatenate(arrays, axis=dim)
        return torch.cat(arrays, dim)

    def narrow(self, array: Any, dim: int, start: int, stop: int) -> Any:
        return array[(slice(None),) * dim + (slice(start, stop),)]

    def pad(self, array: Any, dim: int, before: int, after: int, value: float) -> Any:
        if isinstance(array, np.ndarray):
            widths = [(before, after) if each == dim else (0, 0) for each in range(array.ndim)]
            return np.pad(array, widths, constant_values=np.asarray(value).astype(array.dtype))
        shape = list(array.shape)
        shape[dim] += before + after
        padded = (
            torch.full(shape, 0, dtype=torch.uint8, device=array.device).to(array.dtype)
            if array.dtype in _BY_BITS
            else array.new_empty(shape)
        )
        padded.fill_(value)
        padded.narrow(dim, before, array.shape[dim]).copy_(array)
        return padded

    def to_device(self, array: Any, device: Any = None, non_blocking: bool = False) -> torch.Tensor:
        target = _own_device() if device is None else device
        return from_numpy(array, target) if isinstance(array, np.ndarray) else array.to(target, non_blocking=non_blocking)

    def detach_scalar(self, array: Any) -> float | int | bool:
        return array.item()


def _own_device() -> Any:
    topology = current_topology()
    return "cpu" if topology is None else topology.device
