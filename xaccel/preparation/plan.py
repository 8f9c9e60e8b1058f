"""The objects of one `prepare` call, by role, in the order in which they came."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any, Literal, Protocol

Role = Literal["model", "optimizer", "scheduler", "loader", "loss", "other"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Item:
    """One object on its way through preparation.

    Attributes:
        original: the user's object.
        current: what it has become so far; what `prepare` returns in its place.
        role: what it is.
        device_placement: whether to move it to the device.
        evaluation: it will never be trained (`prepare_model(evaluation_mode=True)`).
    """

    original: Any
    current: Any
    role: Role
    device_placement: bool = True
    evaluation: bool = False


@dataclasses.dataclass(frozen=True)
class PreparationPlan:
    """An immutable list of items; each stage returns a new plan of the same length and order."""

    items: tuple[Item, ...]

    def of(self, role: Role) -> tuple[Item, ...]:
        """The items of one role, in order."""
        return tuple(item for item in self.items if item.role == role)

    def replace(self, new: dict[int, Any]) -> "PreparationPlan":
        """A plan in which the item whose *original* has `id` k is now `new[k]`."""
        return PreparationPlan(
            tuple(dataclasses.replace(item, current=new[id(item.original)]) if id(item.original) in new else item for item in self.items)
        )

    @property
    def results(self) -> tuple[Any, ...]:
        """What `prepare` returns."""
        return tuple(item.current for item in self.items)


class Preparer(Protocol):
    """Claims objects of one kind. Listed in `Backend.preparers`, most specific first; an unclaimed object passes through."""

    role: Role

    def claims(self, value: Any) -> bool:
        """Whether `value` is of this kind."""

    def prepare(self, item: Item, context: Any) -> Any:
        """For loaders, schedulers and losses: the prepared object. Models and optimizers go through the strategy, together.

        `context` is the `xaccel.preparation.pipeline.PreparationContext`.
        """


def make_plan(
    objects: Sequence[Any], preparers: Sequence[Preparer], device_placement: Sequence[bool], evaluation: bool = False
) -> PreparationPlan:
    """Claim each object by the first preparer that knows it."""
    items = []
    for value, placement in zip(objects, device_placement, strict=True):
        role: Role = next((preparer.role for preparer in preparers if preparer.claims(value)), "other")
        items.append(Item(original=value, current=value, role=role, device_placement=placement, evaluation=evaluation))
    return PreparationPlan(tuple(items))
