"""Host batches onto torch devices. See `xaccel.backend.feed.Feed`."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from xaccel import tree
from xaccel.process.topology import ProcessTopology, ReplicaLayout
from xaccel_torch.arrays import from_numpy


class TorchFeed:
    """Moves tensors and arrays to this process's device; everything else passes.

    Args:
        topology: names the device.
        non_blocking: transfers overlap with the host (from pinned memory).
    """

    def __init__(self, topology: ProcessTopology, non_blocking: bool = False):
        self._device = topology.device
        self._on_host = topology.device_kind == "cpu"
        self._non_blocking = non_blocking

    def place(self, batch: Any, layout: ReplicaLayout) -> Any:
        return tree.map_leaves(self._move, batch)

    def _move(self, leaf: Any) -> Any:
        if isinstance(leaf, torch.Tensor):
            return leaf if self._on_host and leaf.device.type == "cpu" else leaf.to(self._device, non_blocking=self._non_blocking)
        if isinstance(leaf, np.ndarray) and leaf.dtype.kind in "biufcV":
            return from_numpy(leaf, self._device)
        moves = getattr(leaf, "to", None)
        # An object that moves itself, such as a tokenizer's encoding that is no mapping.
        return moves(self._device) if callable(moves) else leaf
