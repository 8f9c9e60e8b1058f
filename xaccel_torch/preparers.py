"""Which objects the torch adapter claims, and as what."""

from __future__ import annotations

from typing import Any

import torch

from xaccel.preparation.plan import Item, Role
from xaccel.stepping.scheduler import AcceleratedScheduler
from xaccel_torch.optimizer import AcceleratedOptimizer


class ModelPreparer:
    """`torch.nn.Module`s; the strategy prepares them."""

    role: Role = "model"

    def claims(self, value: Any) -> bool:
        return isinstance(value, torch.nn.Module)

    def prepare(self, item: Item, context: Any) -> Any:
        return item.current


class OptimizerPreparer:
    """`torch.optim.Optimizer`s; the strategy prepares them."""

    role: Role = "optimizer"

    def claims(self, value: Any) -> bool:
        return isinstance(value, torch.optim.Optimizer)

    def prepare(self, item: Item, context: Any) -> Any:
        return item.current


class SchedulerPreparer:
    """torch's schedulers, and any object with `step` and `state_dict` that was made for a torch optimizer."""

    role: Role = "scheduler"

    def claims(self, value: Any) -> bool:
        if isinstance(value, torch.optim.lr_scheduler.LRScheduler):
            return True
        bound = isinstance(getattr(value, "optimizer", None), torch.optim.Optimizer)
        return (
            bound
            and not isinstance(value, torch.optim.Optimizer)
            and all(callable(getattr(value, name, None)) for name in ("step", "state_dict"))
        )

    def prepare(self, item: Item, context: Any) -> AcceleratedScheduler:
        if isinstance(item.current, AcceleratedScheduler):
            return item.current
        return AcceleratedScheduler(
            item.current,
            _followed(item.current, context.optimizers),
            accumulation=context.accumulation,
            num_replicas=context.replicas.num_replicas,
            step_with_optimizer=context.settings.step_scheduler_with_optimizer,
            split_batches=context.settings.data.split_batches,
        )


def _followed(scheduler: Any, optimizers: tuple[AcceleratedOptimizer, ...]) -> list[AcceleratedOptimizer]:
    """The prepared optimizer that the scheduler was made for; all of them where it is none of these."""
    own = getattr(scheduler, "optimizer", None)
    return [each for each in optimizers if own is each.optimizer or own is each] or list(optimizers)
