"""Every version difference of torch, each with the version and the reason. Empty branches go when the lower bound rises."""

from __future__ import annotations

import torch
import torch.distributed as dist
from packaging.version import Version

TORCH_VERSION = Version(torch.__version__.split("+")[0])

HAS_CPU_SYNC_BATCH_NORM = False
"""torch (up to 2.13 at least) refuses `SyncBatchNorm` on CPU tensors; `xaccel_torch.batch_norm` stands in."""

if Version("2.13") <= TORCH_VERSION:
    all_gather_flat = dist.all_gather_single
    """torch 2.13 renamed `all_gather_into_tensor`, and warns at the old name."""
else:
    all_gather_flat = dist.all_gather_into_tensor
