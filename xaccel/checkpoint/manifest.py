"""The manifest, `checkpoint.json`: typed here, JSON on disk. Unknown keys are kept; a newer version is refused; every path is checked."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import PurePosixPath, PureWindowsPath
from typing import Any

from xaccel.checkpoint.chunks import full_bounds, is_inside, volume
from xaccel.checkpoint.records import TensorRecord
from xaccel.checkpoint.safetensors_file import numpy_dtype
from xaccel.errors import CheckpointVersionError, CorruptCheckpointError, UnsupportedError
from xaccel.mesh.spec import Bounds

MANIFEST_NAME = "checkpoint.json"
FORMAT_NAME = "xaccel-checkpoint"
FORMAT_VERSION = 1


@dataclasses.dataclass(frozen=True)
class ChunkEntry:
    """One written chunk.

    Attributes:
        offset: first element per dim.
        shape: elements per dim.
        xxh3_64: hash of the chunk's bytes in C order, 16 hexadecimal digits.
    """

    offset: tuple[int, ...]
    shape: tuple[int, ...]
    xxh3_64: str

    @property
    def bounds(self) -> Bounds:
        """The chunk as a slice of its tensor."""
        return tuple((start, start + size) for start, size in zip(self.offset, self.shape))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TensorEntry:
    """One stored tensor: where it is, what it is, and the hash of each of its chunks. Attributes as in `TensorRecord`."""

    section: str
    file: str
    name: str
    shape: tuple[int, ...]
    dtype: str
    aliases: tuple[str, ...] = ()
    adapter: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    chunks: tuple[ChunkEntry, ...] = ()
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def record(self) -> TensorRecord:
        """The same as adapters see it."""
        return TensorRecord(name=self.name, shape=self.shape, dtype=self.dtype, owned=(), aliases=self.aliases, adapter=self.adapter)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """Everything about a checkpoint but its bytes. All values but `tensors` are JSON values.

    Attributes:
        backend: `{"name": adapter, "versions": {library: version}}`.
        created: time of the save, ISO 8601, UTC.
        step, epoch, iteration, samples: counters; `samples` over all replicas.
        topology: `processes`, `replicas`, `mesh` (axis sizes).
        sections: stem -> `{"scope": "shared" | "process", "files": [...]}`.
        tensors: every stored tensor.
        files: file name -> size in bytes.
        models, optimizers, schedulers, dataloaders, custom: scalars, one entry an object, in order of preparation.
        scaler: loss scale; empty where there is none.
        rng: `{"backend", "num_processes", "processes": [scalars per process]}`.
        extra: keys of a later minor revision, kept as they are.
    """

    format: str = FORMAT_NAME
    version: int = FORMAT_VERSION
    xaccel_version: str = ""
    backend: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    created: str = ""
    step: int = 0
    epoch: int = 0
    iteration: int = 0
    samples: int = 0
    topology: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    sections: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    tensors: tuple[TensorEntry, ...] = ()
    files: Mapping[str, int] = dataclasses.field(default_factory=dict)
    models: tuple[Any, ...] = ()
    optimizers: tuple[Any, ...] = ()
    schedulers: tuple[Any, ...] = ()
    scaler: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    dataloaders: tuple[Any, ...] = ()
    rng: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    custom: tuple[Any, ...] = ()
    extra: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def to_json(self) -> bytes:
        """The content of `checkpoint.json`."""
        content = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "extra"}
        content["tensors"] = [_tensor_to_json(entry) for entry in self.tensors]
        content["files"] = {name: {"size": size} for name, size in self.files.items()}
        return json.dumps(content | dict(self.extra), indent=1, allow_nan=False).encode()

    @classmethod
    def from_json(cls, text: bytes, where: str) -> Manifest:
        """Read and check a manifest.

        Args:
            where: path, for messages.

        Raises:
            CheckpointVersionError: written by a newer version of the format.
            CorruptCheckpointError: no manifest, or one whose parts contradict each other.
        """
        content = _parse(text, where)
        try:
            return _build(cls, content, where)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            if isinstance(error, CorruptCheckpointError):
                raise
            raise CorruptCheckpointError(f"{where}: a part of the manifest is missing or of another kind: {error!r}") from error


def check_file_name(name: Any, where: str) -> str:
    """`name`, if it is the bare name of a file inside the folder.

    Raises:
        CorruptCheckpointError: an absolute path, a path through other folders, or no name at all.
    """
    bare = isinstance(name, str) and bool(name) and name not in (".", "..") and "\0" not in name
    if not bare or PurePosixPath(name).name != name or PureWindowsPath(name).name != name:
        raise CorruptCheckpointError(
            f"{where}: file {str(name)[:200]!r} is refused: only bare names of files inside the checkpoint's folder are read"
        )
    return name


def _parse(text: bytes, where: str) -> dict[str, Any]:
    try:
        content = json.loads(text.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise CorruptCheckpointError(f"{where}: the manifest is not valid JSON: {error}") from error
    if not isinstance(content, dict) or content.get("format") != FORMAT_NAME:
        raise CorruptCheckpointError(f"{where}: not the manifest of an xaccel checkpoint (format must be {FORMAT_NAME!r})")
    version = content.get("version")
    if type(version) is not int or version < 1:
        raise CorruptCheckpointError(f"{where}: version {version!r} is not a positive integer")
    if version > FORMAT_VERSION:
        raise CheckpointVersionError(
            f"{where}: format version {version}, but this xaccel reads up to version {FORMAT_VERSION}; update xaccel to load it"
        )
    return content


def _build(cls: type[Manifest], content: dict[str, Any], where: str) -> Manifest:
    known = {field.name: field for field in dataclasses.fields(cls) if field.name != "extra"}
    values: dict[str, Any] = {}
    for name, value in content.items():
        if name in known:
            values[name] = tuple(value) if known[name].default == () else value
    values["files"] = {check_file_name(name, where): _size(entry["size"], name, where) for name, entry in content["files"].items()}
    values["tensors"] = tuple(_tensor_from_json(entry, values["files"], where) for entry in content["tensors"])
    _check_kinds(values, where)
    return cls(**values, extra={name: value for name, value in content.items() if name not in known})


def _check_kinds(values: Mapping[str, Any], where: str) -> None:
    for name in ("step", "epoch", "iteration", "samples"):
        if type(values.get(name, 0)) is not int:
            raise CorruptCheckpointError(f"{where}: {name}={values[name]!r} must be an integer")
    for name in ("backend", "topology", "sections", "scaler", "rng"):
        if not isinstance(values.get(name, {}), dict):
            raise CorruptCheckpointError(f"{where}: {name} must be an object")


def _size(value: Any, name: str, where: str) -> int:
    if type(value) is not int or value < 0:
        raise CorruptCheckpointError(f"{where}: size {value!r} of file {name!r} is not a number of bytes")
    return value


def _sizes(value: Any, name: str, where: str) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(size) is int and size >= 0 for size in value):
        raise CorruptCheckpointError(f"{where}: tensor {name!r}: {str(value)[:200]} is not a list of sizes")
    return tuple(value)


_TENSOR_KEYS = ("section", "file", "name", "shape", "dtype", "aliases", "adapter", "chunks")


def _tensor_to_json(entry: TensorEntry) -> dict[str, Any]:
    content = {key: getattr(entry, key) for key in _TENSOR_KEYS}
    content["adapter"] = dict(entry.adapter)
    content["chunks"] = [{"offset": chunk.offset, "shape": chunk.shape, "xxh3_64": chunk.xxh3_64} for chunk in entry.chunks]
    return content | dict(entry.extra)


def _tensor_from_json(content: Mapping[str, Any], files: Mapping[str, int], where: str) -> TensorEntry:
    name, file = content["name"], content["file"]
    if file not in files:
        raise CorruptCheckpointError(f"{where}: tensor {name!r} lies in {str(file)[:200]!r}, which is not among the manifest's files")
    try:
        numpy_dtype(content["dtype"])
    except UnsupportedError as error:
        raise CorruptCheckpointError(f"{where}: tensor {name!r}: {error}") from error
    shape = _sizes(content["shape"], name, where)
    return TensorEntry(
        section=content["section"],
        file=file,
        name=name,
        shape=shape,
        dtype=content["dtype"],
        aliases=tuple(content.get("aliases", ())),
        adapter=dict(content.get("adapter", {})),
        chunks=_chunks_from_json(content.get("chunks", []), shape, name, where),
        extra={key: value for key, value in content.items() if key not in _TENSOR_KEYS},
    )


def _chunks_from_json(chunks: list[Any], shape: tuple[int, ...], name: str, where: str) -> tuple[ChunkEntry, ...]:
    entries = tuple(
        ChunkEntry(_sizes(chunk["offset"], name, where), _sizes(chunk["shape"], name, where), str(chunk["xxh3_64"])) for chunk in chunks
    )
    for entry in entries:
        if len(entry.offset) != len(entry.shape) or not is_inside(entry.bounds, shape):
            raise CorruptCheckpointError(
                f"{where}: tensor {name!r}: chunk at {entry.offset} of shape {entry.shape} is not inside shape {shape}"
            )
    if entries and sum(volume(entry.bounds) for entry in entries) != volume(full_bounds(shape)):
        raise CorruptCheckpointError(f"{where}: tensor {name!r}: its chunks do not add up to shape {shape}")
    return entries
