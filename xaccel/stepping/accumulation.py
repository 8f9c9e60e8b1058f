"""Gradient accumulation as a state machine over integers: which micro-step synchronises gradients and steps the optimizer.

Requirements, and why it is written this way:

* A *window* is `num_steps` micro-steps; the last of them syncs. `accumulate` advances the machine by one micro-step.
* The last micro-batch of the *training* loader closes a window early (`sync_with_dataloader`), so that no gradient is lost at the end of
  an epoch. The loader that counts is the innermost one still being iterated, read when `accumulate` is entered: an evaluation loop
  that was left by `break` inside an epoch is no longer active once the training loader yields again (`xaccel.data.active`).
* After an early close, counting starts anew with the next epoch (the page's library does so); with `sync_with_dataloader=False` it carries over.
* `sync_each_batch` reduces gradients in every micro-step, yet steps the optimizer only at the window's end.

The machine decides; it never touches a gradient.
"""

from __future__ import annotations

import dataclasses
from typing import Protocol

from xaccel.config.accumulation import GradientAccumulationPlugin


class LoaderPosition(Protocol):
    """What the machine asks of the loader being iterated."""

    end_of_dataloader: bool


class ActiveLoader(Protocol):
    """Knows the innermost loader being iterated."""

    @property
    def current(self) -> LoaderPosition | None: ...


class Accumulation:
    """The one owner of "does this micro-step sync?".

    Attributes:
        sync_gradients: whether the current micro-step syncs; True outside `accumulate`.
        micro_step: micro-steps taken in the current window, 0 right after a sync.
    """

    def __init__(self, plugin: GradientAccumulationPlugin, loaders: ActiveLoader):
        self.plugin = plugin
        self.loaders = loaders
        self.sync_gradients = True
        self.micro_step = 0

    @property
    def num_steps(self) -> int:
        """Micro-steps a window."""
        return self.plugin.num_steps

    def set_num_steps(self, value: int) -> None:
        """Change the window's length; counting starts anew."""
        self.plugin = dataclasses.replace(self.plugin, num_steps=value)
        self.micro_step = 0

    @property
    def end_of_dataloader(self) -> bool:
        """Whether the innermost active loader has yielded its last batch."""
        current = self.loaders.current
        return current is not None and current.end_of_dataloader

    @property
    def defers_reduction(self) -> bool:
        """Whether gradients of the current micro-step may stay local to each replica."""
        return not self.sync_gradients and not self.plugin.sync_each_batch

    def advance(self) -> bool:
        """Take one micro-step; returns (and stores) whether it syncs."""
        if self.plugin.sync_with_dataloader and self.end_of_dataloader:
            self.micro_step = 0
            self.sync_gradients = True
        else:
            self.micro_step = (self.micro_step + 1) % self.num_steps
            self.sync_gradients = self.micro_step == 0
        return self.sync_gradients
