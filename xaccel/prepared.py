"""What was prepared, by role and in order, known by identity. Users' objects are never marked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xaccel.preparation.plan import PreparationPlan, Role


class Prepared:
    """The prepared and registered objects of one `Accelerator`.

    Attributes:
        models, optimizers, schedulers, loaders: prepared objects in the order of preparation.
        registered: objects given to `register_for_checkpointing`, in order.
    """

    def __init__(self) -> None:
        self.models: list[Any] = []
        self.optimizers: list[Any] = []
        self.schedulers: list[Any] = []
        self.loaders: list[Any] = []
        self.registered: list[Any] = []
        # original id -> (original, prepared). Holding the original keeps its id from being used again.
        self._known: dict[int, tuple[Any, Any]] = {}

    def remember(self, plan: PreparationPlan) -> None:
        """Take in the results of one `prepare` call; an object prepared before is not listed twice."""
        for item in plan.items:
            if item.role == "other":
                continue
            self._known[id(item.original)] = (item.original, item.current)
            self._known[id(item.current)] = (item.current, item.current)
            group = self._group(item.role)
            if group is not None and not any(known is item.current for known in group):
                group.append(item.current)

    def find(self, value: Any) -> Any | None:
        """What `value` (an original or a prepared object) has become, or `None` if it was never prepared."""
        entry = self._known.get(id(value))
        return None if entry is None else entry[1]

    def forget(self) -> None:
        """Drop every reference (`free_memory`)."""
        for group in (self.models, self.optimizers, self.schedulers, self.loaders, self.registered):
            group.clear()
        self._known.clear()

    def _group(self, role: Role) -> list[Any] | None:
        return {"model": self.models, "optimizer": self.optimizers, "scheduler": self.schedulers, "loader": self.loaders}.get(role)
