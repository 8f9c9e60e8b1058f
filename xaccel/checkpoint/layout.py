"""Which formats can be opened. A format is one class here (or in `foreign/`) and one entry in `LAYOUTS`."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from xaccel.checkpoint.leftovers import aside_of, is_leftover
from xaccel.checkpoint.manifest import MANIFEST_NAME, Manifest, TensorEntry, check_file_name
from xaccel.checkpoint.reader import Checkpoint, CheckpointFiles, as_path, open_folder
from xaccel.checkpoint.safetensors_file import Header
from xaccel.checkpoint.storage import LocalStorage
from xaccel.errors import CheckpointNotFoundError, CorruptCheckpointError

INDEX_SUFFIX = ".safetensors.index.json"


class CheckpointLayout(Protocol):
    """The questions that a format answers."""

    name: str

    def recognises(self, path: Path) -> bool:
        """Whether `path` looks like this format, from names alone."""

    def open(self, path: Path, *, strict: bool) -> Checkpoint:
        """Open it lazily.

        Raises:
            CheckpointError: it is not what it looks like.
        """


class XaccelLayout:
    """A folder with our manifest."""

    name = "xaccel"

    def recognises(self, path: Path) -> bool:
        return (path / MANIFEST_NAME).is_file()

    def open(self, path: Path, *, strict: bool) -> Checkpoint:
        manifest = Manifest.from_json((path / MANIFEST_NAME).read_bytes(), str(path / MANIFEST_NAME))
        return open_folder(path, manifest, strict=strict)


class SafetensorsFileLayout:
    """One plain `.safetensors` file, or a folder that holds just one."""

    name = "safetensors"

    def recognises(self, path: Path) -> bool:
        if path.is_dir():
            return len(list(path.glob("*.safetensors"))) == 1 and not list(path.glob(f"*{INDEX_SUFFIX}"))
        return path.suffix == ".safetensors" and path.is_file()

    def open(self, path: Path, *, strict: bool) -> Checkpoint:
        if path.is_dir():
            path = next(iter(path.glob("*.safetensors")))
        files = CheckpointFiles(path.parent, LocalStorage())
        return _of_headers(path, {path.name: files.header(path.name)}, files)


class ShardedSafetensorsLayout:
    """Hugging Face's sharded form: a folder with `model.safetensors.index.json`, or that index file itself."""

    name = "safetensors-index"

    def recognises(self, path: Path) -> bool:
        return path.name.endswith(INDEX_SUFFIX) if path.is_file() else len(list(path.glob(f"*{INDEX_SUFFIX}"))) == 1

    def open(self, path: Path, *, strict: bool) -> Checkpoint:
        index = path if path.is_file() else next(iter(path.glob(f"*{INDEX_SUFFIX}")))
        homes = _weight_map(index)
        files = CheckpointFiles(index.parent, LocalStorage())
        headers = {}
        for name in sorted(set(homes.values())):
            if not Path(files.path(name)).is_file():
                raise CorruptCheckpointError(f"{index}: shard {name!r} is absent")
            headers[name] = files.header(name)
        for tensor, name in homes.items():
            if tensor not in headers[name].tensors:
                raise CorruptCheckpointError(f"{index}: tensor {tensor!r} is said to be in {name!r}, but is not")
        return _of_headers(path, headers, files)


LAYOUTS: tuple[CheckpointLayout, ...] = (XaccelLayout(), ShardedSafetensorsLayout(), SafetensorsFileLayout())
"""In the order in which they are asked."""


def _weight_map(index: Path) -> Mapping[str, str]:
    try:
        content = json.loads(index.read_bytes().decode("utf-8"))
        homes = content["weight_map"]
        return {tensor: check_file_name(name, str(index)) for tensor, name in homes.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, CorruptCheckpointError):
            raise
        raise CorruptCheckpointError(f"{index} is not a safetensors index: {error!r}") from error


def _of_headers(path: Path, headers: Mapping[str, Header], files: CheckpointFiles) -> Checkpoint:
    """A checkpoint with the one section `model`, from headers alone."""
    entries: dict[str, TensorEntry] = {}
    for file, header in headers.items():
        aliases: dict[str, list[str]] = {}
        for alias, name in header.metadata.items():
            if name in header.tensors and alias not in header.tensors:
                aliases.setdefault(name, []).append(alias)
        for info in header.tensors.values():
            if info.name in entries:
                raise CorruptCheckpointError(f"{path}: tensor {info.name!r} is in {entries[info.name].file!r} and in {file!r}")
            entries[info.name] = TensorEntry(
                section="model", file=file, name=info.name, shape=info.shape, dtype=info.dtype, aliases=tuple(aliases.get(info.name, ()))
            )
    manifest = Manifest(
        sections={"model": {"scope": "shared", "files": list(headers)}},
        files={file: header.file_bytes for file, header in headers.items()},
        tensors=tuple(entries.values()),
    )
    return Checkpoint(path, manifest, files)


def open_checkpoint(path: str | os.PathLike[str], *, strict: bool = True, layouts: Sequence[CheckpointLayout] = LAYOUTS) -> Checkpoint:
    """Open a checkpoint of any known format; reads manifest and headers only.

    Args:
        path: a checkpoint's folder, a `.safetensors` file, or a folder with a sharded index.
        strict: an absent or cut file is an error; else it is noted in `Checkpoint.damaged` and its tensors are left out.

    Raises:
        CheckpointNotFoundError: nothing there, or of no known format (a folder without a manifest was never completed).
        CorruptCheckpointError: a file is absent, cut off, or contradicts the manifest.
        CheckpointVersionError: written by a newer version of the format.
    """
    folder = as_path(path)
    folder = aside_of(folder) or folder
    if not folder.exists():
        raise CheckpointNotFoundError(f"no checkpoint at {folder}: there is no such file or folder")
    if is_leftover(folder):
        raise CheckpointNotFoundError(f"{folder} is the folder of a save that was never completed")
    for layout in layouts:
        if layout.recognises(folder):
            return layout.open(folder, strict=strict)
    names = [layout.name for layout in layouts]
    raise CheckpointNotFoundError(f"{folder} is not a complete checkpoint: it has no {MANIFEST_NAME} and is of none of the formats {names}")
