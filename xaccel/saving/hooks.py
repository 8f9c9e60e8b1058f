"""Functions of the user's own that run before a save or a load."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

Hook = Callable[..., Any]


class RemovableHandle:
    """Removes one hook; also as a context manager."""

    def __init__(self, hooks: dict[int, Hook], key: int):
        self._hooks = hooks
        self._key = key

    def remove(self) -> None:
        """Take the hook out; a second call does nothing."""
        self._hooks.pop(self._key, None)

    def __enter__(self) -> RemovableHandle:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()


class Hooks:
    """Hooks in the order in which they were registered.

    >>> hooks, seen = Hooks(), []
    >>> handle = hooks.register(seen.append)
    >>> hooks.run(1); handle.remove(); hooks.run(2); seen
    [1]
    """

    def __init__(self) -> None:
        self._hooks: dict[int, Hook] = {}
        self._next = 0

    def register(self, hook: Hook) -> RemovableHandle:
        """Add a hook."""
        key, self._next = self._next, self._next + 1
        self._hooks[key] = hook
        return RemovableHandle(self._hooks, key)

    def run(self, *arguments: Any) -> None:
        """Call every hook with the same arguments."""
        for hook in list(self._hooks.values()):
            hook(*arguments)

    def __len__(self) -> int:
        return len(self._hooks)

    def __iter__(self) -> Iterator[Hook]:
        return iter(list(self._hooks.values()))
