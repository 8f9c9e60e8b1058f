"""Names that scripts import from `accelerate.utils`; re-exports only, loaded at first use."""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "AutocastKwargs": "xaccel.config.handlers",
    "DDPCommunicationHookType": "xaccel.config.handlers",
    "DataLoaderConfiguration": "xaccel.config.data",
    "DistributedDataParallelKwargs": "xaccel.config.handlers",
    "DistributedType": "xaccel.config.handlers",
    "GradScalerKwargs": "xaccel.config.handlers",
    "GradientAccumulationPlugin": "xaccel.config.accumulation",
    "InitProcessGroupKwargs": "xaccel.config.handlers",
    "KwargsHandler": "xaccel.config.handlers",
    "ParallelismConfig": "xaccel.config.parallelism",
    "PrecisionType": "xaccel.config.handlers",
    "ProfileKwargs": "xaccel.config.handlers",
    "ProjectConfiguration": "xaccel.config.project",
    "RNGType": "xaccel.config.handlers",
    "broadcast": "xaccel.functional",
    "broadcast_object_list": "xaccel.functional",
    "concatenate": "xaccel.functional",
    "find_executable_batch_size": "xaccel.memory",
    "gather": "xaccel.functional",
    "gather_object": "xaccel.functional",
    "is_namedtuple": "xaccel.tree",
    "pad_across_processes": "xaccel.functional",
    "recursively_apply": "xaccel.functional",
    "reduce": "xaccel.functional",
    "release_memory": "xaccel.memory",
    "send_to_device": "xaccel.functional",
    "set_seed": "xaccel.seeding",
    "tqdm": "xaccel.progress",
    "wait_for_everyone": "xaccel.functional",
}

__all__ = [
    "AutocastKwargs",
    "DDPCommunicationHookType",
    "DataLoaderConfiguration",
    "DistributedDataParallelKwargs",
    "DistributedType",
    "GradScalerKwargs",
    "GradientAccumulationPlugin",
    "InitProcessGroupKwargs",
    "KwargsHandler",
    "ParallelismConfig",
    "PrecisionType",
    "ProfileKwargs",
    "ProjectConfiguration",
    "RNGType",
    "broadcast",
    "broadcast_object_list",
    "concatenate",
    "find_executable_batch_size",
    "gather",
    "gather_object",
    "is_namedtuple",
    "pad_across_processes",
    "recursively_apply",
    "reduce",
    "release_memory",
    "send_to_device",
    "set_seed",
    "tqdm",
    "wait_for_everyone",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'xaccel.utils' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
