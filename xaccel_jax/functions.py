"""A loss function as a key and inputs: a function made anew each step (a lambda over the batch) is the same program.

A Python function is its code, its module's globals, and the values in its closure and defaults. Arrays among those are inputs of the
compiled step; prepared models become the step's own; anything else, numbers included, is part of the key, by equality where it hashes, else by identity.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from xaccel_jax.lazy import Lazy


class ByIdentity:
    """A key for an object that does not hash; it holds the object, so that its id is not used again."""

    __slots__ = ("value",)

    def __init__(self, value: Any):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ByIdentity) and other.value is self.value

    def __hash__(self) -> int:
        return id(self.value)


def static_key(value: Any) -> Any:
    """A hashable stand-in for a static value. Types count: 1, 1.0 and True are different programs."""
    try:
        hash(value)
    except TypeError:
        return ByIdentity(value)
    return (type(value), value)


def is_array(value: Any) -> bool:
    """Whether a leaf is an array, or will be."""
    return isinstance(value, (jax.Array, np.ndarray, np.generic, Lazy))


def is_number(value: Any) -> bool:
    """Whether a leaf is a Python number (a bool is a switch, not a number)."""
    return isinstance(value, (int, float, complex)) and not isinstance(value, bool)


def _closed(value: Any) -> Any:
    """A captured container without arrays stays the very object: the function may append to it."""
    if not isinstance(value, (list, tuple, dict)) or any(is_array(leaf) for leaf in jax.tree.leaves(value)):
        return value
    return ByIdentity(value)


class FunctionParts:
    """One function, taken apart.

    Attributes:
        key: equal for functions that are the same program.
        captured: the values of its closure cells and defaults, a list that may hold arrays and prepared models.
    """

    __slots__ = ("_function", "captured", "key")

    def __init__(self, function: Callable[..., Any]):
        self._function = function
        if isinstance(function, types.FunctionType):
            cells = [cell.cell_contents for cell in function.__closure__ or ()]
            captured = [*cells, *(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
            self.captured = [_closed(value) for value in captured]
            self.key: Any = (function.__code__, ByIdentity(function.__globals__), len(cells), tuple(function.__kwdefaults__ or ()))
        else:
            self.captured = []
            self.key = ByIdentity(function)

    def rebuilt(self, captured: list[Any]) -> Callable[..., Any]:
        """The same function over other captured values."""
        function = self._function
        if not isinstance(function, types.FunctionType) or not captured:
            return function
        captured = [value.value if isinstance(value, ByIdentity) else value for value in captured]
        num_cells = len(function.__closure__ or ())
        num_defaults = len(function.__defaults__ or ())
        cells = tuple(types.CellType(value) for value in captured[:num_cells])
        defaults = tuple(captured[num_cells : num_cells + num_defaults]) or None
        new = types.FunctionType(function.__code__, function.__globals__, function.__name__, defaults, cells)
        new.__kwdefaults__ = dict(zip(function.__kwdefaults__ or {}, captured[num_cells + num_defaults :], strict=True)) or None
        return new
