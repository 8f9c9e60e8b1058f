"""Finds adapters by their entry points (group `xaccel.backends`); imports one only when it is asked for.

An entry point names a class; its instance is the framework's `Backend`, one per process.
"""

from __future__ import annotations

import functools
import sys
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from typing import Any

from xaccel.backend.backend import Backend
from xaccel.errors import BackendNotFoundError

GROUP = "xaccel.backends"

PREFERENCE = ("torch", "jax")
"""With several frameworks installed and nothing said, the first of these that can be imported."""


@functools.cache
def _entries() -> dict[str, EntryPoint]:
    return {entry.name: entry for entry in entry_points(group=GROUP)}


def available() -> tuple[str, ...]:
    """Names of all registered adapters, sorted; their frameworks may still be missing."""
    return tuple(sorted(_entries()))


@functools.cache
def load_backend(name: str) -> Backend:
    """The backend of that name.

    Raises:
        BackendNotFoundError: no such adapter is registered, or its framework is not installed.
    """
    entry = _entries().get(name)
    if entry is None:
        raise BackendNotFoundError(f"backend {name!r} is not registered: expected one of {', '.join(available())}")
    try:
        return entry.load()()
    except ImportError as error:
        raise BackendNotFoundError(f"backend {name!r} cannot be imported ({error}): pip install 'xaccel[{name}]'") from error


def choose_name(name: str | None) -> str:
    """The name of the backend to use, without importing it: the one given, else the preferred one whose framework is installed.

    An adapter's framework is looked for under the adapter's own name.

    Raises:
        BackendNotFoundError: no such adapter is registered, or no framework is installed.
    """
    if name is not None:
        if name not in _entries():
            raise BackendNotFoundError(f"backend {name!r} is not registered: expected one of {', '.join(available())}")
        return name
    installed = next((candidate for candidate in PREFERENCE if find_spec(candidate) is not None), None)
    if installed is None:
        raise BackendNotFoundError(f"no framework is installed: pip install {' or '.join(repr(f'xaccel[{each}]') for each in PREFERENCE)}")
    return installed


def choose_backend(name: str | None) -> Backend:
    """`load_backend(choose_name(name))`."""
    return load_backend(choose_name(name))


def owner_of(value: Any) -> Backend | None:
    """The backend that `value` (an array, a model) belongs to, asking only adapters whose package is already imported."""
    for name, entry in _entries().items():
        if entry.module.partition(".")[0] in sys.modules and entry.module in sys.modules:
            backend = load_backend(name)
            if backend.owns(value):
                return backend
    return None
