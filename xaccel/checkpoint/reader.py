"""Reading a checkpoint: the manifest and headers when it is opened, the bytes of a slice when it is asked for.

Hashes: a chunk that a read covers whole is hashed as it passes, and a difference raises. A chunk of which only a part is wanted is not read
for its hash's sake; `Checkpoint.verify` (all of it) and `partly_covered` with `check_chunks` (just those chunks) do that.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import xxhash

from xaccel.checkpoint.chunks import byte_runs, extents, full_bounds, intersect, is_inside, merge_runs, relative
from xaccel.checkpoint.index import Index, bounds_of_index
from xaccel.checkpoint.manifest import ChunkEntry, Manifest, TensorEntry
from xaccel.checkpoint.records import TensorRecord
from xaccel.checkpoint.safetensors_file import Header, byte_view, header_length, item_size, numpy_dtype, parse_header
from xaccel.checkpoint.storage import LocalStorage, Storage
from xaccel.errors import CheckpointNotFoundError, CorruptCheckpointError
from xaccel.mesh.spec import Bounds

MAX_GAP_BYTES = 64 * 2**10
"""Reading this much for nothing costs less than one more system call and seek."""

MAX_READ_BYTES = 16 * 2**20
"""Bounds the buffer of reads that skip gaps."""


def read_header(storage: Storage, path: str, file: str) -> Header:
    """The checked header of one safetensors file.

    Raises:
        CorruptCheckpointError: see `xaccel.checkpoint.safetensors_file`.
    """
    size = storage.size(path)
    first = bytearray(8)
    count = storage.read_at(path, 0, memoryview(first))
    length = header_length(bytes(first[:count]), size, file)
    text = bytearray(length)
    if storage.read_at(path, 8, memoryview(text)) != length:
        raise CorruptCheckpointError(f"{file}: the file became shorter while it was read")
    return parse_header(bytes(text), size, file)


class CheckpointFiles:
    """The files of one folder: sizes checked at once, headers read at the first use of a file."""

    def __init__(self, folder: Path, storage: Storage):
        self.folder = folder
        self._storage = storage
        self._headers: dict[str, Header] = {}

    def path(self, name: str) -> str:
        """Where a file lies. A link out of the folder is refused.

        Raises:
            CorruptCheckpointError: the file is a link that leaves the folder.
        """
        path = self.folder / name
        if path.is_symlink() and path.resolve().parent != self.folder.resolve():
            raise CorruptCheckpointError(
                f"{path} is a link to {path.resolve()}, out of the checkpoint's folder, and is refused; copy the file into the folder"
            )
        return str(path)

    def fault(self, name: str, size: int) -> str | None:
        """Why a file cannot be the one that was written, by its size alone; `None` if it can."""
        try:
            found = self._storage.size(self.path(name))
        except FileNotFoundError:
            return f"{self.folder / name} is absent, expected {size} bytes; the checkpoint is incomplete"
        return None if found == size else f"{self.folder / name} has {found} bytes, expected {size}; it is cut off or was changed"

    def header(self, name: str) -> Header:
        """The header of a file."""
        if name not in self._headers:
            self._headers[name] = read_header(self._storage, self.path(name), str(self.folder / name))
        return self._headers[name]

    def read_at(self, name: str, offset: int, into: memoryview) -> None:
        """Fill `into` from byte `offset` of a file.

        Raises:
            CorruptCheckpointError: the file ends before.
        """
        count = self._storage.read_at(self.path(name), offset, into)
        if count != len(into):
            raise CorruptCheckpointError(
                f"{self.folder / name}: {len(into)} bytes expected at {offset}, {count} found: the file is cut off"
            )

    def close(self) -> None:
        """Close open files."""
        self._storage.close()


class LazyTensor:
    """One stored tensor; indexing reads just the bytes of that slice.

    Attributes:
        name: the name under which it is stored.
        shape: whole shape.
        tag: safetensors dtype tag.
        dtype: NumPy (or ml_dtypes) dtype.
    """

    def __init__(self, entry: TensorEntry, files: CheckpointFiles):
        self.name = entry.name
        self.shape = entry.shape
        self.tag = entry.dtype
        self.dtype = numpy_dtype(entry.dtype)
        self.entry = entry
        self._files = files

    def __getitem__(self, index: Index) -> np.ndarray:
        """NumPy's basic indexing: integers, slices with any step, `...`; the array is the caller's own.

        Raises:
            IndexError: outside the shape, or an index that is none of these.
        """
        bounds, rest = bounds_of_index(index, self.shape)
        return self.read(bounds)[rest]

    def read(self, bounds: Bounds | None = None) -> np.ndarray:
        """The slice `bounds` (all of it where `None`): a new, C-contiguous array in the stored dtype.

        Raises:
            CorruptCheckpointError: the file is cut off, or a chunk's bytes are not those that were written.
        """
        bounds = full_bounds(self.shape) if bounds is None else bounds
        if not is_inside(bounds, self.shape):
            raise IndexError(f"slice {bounds} of tensor {self.name!r} is not inside its shape {self.shape}")
        start = self._data_start()
        array = np.empty(extents(bounds), self.dtype)
        self._fill(byte_view(array), bounds, start)
        for chunk in self.entry.chunks:
            if intersect(chunk.bounds, bounds) == chunk.bounds:
                self._compare(chunk, _part(array, relative(chunk.bounds, bounds)))
        return array

    def _data_start(self) -> int:
        header = self._files.header(self.entry.file)
        info = header.tensors.get(self.name)
        if info is None or info.shape != self.shape or info.dtype != self.tag:
            found = "nothing" if info is None else f"{info.dtype} {info.shape}"
            raise CorruptCheckpointError(
                f"{self._files.folder / self.entry.file}: tensor {self.name!r}: the manifest says {self.tag} {self.shape}, the header {found}"
            )
        return header.data_offset + info.begin

    def _fill(self, target: memoryview, bounds: Bounds, start: int) -> None:
        position = 0
        runs = byte_runs(self.shape, bounds, item_size(self.tag))
        for read in merge_runs(runs, max_gap_bytes=MAX_GAP_BYTES, max_read_bytes=MAX_READ_BYTES):
            if len(read.parts) == 1:
                self._files.read_at(self.entry.file, start + read.offset, target[position : position + read.length])
                position += read.length
                continue
            buffer = memoryview(bytearray(read.length))
            self._files.read_at(self.entry.file, start + read.offset, buffer)
            for offset, length in read.parts:
                target[position : position + length] = buffer[offset : offset + length]
                position += length

    def _compare(self, chunk: ChunkEntry, data: np.ndarray) -> None:
        found = xxhash.xxh3_64_hexdigest(byte_view(data))
        if found != chunk.xxh3_64:
            raise CorruptCheckpointError(
                f"{self._files.folder / self.entry.file}: tensor {self.name!r}, slice {chunk.bounds}: hash {found}, expected {chunk.xxh3_64}; "
                "the bytes were changed after they were written"
            )

    def partly_covered(self, wanted: Sequence[Bounds]) -> list[int]:
        """Indices of the chunks that reading `wanted` touches without checking them."""
        touched = []
        for index, chunk in enumerate(self.entry.chunks):
            common = [intersect(chunk.bounds, bounds) for bounds in wanted]
            if any(part is not None for part in common) and chunk.bounds not in common:
                touched.append(index)
        return touched

    def check_chunks(self, indices: Sequence[int]) -> None:
        """Read whole chunks and compare their hashes.

        Raises:
            CorruptCheckpointError: a hash differs.
        """
        for index in indices:
            self.read(self.entry.chunks[index].bounds)


def _part(array: np.ndarray, bounds: Bounds) -> np.ndarray:
    return array[tuple(slice(start, stop) for start, stop in bounds)] if bounds else array


class StoredSection(Mapping[str, LazyTensor]):
    """The tensors of one object, by canonical name; aliases resolve too, but are not iterated."""

    def __init__(self, stem: str, tensors: Mapping[str, LazyTensor]):
        self.stem = stem
        self._tensors = dict(tensors)
        self._aliases = {alias: name for name, tensor in tensors.items() for alias in tensor.entry.aliases if alias not in tensors}

    def __getitem__(self, name: str) -> LazyTensor:
        return self._tensors[self._aliases.get(name, name)]

    def __contains__(self, name: object) -> bool:
        return name in self._tensors or name in self._aliases

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)

    def stored_name(self, name: str) -> str:
        """The name under which the tensor known as `name` is stored; `KeyError` if it is not."""
        return self[name].name

    def records(self) -> dict[str, TensorRecord]:
        """What adapters are told about the stored tensors."""
        return {name: tensor.entry.record() for name, tensor in self._tensors.items()}


class Checkpoint:
    """An open checkpoint. Nothing but names, shapes and places is in memory.

    Attributes:
        path: its folder (or file).
        manifest: counters and scalars; of a foreign format only what can be known.
        damaged: files that are absent or of another size, with what is wrong; only where opened with `strict=False`. Their tensors are left out.
    """

    def __init__(self, path: Path, manifest: Manifest, files: CheckpointFiles, damaged: Mapping[str, str] | None = None):
        self.path = path
        self.manifest = manifest
        self.damaged = dict(damaged or {})
        self._files = files
        tensors: dict[str, dict[str, LazyTensor]] = {stem: {} for stem in manifest.sections}
        for entry in manifest.tensors:
            if entry.file not in self.damaged:
                tensors.setdefault(entry.section, {})[entry.name] = LazyTensor(entry, files)
        self._sections = {stem: StoredSection(stem, group) for stem, group in tensors.items()}

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close open files; reading again opens them again."""
        self._files.close()

    @property
    def sections(self) -> Mapping[str, StoredSection]:
        """Every section by stem: `model`, `model_1`, `optimizer`, …"""
        return self._sections

    def section(self, stem: str) -> StoredSection:
        """One section.

        Raises:
            CheckpointNotFoundError: the checkpoint has no such section.
        """
        if stem not in self._sections:
            raise CheckpointNotFoundError(f"{self.path} has no section {stem!r}; it has {sorted(self._sections)}")
        return self._sections[stem]

    def tensor(self, name: str, section: str | None = None) -> LazyTensor:
        """One tensor by name (or alias); without `section` the name must be of one section only.

        Raises:
            KeyError: no section, or more than one, has the name.
        """
        stems = [stem for stem, tensors in self._sections.items() if name in tensors and section in (None, stem)]
        if len(stems) != 1:
            raise KeyError(
                f"tensor {name!r} is in {stems or 'no section'} of {self.path}; " + ("name the section" if stems else "see .sections")
            )
        return self._sections[stems[0]][name]

    def verify(self) -> None:
        """Read everything and compare every hash, in bounded memory.

        Raises:
            CorruptCheckpointError: at the first difference.
        """
        for section in self._sections.values():
            for tensor in section.values():
                tensor.check_chunks(range(len(tensor.entry.chunks)))


def open_folder(path: Path, manifest: Manifest, *, strict: bool = True, storage: Storage | None = None) -> Checkpoint:
    """A checkpoint over the files of one folder, their sizes checked.

    Raises:
        CorruptCheckpointError: a file is absent, of another size, or a link out of the folder (with `strict`; else noted in `damaged`).
    """
    files = CheckpointFiles(path, storage or LocalStorage())
    faults = {name: fault for name, size in manifest.files.items() if (fault := files.fault(name, size)) is not None}
    if faults and strict:
        raise CorruptCheckpointError("; ".join(faults.values()))
    return Checkpoint(path, manifest, files, faults)


def as_path(path: str | os.PathLike[str]) -> Path:
    """`path` as an absolute path, without resolving links."""
    return Path(os.path.abspath(os.fspath(path)))


__all__ = ["Checkpoint", "CheckpointFiles", "LazyTensor", "StoredSection", "as_path", "open_folder", "read_header"]
