"""Options of gradient accumulation."""

from __future__ import annotations

import dataclasses

from xaccel.errors import ConfigurationError


@dataclasses.dataclass(frozen=True)
class GradientAccumulationPlugin:
    """How gradients accumulate over micro-batches.

    Args:
        num_steps: micro-steps a window.
        adjust_scheduler: whether a scheduler counts micro-steps off sync too (its schedule is then over micro-batches).
        sync_with_dataloader: whether the last batch of the loader closes a window early.
        sync_each_batch: whether gradients are reduced in every micro-step (less memory under sharding, more communication).

    Raises:
        ConfigurationError: `num_steps` is not a positive integer.
    """

    num_steps: int = 1
    adjust_scheduler: bool = True
    sync_with_dataloader: bool = True
    sync_each_batch: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.num_steps, int) or isinstance(self.num_steps, bool) or self.num_steps < 1:
            raise ConfigurationError(f"GradientAccumulationPlugin(num_steps={self.num_steps!r}): expected an integer of at least 1")
