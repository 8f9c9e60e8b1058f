"""Full precision: every hook does nothing. The base of the others."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch


class FullPrecision:
    """`mixed_precision="no"`. See `xaccel.backend.precision.Precision`."""

    name = "no"

    def convert(self, model: torch.nn.Module) -> torch.nn.Module:
        return model

    def autocast(self, handler: Any = None) -> AbstractContextManager[None]:
        return nullcontext()

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        """The loss, times the loss scale."""
        return loss

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        """Divide the loss scale out of the gradients, once before each step."""

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> bool:
        """Step the optimizer; returns whether it did (False after an overflow)."""
        optimizer.step(*args, **kwargs)
        return True

    def forget(self, optimizer: torch.optim.Optimizer) -> None:
        """The optimizer's gradients were cleared: the next ones carry the loss scale again."""

    def restore(self, model: torch.nn.Module) -> None:
        """Take back what `convert` did to the model."""

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """There is no state; one of a scaled run has nothing to set here."""
