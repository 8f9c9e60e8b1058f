"""The optimizer that scripts step: it steps when gradients sync, and says when a step was skipped."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from xaccel.stepping.accumulation import Accumulation
from xaccel_torch.precision.full import FullPrecision


class AcceleratedOptimizer(torch.optim.Optimizer):
    """Wraps a `torch.optim.Optimizer`; it is one itself, so that torch's schedulers take it.

    Args:
        optimizer: the user's.
        accumulation: says which micro-step syncs; on the others `step` and `zero_grad` do nothing.
        precision: may skip a step.
    """

    def __init__(self, optimizer: torch.optim.Optimizer, accumulation: Accumulation, precision: FullPrecision):
        self.optimizer = optimizer
        self._accumulation = accumulation
        self._precision = precision
        self.step_was_skipped = False

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The user's optimizer's own groups."""
        return self.optimizer.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The user's optimizer's own state."""
        return self.optimizer.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The user's optimizer's own defaults."""
        return self.optimizer.defaults

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As `torch.optim.Optimizer.add_param_group`."""
        self.optimizer.add_param_group(param_group)

    def state_dict(self) -> dict[str, Any]:
        """As `torch.optim.Optimizer.state_dict`."""
        return self.optimizer.state_dict()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """As `torch.optim.Optimizer.load_state_dict`."""
        self.optimizer.load_state_dict(state_dict)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Clear the gradients, on the micro-step that syncs."""
        if self._accumulation.sync_gradients:
            self.optimizer.zero_grad(set_to_none)
            self._precision.forget(self.optimizer)

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Step, on the micro-step that syncs; `step_was_skipped` then says whether an overflow prevented it."""
        if self._accumulation.sync_gradients:
            stepped = self._precision.step(self.optimizer) if closure is None else self._precision.step(self.optimizer, closure)
            self.step_was_skipped = not stepped

    def __getattr__(self, name: str) -> Any:
        # Hooks and whatever else the user's own optimizer has. (torch's base class is not initialised: there is one state, the user's.)
        if name == "optimizer":
            raise AttributeError(name)
        return getattr(self.optimizer, name)

    def train(self) -> None:
        """For optimizers that know modes (schedule-free ones)."""
        switch = getattr(self.optimizer, "train", None)
        if callable(switch):
            switch()

    def eval(self) -> None:
        """For optimizers that know modes (schedule-free ones)."""
        switch = getattr(self.optimizer, "eval", None)
        if callable(switch):
            switch()

    def __repr__(self) -> str:
        return f"AcceleratedOptimizer({self.optimizer!r})"

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__.copy()

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
