"""Which objects the JAX adapter claims, and as what."""

from __future__ import annotations

import inspect
from typing import Any

import optax
from flax import nnx

from xaccel.preparation.plan import Item, Role
from xaccel.stepping.scheduler import AcceleratedScheduler
from xaccel_jax.definitions import is_model
from xaccel_jax.losses import PreparedLoss
from xaccel_jax.schedule import Schedule


class ModelPreparer:
    """Flax NNX modules and bound Linen modules; the strategy prepares them."""

    role: Role = "model"

    def claims(self, value: Any) -> bool:
        return not isinstance(value, nnx.Optimizer) and is_model(value)

    def prepare(self, item: Item, context: Any) -> Any:
        return item.current


class OptimizerPreparer:
    """optax transformations and `nnx.Optimizer`s; the strategy prepares them."""

    role: Role = "optimizer"

    def claims(self, value: Any) -> bool:
        return isinstance(value, (optax.GradientTransformation, nnx.Optimizer, optax.MultiSteps))

    def prepare(self, item: Item, context: Any) -> Any:
        return item.current


class SchedulerPreparer:
    """Functions of one argument: step -> learning rate."""

    role: Role = "scheduler"

    def claims(self, value: Any) -> bool:
        return callable(value) and not isinstance(value, type) and _num_required(value) == 1

    def prepare(self, item: Item, context: Any) -> AcceleratedScheduler:
        return AcceleratedScheduler(
            Schedule(item.current, context.optimizers),
            context.optimizers,
            accumulation=context.accumulation,
            num_replicas=context.replicas.num_replicas,
            step_with_optimizer=context.settings.step_scheduler_with_optimizer,
            split_batches=context.settings.data.split_batches,
        )


class LossPreparer:
    """Functions of two or more arguments: outputs and targets -> loss."""

    role: Role = "loss"

    def claims(self, value: Any) -> bool:
        return callable(value) and not isinstance(value, type) and _num_required(value) >= 2

    def prepare(self, item: Item, context: Any) -> PreparedLoss:
        context.models[0].expect_prepared_loss()
        return PreparedLoss(item.current)


def _num_required(function: Any) -> int:
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return 0
    positional = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    return sum(1 for each in positional if each.default is each.empty)
