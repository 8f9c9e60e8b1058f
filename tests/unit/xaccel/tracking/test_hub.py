"""Trackers write what they were given; off the main process they are inert."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xaccel.config.project import ProjectConfiguration
from xaccel.errors import ConfigurationError, UnsupportedError
from xaccel.process.topology import ProcessTopology
from xaccel.tracking.hub import TrackerHub
from xaccel.tracking.tracker import GeneralTracker

MAIN = ProcessTopology()
OTHER = ProcessTopology(process_index=1, num_processes=2)


class Recorder(GeneralTracker):
    """A user's own tracker."""

    name = "recorder"

    def __init__(self) -> None:
        self.seen: list[tuple[dict[str, Any], int | None, dict[str, Any]]] = []
        self.config: dict[str, Any] = {}
        self.finished = False

    @property
    def tracker(self) -> list[Any]:
        return self.seen

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        self.config = values

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        self.seen.append((values, step, kwargs))

    def finish(self) -> None:
        self.finished = True


def project(folder: Path) -> ProjectConfiguration:
    return ProjectConfiguration(project_dir=str(folder))


def test_a_tracker_of_ones_own_gets_numbers(tmp_path: Path) -> None:
    recorder = Recorder()
    hub = TrackerHub(MAIN, project(tmp_path), [recorder])
    hub.init_trackers("run", {"lr": 0.1})
    hub.log({"loss": np.float32(2.0), "count": np.array([3])}, step=7, log_kwargs={"recorder": {"commit": True}})
    hub.end_training()
    assert recorder.config == {"lr": 0.1}
    assert recorder.seen == [({"loss": 2.0, "count": 3}, 7, {"commit": True})]
    assert type(recorder.seen[0][0]["loss"]) is float
    assert recorder.finished


def test_an_array_of_several_elements_is_refused_by_name(tmp_path: Path) -> None:
    hub = TrackerHub(MAIN, project(tmp_path), [Recorder()])
    hub.init_trackers("run")
    with pytest.raises(ConfigurationError, match=r"'loss'.*\(2,\)"):
        hub.log({"loss": np.zeros(2)})


def test_without_trackers_values_go_to_metrics_jsonl(tmp_path: Path) -> None:
    hub = TrackerHub(MAIN, project(tmp_path), [])
    hub.log({"loss": 1.5}, step=1)
    hub.log({"loss": 0.5}, step=2)
    hub.end_training()
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["loss"]) for line in lines] == [(1, 1.5), (2, 0.5)]


def test_tensorboard_files_read_back(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    hub = TrackerHub(MAIN, project(tmp_path), ["tensorboard"])
    hub.init_trackers("run", {"optimizer": {"lr": 0.1}})
    for step in range(3):
        hub.log({"loss": 1.0 / (step + 1)}, step=step)
    hub.end_training()
    read = EventAccumulator(str(tmp_path / "run")).Reload()
    assert [(event.step, event.value) for event in read.Scalars("loss")] == [(0, 1.0), (1, 0.5), (2, pytest.approx(1 / 3))]
    assert read.Tags()["tensors"] == ["config/optimizer/lr"]


def test_off_the_main_process_everything_is_inert(tmp_path: Path) -> None:
    """Case C-114."""
    hub = TrackerHub(OTHER, project(tmp_path), ["jsonl"])
    hub.init_trackers("run", {"lr": 0.1})
    hub.log({"loss": 1.0})
    assert hub.get_tracker("jsonl").log_images({"x": []}) is None
    assert hub.get_tracker("jsonl").some_method_of_the_library(1, two=2) is None
    hub.end_training()
    assert not list(tmp_path.iterdir())


def test_get_tracker_unwraps(tmp_path: Path) -> None:
    recorder = Recorder()
    hub = TrackerHub(MAIN, project(tmp_path), [recorder])
    hub.init_trackers("run")
    assert hub.get_tracker("recorder") is recorder
    assert hub.get_tracker("recorder", unwrap=True) is recorder.seen
    with pytest.raises(ConfigurationError, match="'wandb'"):
        hub.get_tracker("wandb")


def test_names_are_checked_at_construction() -> None:
    with pytest.raises(UnsupportedError, match="wandb"):
        TrackerHub(MAIN, ProjectConfiguration(), ["wandb"])
    with pytest.raises(ConfigurationError, match="paper"):
        TrackerHub(MAIN, ProjectConfiguration(), ["paper"])


def test_a_folder_is_needed() -> None:
    hub = TrackerHub(MAIN, ProjectConfiguration(), ["jsonl"])
    with pytest.raises(ConfigurationError, match="project_dir"):
        hub.init_trackers("run")
