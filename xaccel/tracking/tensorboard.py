"""TensorBoard event files, written with tensorboard's own writer: no framework is imported."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from xaccel.tracking.tracker import GeneralTracker, flatten


class TensorBoardTracker(GeneralTracker):
    """Scalars, texts and images into `<logging_dir>/<run>`.

    Args:
        run_name: name of the run's folder.
        logging_dir: where the folder is made.
        options: keywords of tensorboard's `EventFileWriter` (`flush_secs`, `filename_suffix`, …).
    """

    name: ClassVar[str] = "tensorboard"
    requires_logging_directory: ClassVar[bool] = True

    def __init__(self, run_name: str, logging_dir: str, **options: Any):
        self.folder = Path(logging_dir) / run_name
        self._options = options
        self._writer: Any = None

    def start(self) -> None:
        """Open the event file."""
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer = EventFileWriter(str(self.folder), **self._options)

    @property
    def tracker(self) -> Any:
        """The `EventFileWriter`."""
        return self._writer

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Store each entry of the configuration as a text under `config/`."""
        self._add({f"config/{key}": str(value) for key, value in flatten(values).items()}, step=0)
        self._writer.flush()

    def log(self, values: dict[str, Any], step: int | None = None, **_kwargs: Any) -> None:
        """Numbers become scalars, strings texts; a dictionary becomes one scalar for each of its entries."""
        self._add(flatten(values), step)

    def log_images(self, values: dict[str, Any], step: int | None = None, **_kwargs: Any) -> None:
        """Arrays `(n, height, width, channels)`, uint8 or floats in [0, 1]."""
        for name, images in values.items():
            self._write([_image(f"{name}/{index}", np.asarray(image)) for index, image in enumerate(images)], step)

    def finish(self) -> None:
        """Flush and close the event file."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _add(self, values: dict[str, Any], step: int | None) -> None:
        self._write([_text(name, value) if isinstance(value, str) else _scalar(name, value) for name, value in values.items()], step)

    def _write(self, entries: list[Any], step: int | None) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        event = Event(wall_time=time.time(), summary=Summary(value=entries))
        if step is not None:
            event.step = int(step)
        self._writer.add_event(event)


def _scalar(name: str, value: Any) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary

    return Summary.Value(tag=name, simple_value=float(value))


def _text(name: str, value: str) -> Any:
    from tensorboard.compat.proto.summary_pb2 import Summary, SummaryMetadata
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.compat.proto.types_pb2 import DT_STRING

    metadata = SummaryMetadata(plugin_data=SummaryMetadata.PluginData(plugin_name="text"))
    return Summary.Value(tag=name, metadata=metadata, tensor=TensorProto(dtype=DT_STRING, string_val=[value.encode()]))


def _image(name: str, image: np.ndarray) -> Any:
    import io

    from PIL import Image
    from tensorboard.compat.proto.summary_pb2 import Summary

    if image.dtype != np.uint8:
        image = (np.clip(image, 0, 1) * 255).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(image[..., 0] if image.shape[-1] == 1 else image).save(buffer, format="PNG")
    height, width, channels = image.shape
    return Summary.Value(
        tag=name, image=Summary.Image(height=height, width=width, colorspace=channels, encoded_image_string=buffer.getvalue())
    )
