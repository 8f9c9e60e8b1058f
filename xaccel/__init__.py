"""Distributed training that does not care which framework you chose: one `Accelerator` for PyTorch and JAX.

Names are loaded at first use, so that `import xaccel` costs next to nothing and imports no framework.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from xaccel.accelerator import Accelerator
    from xaccel.config.accumulation import GradientAccumulationPlugin
    from xaccel.config.data import DataLoaderConfiguration
    from xaccel.config.handlers import (
        AutocastKwargs,
        DDPCommunicationHookType,
        DistributedDataParallelKwargs,
        DistributedType,
        GradScalerKwargs,
        InitProcessGroupKwargs,
        ProfileKwargs,
    )
    from xaccel.config.parallelism import ParallelismConfig
    from xaccel.config.project import ProjectConfiguration
    from xaccel.data.loader import skip_first_batches
    from xaccel.data.source import ArrayLoader
    from xaccel.memory import find_executable_batch_size
    from xaccel.views import AcceleratorState, GradientState, PartialState

__version__ = "0.1.0"

_HOMES = {
    "Accelerator": "xaccel.accelerator",
    "AcceleratorState": "xaccel.views",
    "ArrayLoader": "xaccel.data.source",
    "AutocastKwargs": "xaccel.config.handlers",
    "DDPCommunicationHookType": "xaccel.config.handlers",
    "DataLoaderConfiguration": "xaccel.config.data",
    "DistributedDataParallelKwargs": "xaccel.config.handlers",
    "DistributedType": "xaccel.config.handlers",
    "GradScalerKwargs": "xaccel.config.handlers",
    "GradientAccumulationPlugin": "xaccel.config.accumulation",
    "GradientState": "xaccel.views",
    "InitProcessGroupKwargs": "xaccel.config.handlers",
    "ParallelismConfig": "xaccel.config.parallelism",
    "PartialState": "xaccel.views",
    "ProfileKwargs": "xaccel.config.handlers",
    "ProjectConfiguration": "xaccel.config.project",
    "find_executable_batch_size": "xaccel.memory",
    "skip_first_batches": "xaccel.data.loader",
}

__all__ = [
    "Accelerator",
    "AcceleratorState",
    "ArrayLoader",
    "AutocastKwargs",
    "DDPCommunicationHookType",
    "DataLoaderConfiguration",
    "DistributedDataParallelKwargs",
    "DistributedType",
    "GradScalerKwargs",
    "GradientAccumulationPlugin",
    "GradientState",
    "InitProcessGroupKwargs",
    "ParallelismConfig",
    "PartialState",
    "ProfileKwargs",
    "ProjectConfiguration",
    "find_executable_batch_size",
    "skip_first_batches",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'xaccel' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
