"""torch optimizers' state by slot: which entries are arrays, which are step counts, which options a group has."""

from __future__ import annotations

from typing import Any

import torch

from xaccel.checkpoint.slots import CANONICAL_SLOTS

STEP_ENTRY = "step"


def stored_slot(entry: str) -> str:
    """The slot under which a state entry is stored: its own name, or `torch/<name>` where optax has no counterpart."""
    return entry if entry in CANONICAL_SLOTS else f"torch/{entry}"


def live_entry(slot: str) -> str | None:
    """The inverse of `stored_slot`; `None` for a slot of another library."""
    if slot.startswith("torch/"):
        return slot.removeprefix("torch/")
    return slot if slot in CANONICAL_SLOTS else None


def array_entries(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The entries of one parameter's state that are stored as arrays."""
    return {entry: value for entry, value in state.items() if entry != STEP_ENTRY and isinstance(value, torch.Tensor)}


def other_entries(state: dict[str, Any]) -> dict[str, Any]:
    """The entries that are neither arrays nor the step count: LBFGS keeps lists of tensors and counters."""
    return {
        entry: value for entry, value in state.items() if entry != STEP_ENTRY and value is not None and not isinstance(value, torch.Tensor)
    }


def step_tensor(parameter: torch.Tensor, group: dict[str, Any], count: int) -> torch.Tensor:
    """The step count as torch's optimizers hold it: a float tensor, on the parameter's device where its kernels need that."""
    on_device = group.get("capturable", False) or group.get("fused", False)
    return torch.tensor(float(count), dtype=torch.float32, device=parameter.device if on_device else "cpu")


def counts_steps(optimizer: torch.optim.Optimizer) -> bool:
    """Whether this optimizer's state has a step count (plain SGD's has none)."""
    return not isinstance(optimizer, torch.optim.SGD)


def options_of(group: dict[str, Any]) -> dict[str, Any]:
    """A group's hyperparameters as plain values."""
    return {key: value.item() if isinstance(value, torch.Tensor) else value for key, value in group.items() if key != "params"}
