"""A learning-rate scheduler that follows the optimizer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from xaccel.stepping.accumulation import Accumulation


class AcceleratedScheduler:
    """Moves the wrapped scheduler once for every real optimizer step, and not on accumulation or skipped steps.

    With `step_with_optimizer=True` and `split_batches=False` one optimizer step moves it `num_replicas` times: a schedule written for
    the batches of one process then ends at the right sample, as in the page's library. With `split_batches=True` it moves once. With
    `step_with_optimizer=False` every call moves it once, whatever the optimizer does.

    | replicas | step_with_optimizer | split_batches | moves per optimizer step |
    | --- | --- | --- | --- |
    | 4 | True | False | 4 |
    | 4 | True | True | 1 |
    | 4 | False | any | 1 per call |

    It is never moved beyond its own `total_steps`.

    Args:
        scheduler: has `step`, `state_dict`, `load_state_dict` and `get_last_lr`.
        optimizers: the prepared optimizers whose skipped steps count; all of them must have stepped.
    """

    def __init__(
        self,
        scheduler: Any,
        optimizers: Sequence[Any],
        *,
        accumulation: Accumulation,
        num_replicas: int,
        step_with_optimizer: bool = True,
        split_batches: bool = False,
    ):
        self.scheduler = scheduler
        self.optimizers = list(optimizers)
        self.step_with_optimizer = step_with_optimizer
        self.split_batches = split_batches
        self._accumulation = accumulation
        self._moves_per_step = 1 if split_batches else num_replicas
        self._total_steps: int | None = getattr(scheduler, "total_steps", None)

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Follow the optimizer; arguments go to the wrapped scheduler (a metric for `ReduceLROnPlateau`, say)."""
        if not self.step_with_optimizer:
            self.scheduler.step(*args, **kwargs)
            return
        if not self._accumulation.sync_gradients:
            self._count_micro_step()
            return
        if any(optimizer.step_was_skipped for optimizer in self.optimizers):
            return
        for _ in range(self._moves_per_step):
            if self._total_steps is not None and self.scheduler.last_epoch >= self._total_steps:
                return
            self.scheduler.step(*args, **kwargs)

    def _count_micro_step(self) -> None:
        # torch's own counter of calls; the page's library moves it too, and scripts print it. The learning rate does not move.
        count = getattr(self.scheduler, "_step_count", None)
        if self._accumulation.plugin.adjust_scheduler and count is not None:
            self.scheduler._step_count = count + 1

    def get_last_lr(self) -> list[float]:
        """The current learning rate of each parameter group."""
        return self.scheduler.get_last_lr()

    def state_dict(self) -> dict[str, Any]:
        """The wrapped scheduler's state."""
        return self.scheduler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of `state_dict`; what a schedule of the other framework does not say stays as it is."""
        self.scheduler.load_state_dict({**self.scheduler.state_dict(), **state})

    def __getattr__(self, name: str) -> Any:
        # Everything else (`get_lr`, `print_lr`, `base_lrs`, …) is the wrapped scheduler's own.
        if name == "scheduler":
            raise AttributeError(name)
        return getattr(self.scheduler, name)
