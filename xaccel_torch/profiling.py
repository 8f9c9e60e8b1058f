"""`Accelerator.profile` with torch's own profiler."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from xaccel.config.handlers import ProfileKwargs
from xaccel.errors import ConfigurationError
from xaccel.process.topology import ProcessTopology

_ACTIVITIES = {
    "cpu": torch.profiler.ProfilerActivity.CPU,
    "cuda": torch.profiler.ProfilerActivity.CUDA,
    "xpu": torch.profiler.ProfilerActivity.XPU,
}


@contextmanager
def profile(handler: ProfileKwargs, topology: ProcessTopology) -> Iterator[Any]:
    """Profile the block; with `output_trace_dir` write `profile_<process>.json`, a Chrome trace."""
    with torch.profiler.profile(
        activities=_activities(handler),
        schedule=torch.profiler.schedule(**handler.schedule_option) if handler.schedule_option else None,
        on_trace_ready=handler.on_trace_ready,
        record_shapes=handler.record_shapes,
        profile_memory=handler.profile_memory,
        with_stack=handler.with_stack,
        with_flops=handler.with_flops,
        with_modules=handler.with_modules,
    ) as profiler:
        yield profiler
    if handler.output_trace_dir is not None:
        folder = Path(handler.output_trace_dir)
        folder.mkdir(parents=True, exist_ok=True)
        profiler.export_chrome_trace(str(folder / f"profile_{topology.process_index}.json"))


def _activities(handler: ProfileKwargs) -> list[Any] | None:
    if handler.activities is None:
        return None
    unknown = [name for name in handler.activities if name not in _ACTIVITIES]
    if unknown:
        raise ConfigurationError(f"ProfileKwargs(activities={list(handler.activities)}): expected some of {', '.join(_ACTIVITIES)}")
    return [_ACTIVITIES[name] for name in handler.activities]
