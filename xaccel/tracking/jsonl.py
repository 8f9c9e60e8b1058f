"""The default: one JSON object a line, which any tool reads."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, ClassVar, TextIO

from xaccel.tracking.tracker import GeneralTracker, flatten


class JsonlTracker(GeneralTracker):
    """Appends to `<logging_dir>/<run>/metrics.jsonl`; the configuration goes to `config.json` beside it.

    Args:
        run_name: name of the run's folder; empty for the logging folder itself.
        logging_dir: where the folder is made.
    """

    name: ClassVar[str] = "jsonl"
    requires_logging_directory: ClassVar[bool] = True

    def __init__(self, run_name: str, logging_dir: str):
        self.folder = Path(logging_dir) / run_name
        self._file: TextIO | None = None

    def start(self) -> None:
        """Open the file for appending."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._file = (self.folder / "metrics.jsonl").open("a", encoding="utf-8")

    @property
    def tracker(self) -> Path:
        """The file's path."""
        return self.folder / "metrics.jsonl"

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Write `config.json`."""
        (self.folder / "config.json").write_text(json.dumps(flatten(values), indent=2, default=str), encoding="utf-8")

    def log(self, values: dict[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Append one line: `time` (seconds since 1970), `step`, the values, and any further keywords."""
        assert self._file is not None, "start() comes first"
        record = {"time": time.time(), "step": step, **values, **kwargs}
        self._file.write(json.dumps(record, default=str) + "\n")
        self._file.flush()

    def finish(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
