"""`Accelerator.profile` on torch."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from xaccel import ProfileKwargs
from xaccel.errors import ConfigurationError
from xaccel.process.topology import ProcessTopology
from xaccel_torch.profiling import profile

TOPOLOGY = ProcessTopology(device=torch.device("cpu"), device_kind="cpu", backend="torch")


def test_a_trace_is_written_for_each_process(tmp_path: Path) -> None:
    with profile(ProfileKwargs(activities=["cpu"], record_shapes=True, output_trace_dir=str(tmp_path / "traces")), TOPOLOGY) as profiler:
        torch.ones(4, 4) @ torch.ones(4, 4)
    trace = json.loads((tmp_path / "traces" / "profile_0.json").read_text())
    assert any(event.get("name") == "aten::mm" for event in trace["traceEvents"])
    assert any(average.key == "aten::mm" for average in profiler.key_averages())


def test_a_schedule_calls_back_at_the_end_of_its_cycle(tmp_path: Path) -> None:
    # One cycle: at a second one torch warns that it drops the first one's events (and crashes where warnings are errors).
    seen: list[Any] = []
    handler = ProfileKwargs(
        activities=["cpu"],
        schedule_option={"wait": 1, "warmup": 1, "active": 1, "repeat": 1},
        on_trace_ready=seen.append,
        output_trace_dir=str(tmp_path),
    )
    with profile(handler, TOPOLOGY) as profiler:
        for _ in range(4):
            torch.ones(2) + 1
            profiler.step()
    assert seen == [profiler]
    assert (tmp_path / "profile_0.json").exists()


def test_unknown_activities_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="gpu"), profile(ProfileKwargs(activities=["gpu"]), TOPOLOGY):
        pass
