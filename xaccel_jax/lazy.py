"""Handles of values that a step program will compute. Touching one materialises it."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from xaccel.errors import StepError


class Lazy:
    """A value to come: a loss, a gradient norm, an auxiliary output, a model's output.

    `float()`, `.item()`, arithmetic, comparison, formatting, `np.asarray`, `jnp.asarray` and `.value` materialise it. `jnp` functions do not
    call `__jax_array__` (JAX 0.10): give those `handle.value`.

    Args:
        what: what it is, for messages.
        run: computes it (and whatever else is pending), and calls `set`.
    """

    __slots__ = ("_run", "_value", "what")

    def __init__(self, what: str, run: Callable[[], None]):
        self.what = what
        self._run: Callable[[], None] | None = run
        self._value: Any = None

    def set(self, value: Any) -> None:
        """Fill the handle."""
        self._value = value
        self._run = None

    @property
    def is_ready(self) -> bool:
        """Whether it has been computed (or is being computed by the device)."""
        return self._run is None

    @property
    def value(self) -> Any:
        """The value, a `jax.Array` (or a nested structure of them)."""
        if self._run is not None:
            self._run()
            if self._run is not None:
                raise StepError(
                    f"the {self.what} was never computed: its step failed, or its gradients were dropped by zero_grad() or free_memory()"
                )
        return self._value

    def detach(self) -> Any:
        """The value: JAX has no tape to detach from."""
        return self.value

    def item(self) -> Any:
        """The one element as a Python number."""
        return _host(self.value).item()

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the value."""
        return self.value.shape

    @property
    def dtype(self) -> Any:
        """Type of the value's elements."""
        return self.value.dtype

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.array(_host(self.value), dtype=dtype) if copy else np.asarray(_host(self.value), dtype=dtype)

    def __jax_array__(self) -> jax.Array:
        return self.value

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else str(self)

    def __str__(self) -> str:
        return str(self.value)

    def __repr__(self) -> str:
        return repr(self.value) if self.is_ready else f"<{self.what}, not computed yet>"

    def __iter__(self) -> Any:
        return iter(self.value)

    def __getitem__(self, index: Any) -> Any:
        return self.value[index]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.value, name)

    # Comparison by value, as arrays do; identity still hashes.
    __hash__ = object.__hash__


def _host(value: Any) -> np.ndarray:
    """The value on this process: any of its replicas where others live elsewhere."""
    if isinstance(value, jax.Array) and not value.is_fully_addressable and value.is_fully_replicated:
        value = value.addressable_data(0)
    return np.asarray(value)


def _unwrapped(value: Any) -> Any:
    return value.value if isinstance(value, Lazy) else value


def _unary(function: Callable[[Any], Any]) -> Callable[[Lazy], Any]:
    return lambda self: function(self.value)


def _binary(function: Callable[[Any, Any], Any], reflected: bool) -> Callable[[Lazy, Any], Any]:
    if reflected:
        return lambda self, other: function(_unwrapped(other), self.value)
    return lambda self, other: function(self.value, _unwrapped(other))


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul"):
    setattr(Lazy, f"__{_name}__", _binary(getattr(operator, _name), reflected=False))
    setattr(Lazy, f"__r{_name}__", _binary(getattr(operator, _name), reflected=True))
for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
    setattr(Lazy, f"__{_name}__", _binary(getattr(operator, _name), reflected=False))
for _name in ("neg", "pos", "abs"):
    setattr(Lazy, f"__{_name}__", _unary(getattr(operator, _name)))
