"""Where a project keeps its logs and checkpoints."""

from __future__ import annotations

import dataclasses
import os
import warnings

from xaccel.errors import ConfigurationError, UnsupportedError


@dataclasses.dataclass
class ProjectConfiguration:
    """Folders and retention. Scripts change `iteration`, so this one is not frozen.

    Args:
        project_dir: folder of the project.
        logging_dir: folder for trackers; `project_dir` where not given.
        automatic_checkpoint_naming: save into `project_dir/checkpoints/checkpoint_<iteration>`.
        total_limit: how many automatic checkpoints to keep; the oldest by iteration go first.
        iteration: number of the next automatic checkpoint.
        save_on_each_node: write on every machine instead of once (no shared file system).

    Raises:
        ConfigurationError: `total_limit` below 1.
        UnsupportedError: `save_on_each_node`.
    """

    project_dir: str | None = None
    logging_dir: str | None = None
    automatic_checkpoint_naming: bool = False
    total_limit: int | None = None
    iteration: int = 0
    save_on_each_node: bool = False

    def __post_init__(self) -> None:
        if self.project_dir is not None:
            self.project_dir = os.fspath(self.project_dir)
        if self.save_on_each_node:
            raise UnsupportedError(
                "save_on_each_node=True: checkpoints need a file system that all machines share in this version of xaccel"
            )
        if self.total_limit is not None and self.total_limit < 1:
            raise ConfigurationError(
                f"ProjectConfiguration(total_limit={self.total_limit}): at least one checkpoint must stay; use None to keep all"
            )
        if self.total_limit is not None and not self.automatic_checkpoint_naming:
            warnings.warn(
                f"ProjectConfiguration(total_limit={self.total_limit}) does nothing without automatic_checkpoint_naming=True: no checkpoint will be deleted",
                stacklevel=3,
            )
        self.set_directories(self.project_dir)

    def set_directories(self, project_dir: str | None = None) -> None:
        """Set `project_dir`, and `logging_dir` where it was not given."""
        self.project_dir = project_dir
        if self.logging_dir is None:
            self.logging_dir = project_dir
