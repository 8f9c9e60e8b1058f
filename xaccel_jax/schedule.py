"""An optax schedule as a scheduler: it counts, and sets the optimizer's learning rate."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


class Schedule:
    """A function of the step count, applied to injected learning rates; torch's `LambdaLR` with a base rate of 1.

    Args:
        schedule: step (from 0) -> learning rate.
        optimizers: whose `learning_rate` is set.
    """

    def __init__(self, schedule: Callable[[Any], Any], optimizers: Sequence[Any]):
        self.schedule = schedule
        self._optimizers = list(optimizers)
        self.last_epoch = 0
        self._apply()

    def step(self) -> None:
        """Move on by one."""
        self.last_epoch += 1
        self._apply()

    def _apply(self) -> None:
        self._rate = float(self.schedule(self.last_epoch))
        for optimizer in self._optimizers:
            optimizer.set_hyperparameter("learning_rate", self._rate)

    def get_last_lr(self) -> list[float]:
        """The current learning rate, once for each optimizer."""
        return [self._rate] * max(1, len(self._optimizers))

    def state_dict(self) -> dict[str, Any]:
        """The count, under torch's name."""
        return {"last_epoch": self.last_epoch}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from that count; what else a torch scheduler stores is a function of it here."""
        self.last_epoch = int(state["last_epoch"])
        self._apply()
