"""A flag that any process raises and all processes see."""

from __future__ import annotations

from xaccel.backend.collectives import Collectives


class Trigger:
    """`set` on some process, then `check` on all: True on every process if it was set on any, and it is lowered again."""

    def __init__(self, collectives: Collectives):
        self._collectives = collectives
        self._raised = False

    def set(self) -> None:
        """Raise the flag on this process."""
        self._raised = True

    def check(self) -> bool:
        """Whether any process raised it; a collective call."""
        if any(self._collectives.gather_objects(self._raised)):
            self._raised = False
            return True
        return False
