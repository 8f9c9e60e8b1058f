"""JAX arrays as the core sees arrays; NumPy arrays are taken too, and stay on the host."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from xaccel.errors import DataError
from xaccel_jax.lazy import Lazy


def materialise(array: Any) -> Any:
    """A lazy handle's value; anything else as it is."""
    return array.value if isinstance(array, Lazy) else array


def narrowed(values: np.ndarray) -> np.ndarray:
    """The values in a type that JAX keeps: 64-bit types become 32-bit ones unless 64-bit types are enabled.

    Raises:
        DataError: an integer does not fit into 32 bits; it would come out as another number.
    """
    if jax.config.read("jax_enable_x64") or values.dtype.itemsize != 8 or values.dtype.kind not in "iuf":
        return values
    target = np.dtype(f"{values.dtype.kind}4")
    if values.dtype.kind in "iu" and values.size:
        limits = np.iinfo(target)
        low, high = values.min(), values.max()
        if low < limits.min or high > limits.max:
            raise DataError(
                f"{values.dtype.name} values from {low} to {high} do not fit into {target.name}: set jax_enable_x64, or make them smaller"
            )
    return values.astype(target)


class JaxArrays:
    """See `xaccel.backend.arrays.Arrays`."""

    def is_array(self, value: Any) -> bool:
        return isinstance(value, (jax.Array, np.ndarray, Lazy))

    def shape(self, array: Any) -> tuple[int, ...]:
        return tuple(materialise(array).shape)

    def dtype_name(self, array: Any) -> str:
        return str(materialise(array).dtype)

    def to_numpy(self, array: Any) -> np.ndarray:
        value = materialise(array)
        if isinstance(value, jax.Array) and not value.is_fully_addressable and value.is_fully_replicated:
            value = value.addressable_data(0)
        return np.asarray(value)

    def from_numpy(self, values: np.ndarray, like: Any = None) -> jax.Array:
        array = jnp.asarray(narrowed(values))
        return jax.device_put(array, like.sharding) if isinstance(like, jax.Array) and len(like.sharding.device_set) == 1 else array

    def concatenate(self, arrays: list[Any], dim: int) -> Any:
        values = [materialise(array) for array in arrays]
        return np.concatenate(values, axis=dim) if isinstance(values[0], np.ndarray) else jnp.concatenate(values, axis=dim)

    def narrow(self, array: Any, dim: int, start: int, stop: int) -> Any:
        return materialise(array)[(slice(None),) * dim + (slice(start, stop),)]

    def pad(self, array: Any, dim: int, before: int, after: int, value: float) -> Any:
        source = materialise(array)
        widths = [(before, after) if each == dim else (0, 0) for each in range(source.ndim)]
        library: Any = np if isinstance(source, np.ndarray) else jnp
        return library.pad(source, widths, constant_values=np.asarray(value).astype(source.dtype))

    def to_device(self, array: Any, device: Any = None, non_blocking: bool = False) -> jax.Array:
        # Transfers never block in JAX, whatever `non_blocking` says.
        del non_blocking
        value = materialise(array)
        return jax.device_put(narrowed(value) if isinstance(value, np.ndarray) else value, device)

    def detach_scalar(self, array: Any) -> float | int | bool:
        return self.to_numpy(array).item()
