"""All trackers of one `Accelerator`."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Any

from xaccel.config.project import ProjectConfiguration
from xaccel.errors import ConfigurationError, UnsupportedError
from xaccel.process.topology import ProcessTopology
from xaccel.tracking.jsonl import JsonlTracker
from xaccel.tracking.tensorboard import TensorBoardTracker
from xaccel.tracking.tracker import GeneralTracker, InertTracker, as_number

_BUILT_IN: dict[str, tuple[type[Any], str | None]] = {"jsonl": (JsonlTracker, None), "tensorboard": (TensorBoardTracker, "tensorboard")}
"""Name -> class, and the package that it needs."""

_TO_COME = ("wandb", "mlflow", "trackio", "aim", "comet_ml", "clearml", "dvclive", "swanlab")


class TrackerHub:
    """Starts, feeds and finishes trackers; off the main process they are inert.

    Args:
        topology: decides which processes track.
        project: gives `logging_dir`.
        log_with: names, `GeneralTracker` objects, or "all" for every built-in one whose package is installed.

    Raises:
        ConfigurationError: an unknown name, or something that is no tracker.
        UnsupportedError: a tracker of the surface that this version does not have.
    """

    def __init__(self, topology: ProcessTopology, project: ProjectConfiguration, log_with: Sequence[Any]):
        self._topology = topology
        self._project = project
        self._asked = [each for entry in log_with for each in _expand(entry)]
        self.trackers: list[GeneralTracker] = []

    def init_trackers(self, project_name: str, config: dict[str, Any] | None = None, init_kwargs: dict[str, Any] | None = None) -> None:
        """Start every tracker for one run.

        Args:
            project_name: name of the run.
            config: what the run was started with; nested dictionaries are flattened.
            init_kwargs: for each tracker's name, keywords of its constructor.

        Raises:
            ConfigurationError: a tracker needs a folder, and there is neither `logging_dir` nor `project_dir`.
        """
        for asked in self._asked:
            self._start(self._build(asked, project_name, (init_kwargs or {}).get(str(asked), {})), config)

    def log(self, values: dict[str, Any], step: int | None = None, log_kwargs: dict[str, Any] | None = None) -> None:
        """Give values to every tracker; without any, they go to `metrics.jsonl` under the project folder.

        Args:
            values: numbers, 0-d arrays or lazy losses; they become Python numbers.
            step: the optimizer step.
            log_kwargs: for each tracker's name, keywords of its `log`.
        """
        if not self.trackers:
            self._start(self._build("jsonl", "", {}), None)
        if all(isinstance(tracker, InertTracker) for tracker in self.trackers):
            return
        numbers = {name: as_number(name, value) for name, value in values.items()}
        for tracker in self.trackers:
            tracker.log(numbers, step=step, **(log_kwargs or {}).get(tracker.name, {}))

    def get_tracker(self, name: str, unwrap: bool = False) -> Any:
        """The tracker of that name, or its library's own object; off the main process an inert one.

        Raises:
            ConfigurationError: no tracker of that name was started.
        """
        found = next((tracker for tracker in self.trackers if tracker.name == name), None)
        if found is None:
            if any(isinstance(tracker, InertTracker) for tracker in self.trackers):
                return InertTracker()
            raise ConfigurationError(
                f"get_tracker({name!r}): started are {[tracker.name for tracker in self.trackers]}; call init_trackers first"
            )
        return found.tracker if unwrap else found

    def end_training(self) -> None:
        """Finish every tracker."""
        for tracker in self.trackers:
            tracker.finish()
        self.trackers.clear()

    def _build(self, asked: Any, project_name: str, options: dict[str, Any]) -> GeneralTracker:
        if isinstance(asked, GeneralTracker):
            return asked if self._topology.is_main_process or not asked.main_process_only else InertTracker()
        if not self._topology.is_main_process:
            return InertTracker()
        folder = self._project.logging_dir
        if folder is None:
            raise ConfigurationError(
                f"the tracker {asked!r} needs a folder: give the Accelerator project_dir or ProjectConfiguration(logging_dir=…)"
            )
        return _BUILT_IN[asked][0](project_name, folder, **options)

    def _start(self, tracker: GeneralTracker, config: dict[str, Any] | None) -> None:
        tracker.start()
        if config is not None:
            tracker.store_init_configuration(config)
        self.trackers.append(tracker)


def _expand(entry: Any) -> list[Any]:
    if isinstance(entry, GeneralTracker):
        return [entry]
    name = str(entry)
    if name == "all":
        return [each for each, (_, package) in _BUILT_IN.items() if package is not None and importlib.util.find_spec(package)]
    if name in _BUILT_IN:
        return [name]
    if name in _TO_COME:
        raise UnsupportedError(f"log_with={name!r}: this version has {', '.join(_BUILT_IN)}, and takes GeneralTracker objects of your own")
    raise ConfigurationError(f"log_with={name!r}: expected one of {', '.join([*_BUILT_IN, 'all'])} or a GeneralTracker")
