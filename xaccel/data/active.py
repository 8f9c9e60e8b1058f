"""Which loader is being iterated: the innermost one that has not been abandoned."""

from __future__ import annotations

import weakref
from typing import Any


class ActiveLoaders:
    """A stack of loaders, known weakly, so that an abandoned loader and its dataset can be garbage-collected."""

    def __init__(self) -> None:
        self._stack: list[weakref.ref[Any]] = []

    @property
    def current(self) -> Any | None:
        """The innermost loader being iterated, or `None`."""
        while self._stack:
            loader = self._stack[-1]()
            if loader is not None:
                return loader
            self._stack.pop()
        return None

    def push(self, loader: Any) -> None:
        """An iteration begins; one of the same loader that was left is forgotten."""
        self.pop(loader)
        self._stack.append(weakref.ref(loader))

    def advance(self, loader: Any) -> None:
        """`loader` yields its next batch: every loader inside it was abandoned."""
        place = self._place(loader)
        if place is None:
            self._stack.append(weakref.ref(loader))
        else:
            del self._stack[place + 1 :]

    def pop(self, loader: Any) -> None:
        """The iteration is over."""
        place = self._place(loader)
        if place is not None:
            del self._stack[place]

    def clear(self) -> None:
        """Forget all."""
        self._stack.clear()

    def _place(self, loader: Any) -> int | None:
        return next((place for place, reference in enumerate(self._stack) if reference() is loader), None)
