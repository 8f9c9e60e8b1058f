"""Every version difference of torch, each with the version and the reason. Empty branches go when the lower bound rises."""

from __future__ import annotations

import torch
from packaging.version import Version

TORCH_VERSION = Version(torch.__version__.split("+")[0])

HAS_CPU_SYNC_BATCH_NORM = False
"""torch (up to 2.13 at least) refuses `SyncBatchNorm` on CPU tensors; `xaccel_torch.batch_norm` stands in."""
