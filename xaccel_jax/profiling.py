"""`Accelerator.profile` with JAX's own profiler."""

from __future__ import annotations

import gzip
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax

from xaccel.config.handlers import ProfileKwargs
from xaccel.errors import UnsupportedError
from xaccel.process.topology import ProcessTopology

_TORCH_ONLY = (
    "activities",
    "schedule_option",
    "on_trace_ready",
    "record_shapes",
    "profile_memory",
    "with_stack",
    "with_flops",
    "with_modules",
)


@contextmanager
def profile(handler: ProfileKwargs, topology: ProcessTopology) -> Iterator[Any]:
    """Profile the block; with `output_trace_dir` write `profile_<process>.json`, a Chrome trace that Perfetto opens.

    Raises:
        UnsupportedError: an option of torch's profiler that JAX's does not have.
    """
    asked = [name for name in _TORCH_ONLY if getattr(handler, name)]
    if asked:
        raise UnsupportedError(
            f"ProfileKwargs({', '.join(asked)}): JAX's profiler records everything and has no such options; use output_trace_dir alone"
        )
    with tempfile.TemporaryDirectory(prefix="xaccel-profile-") as folder:
        with jax.profiler.trace(folder, create_perfetto_trace=True):
            yield None
        if handler.output_trace_dir is not None:
            _keep(Path(folder), Path(handler.output_trace_dir), topology.process_index)


def _keep(folder: Path, target: Path, process_index: int) -> None:
    target.mkdir(parents=True, exist_ok=True)
    trace = next(folder.rglob("perfetto_trace.json.gz"))
    with gzip.open(trace) as source, (target / f"profile_{process_index}.json").open("wb") as output:
        shutil.copyfileobj(source, output)
