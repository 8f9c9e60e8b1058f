"""`prepare`: a fold over named stages, each from a plan to a plan."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from xaccel.backend.strategy import Strategy
from xaccel.config.settings import Settings
from xaccel.data.loader import LoaderContext
from xaccel.errors import ConfigurationError
from xaccel.preparation.plan import PreparationPlan, Preparer, Role, make_plan
from xaccel.prepared import Prepared
from xaccel.process.topology import ReplicaLayout

if TYPE_CHECKING:
    from xaccel.stepping.accumulation import Accumulation


@dataclasses.dataclass(frozen=True, kw_only=True)
class PreparationContext:
    """What a preparer of a loader, a scheduler or a loss may look at.

    Attributes:
        models, optimizers: prepared ones; those of the same `prepare` call first, else all that were prepared before.
        loaders: what a loader needs.
    """

    settings: Settings
    accumulation: Accumulation
    replicas: ReplicaLayout
    models: tuple[Any, ...]
    optimizers: tuple[Any, ...]
    loaders: LoaderContext


Stage = Callable[[PreparationPlan], PreparationPlan]


class Pipeline:
    """Prepares objects for one strategy.

    Args:
        strategy: places, converts, shards and wraps models and optimizers, seen together.
        preparers: claim objects by kind, most specific first.
        prepared: remembers what was prepared.
        loader_context: makes the context of loaders; called only when a loader is prepared, since it agrees on a seed across processes.
    """

    def __init__(
        self,
        strategy: Strategy,
        preparers: Sequence[Preparer],
        prepared: Prepared,
        settings: Settings,
        accumulation: Accumulation,
        loader_context: Callable[[], LoaderContext],
    ):
        self._strategy = strategy
        self._preparers = preparers
        self._prepared = prepared
        self._settings = settings
        self._accumulation = accumulation
        self._loader_context = loader_context

    def prepare(self, objects: Sequence[Any], device_placement: Sequence[bool] | None = None, evaluation: bool = False) -> tuple[Any, ...]:
        """The prepared objects, in the order given; one prepared before comes back as it became then.

        Raises:
            ConfigurationError: `device_placement` has another length than `objects`, or one object is given twice.
        """
        placement = self._placement(objects, device_placement)
        known = [self._prepared.find(value) for value in objects]
        fresh = [index for index, found in enumerate(known) if found is None]
        _refuse_twice([objects[index] for index in fresh])
        plan = make_plan([objects[index] for index in fresh], self._preparers, [placement[index] for index in fresh], evaluation)
        for stage in self._stages():
            plan = stage(plan)
        self._prepared.remember(plan)
        results = list(known)
        for index, result in zip(fresh, plan.results, strict=True):
            results[index] = result
        return tuple(results)

    def _stages(self) -> tuple[Stage, ...]:
        return (self._strategy.prepare, self._stage_of("loss"), self._stage_of("loader"), self._stage_of("scheduler"))

    def _stage_of(self, role: Role) -> Stage:
        def stage(plan: PreparationPlan) -> PreparationPlan:
            items = plan.of(role)
            if not items:
                return plan
            context = self._context(plan, with_loaders=role == "loader")
            new = {}
            for item in items:
                preparer = next(preparer for preparer in self._preparers if preparer.role == role and preparer.claims(item.original))
                new[id(item.original)] = preparer.prepare(item, context)
            return plan.replace(new)

        return stage

    def _context(self, plan: PreparationPlan, with_loaders: bool) -> PreparationContext:
        models = tuple(item.current for item in plan.of("model")) or tuple(self._prepared.models)
        optimizers = tuple(item.current for item in plan.of("optimizer")) or tuple(self._prepared.optimizers)
        return PreparationContext(
            settings=self._settings,
            accumulation=self._accumulation,
            replicas=self._strategy.replicas,
            models=models,
            optimizers=optimizers,
            loaders=self._loader_context() if with_loaders else None,  # type: ignore[arg-type]
        )

    def _placement(self, objects: Sequence[Any], device_placement: Sequence[bool] | None) -> list[bool]:
        if device_placement is None:
            return [self._settings.device_placement] * len(objects)
        if len(device_placement) != len(objects):
            raise ConfigurationError(
                f"device_placement has {len(device_placement)} entries for {len(objects)} objects: give one for each, in order"
            )
        return [self._settings.device_placement if entry is None else bool(entry) for entry in device_placement]


def _refuse_twice(objects: Sequence[Any]) -> None:
    seen: dict[int, int] = {}
    for position, value in enumerate(objects):
        if id(value) in seen and not isinstance(value, (int, float, str, bool, type(None))):
            raise ConfigurationError(f"prepare() was given the same {type(value).__name__} at positions {seen[id(value)]} and {position}")
        seen[id(value)] = position
