"""Writing a checkpoint: aside, in parallel, hashed, synced, and put in place by one rename.

A crash at any point leaves the old checkpoints and at most one `.<name>.tmp-<id>` folder, which the next save into that folder removes.
Whatever fails on one process is raised on every process, and the folder aside is removed.
"""

from __future__ import annotations

import dataclasses
import datetime
import errno
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

import numpy as np
import xxhash

from xaccel.checkpoint.chunks import byte_runs, extents, split_bounds, tiling_fault, volume
from xaccel.checkpoint.coordination import Coordinator, on_first, together
from xaccel.checkpoint.leftovers import Reservation, sweep
from xaccel.checkpoint.manifest import MANIFEST_NAME, ChunkEntry, Manifest, TensorEntry
from xaccel.checkpoint.plan import Section, SectionPlan, merge_sizes, plan_digest, plan_section, total_bytes
from xaccel.checkpoint.records import TensorRecord
from xaccel.checkpoint.safetensors_file import byte_view, item_size, numpy_dtype
from xaccel.checkpoint.storage import LocalStorage, Storage
from xaccel.errors import CheckpointError, CheckpointSpaceError
from xaccel.mesh.spec import Bounds

Result = TypeVar("Result")

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)


def write_checkpoint(
    target: str | os.PathLike[str],
    sections: Sequence[Section],
    manifest_draft: Manifest,
    coordinator: Coordinator,
    storage: Storage | None = None,
) -> Path:
    """Write one checkpoint; every process calls it with the same target and shared sections.

    Args:
        target: folder of the checkpoint; an existing one is swapped for the new one when that is complete.
        manifest_draft: all that the manifest says besides tensors, files and sections; process 0's is written.

    Returns:
        The folder.

    Raises:
        CheckpointSpaceError: the disk is full; nothing is left behind.
        CheckpointError: anything else, on every process; the message names the process that failed.
    """
    with CheckpointWriter(target, coordinator, storage) as writer:
        writer.write(sections)
        return writer.commit(manifest_draft)


@dataclasses.dataclass(frozen=True)
class _Written:
    """What one process reports about the files that it wrote into."""

    files: dict[str, int]
    sections: dict[str, dict[str, Any]]
    # (section, name) -> what the tensor is; and the chunks that this process wrote.
    records: dict[tuple[str, str], TensorRecord]
    homes: dict[tuple[str, str], str]
    chunks: dict[tuple[str, str], list[ChunkEntry]]


class CheckpointWriter:
    """One save in steps, for callers that add files of their own in between. Every process makes one and calls the same steps.

    Attributes:
        directory: the folder aside, in which everything is made.
        target: where it will stand.
    """

    def __init__(self, target: str | os.PathLike[str], coordinator: Coordinator, storage: Storage | None = None):
        self.target = Path(os.path.abspath(target))
        self._coordinator = coordinator
        self._storage = LocalStorage() if storage is None else storage
        self._reservation: Reservation | None = None
        self._written: list[_Written] = []
        self._committed = False
        self.directory = Path()

    def __enter__(self) -> CheckpointWriter:
        self.directory = Path(on_first(self._coordinator, f"preparing to save {self.target}", self._reserve))
        return self

    def _reserve(self) -> str:
        sweep(self.target.parent, self._storage)
        self._reservation = Reservation(self.target, self._storage)
        return str(self._reservation.directory)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None) -> None:
        self._storage.close()
        if self._reservation is not None:
            if not self._committed:
                self._storage.remove(str(self._reservation.directory))
            self._reservation.release()

    def write(self, sections: Sequence[Section]) -> None:
        """Plan the files, create them, and write every slice that this process owns.

        Raises:
            CheckpointError: on every process if it fails on any.
        """
        what = f"saving {self.target}"
        plans = self._plan(sections, what)
        shared = [plan for plan in plans if plan.scope == "shared"]
        on_first(self._coordinator, what, lambda: self._guarded(plans, lambda: self._create_files(shared)))
        self._written = together(self._coordinator, what, lambda: self._guarded(plans, lambda: self._write_sections(sections, plans)))

    def commit(self, manifest_draft: Manifest) -> Path:
        """Write the manifest last and put the folder in place.

        Returns:
            The target.
        """
        on_first(self._coordinator, f"completing {self.target}", lambda: self._commit(manifest_draft))
        self._committed = True
        return self.target

    def _path(self, name: str) -> str:
        return str(self.directory / name)

    def _plan(self, sections: Sequence[Section], what: str) -> list[SectionPlan]:
        plans: list[SectionPlan] = []

        def plan() -> tuple[str, int, int]:
            plans.extend(plan_section(section) for section in sections)
            shared = [plan for plan in plans if plan.scope == "shared"]
            return plan_digest(plans), total_bytes(shared), total_bytes(plans) - total_bytes(shared)

        answers = together(self._coordinator, what, plan)
        differing = [index for index, (digest, _, _) in enumerate(answers) if digest != answers[0][0]]
        if differing:
            raise CheckpointError(
                f"{what}: processes {differing} describe other tensors (names, shapes, dtypes or order) than process 0; the objects must be the same"
            )
        needed = answers[0][1] + sum(own for _, _, own in answers)
        on_first(self._coordinator, what, lambda: self._check_space(needed))
        return plans

    def _check_space(self, needed: int) -> None:
        free = self._storage.free_bytes(str(self.directory))
        if free is not None and needed > free:
            raise CheckpointSpaceError(
                f"saving {self.target} needs {needed} bytes, but {free} bytes are free; remove old checkpoints or choose another disk"
            )

    def _guarded(self, plans: Sequence[SectionPlan], work: Callable[[], Result]) -> Result:
        try:
            return work()
        except OSError as error:
            if error.errno not in _NO_SPACE:
                raise
            free = self._storage.free_bytes(str(self.directory))
            raise CheckpointSpaceError(
                f"the disk is full: saving {self.target} needs {total_bytes(plans)} bytes in all, and {free} bytes are free ({error}); nothing is left behind"
            ) from error

    def _create_files(self, plans: Sequence[SectionPlan]) -> None:
        for plan in plans:
            for file in plan.files:
                self._storage.create(self._path(file.name), file.header.file_bytes)
                self._storage.write_at(self._path(file.name), 0, memoryview(file.header_bytes))
            if plan.index is not None:
                self._write_small(*plan.index)

    def _write_small(self, name: str, content: bytes) -> None:
        self._storage.create(self._path(name), len(content))
        self._storage.write_at(self._path(name), 0, memoryview(content))

    def _write_sections(self, sections: Sequence[Section], plans: Sequence[SectionPlan]) -> _Written:
        written = _Written({}, {}, {}, {}, {})
        self._create_files([plan for plan in plans if plan.scope == "process"])
        touched: set[str] = set()
        for section, plan in zip(sections, plans, strict=True):
            if plan.scope == "process" or self._coordinator.process_index == 0:
                _describe(plan, written)
                touched.update(plan.sizes())
            for record in plan.records:
                chunks = self._write_tensor(section, plan, record)
                if chunks:
                    written.chunks[plan.stem, record.name] = chunks
                    touched.add(plan.file_of(record.name).name)
        # Each process syncs what it wrote: on a network file system nobody else can.
        for name in sorted(touched):
            self._storage.sync(self._path(name))
        return written

    def _write_tensor(self, section: Section, plan: SectionPlan, record: TensorRecord) -> list[ChunkEntry]:
        file = plan.file_of(record.name)
        start = file.header.data_offset + file.header.tensors[record.name].begin
        chunks = []
        for owned in record.owned:
            if not volume(owned):
                continue
            data = slice_bytes(section.state.read(record.name, owned), owned, record, plan.stem)
            chunks.extend(self._write_slice(self._path(file.name), start, record, owned, data))
        return chunks

    def _write_slice(self, path: str, start: int, record: TensorRecord, owned: Bounds, data: memoryview) -> list[ChunkEntry]:
        """The one place where tensor bytes are written and hashed: `data` is the slice's own bytes, in C order."""
        size = item_size(record.dtype)
        entries, position = [], 0
        for piece in split_bounds(owned, size):
            chunk = data[position : position + volume(piece) * size]
            position += len(chunk)
            done = 0
            for offset, length in byte_runs(record.shape, piece, size):
                self._storage.write_at(path, start + offset, chunk[done : done + length])
                done += length
            entries.append(ChunkEntry(tuple(first for first, _ in piece), extents(piece), xxhash.xxh3_64_hexdigest(chunk)))
        return entries

    def _commit(self, draft: Manifest) -> None:
        manifest = self._complete(draft)
        content = manifest.to_json()
        self._guarded([], lambda: self._write_small(MANIFEST_NAME, content))
        self._storage.sync(self._path(MANIFEST_NAME))
        self._storage.sync(str(self.directory))
        self._storage.close()
        self._storage.commit(str(self.directory), str(self.target))

    def _complete(self, draft: Manifest) -> Manifest:
        from xaccel import __version__

        chunks: dict[tuple[str, str], list[ChunkEntry]] = {}
        for written in self._written:
            for key, entries in written.chunks.items():
                chunks.setdefault(key, []).extend(entries)
        records = {key: record for written in self._written for key, record in written.records.items()}
        homes = {key: home for written in self._written for key, home in written.homes.items()}
        sections = {stem: section for written in self._written for stem, section in written.sections.items()}
        return dataclasses.replace(
            draft,
            xaccel_version=draft.xaccel_version or __version__,
            created=draft.created or datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            sections=sections,
            files=merge_sizes([written.files for written in self._written]),
            tensors=tuple(_entry(key, record, homes[key], chunks.get(key, ())) for key, record in records.items()),
        )


def _describe(plan: SectionPlan, written: _Written) -> None:
    written.files.update(plan.sizes())
    written.sections[plan.stem] = {"scope": plan.scope, "files": [file.name for file in plan.files]}
    for record in plan.records:
        written.homes[plan.stem, record.name] = plan.file_of(record.name).name
        written.records[plan.stem, record.name] = dataclasses.replace(record, owned=())


def _entry(key: tuple[str, str], record: TensorRecord, home: str, chunks: Sequence[ChunkEntry]) -> TensorEntry:
    ordered = sorted(chunks, key=lambda chunk: chunk.offset)
    fault = tiling_fault(record.shape, [chunk.bounds for chunk in ordered])
    if fault is not None:
        raise CheckpointError(
            f"tensor {record.name!r} of {key[0]!r}, shape {record.shape}: {fault}; the slices owned by all processes must tile it"
        )
    return TensorEntry(
        section=key[0],
        file=home,
        name=record.name,
        shape=record.shape,
        dtype=record.dtype,
        aliases=record.aliases,
        adapter=record.adapter,
        chunks=tuple(ordered),
    )


def slice_bytes(array: np.ndarray, bounds: Bounds, record: TensorRecord, stem: str) -> memoryview:
    """The bytes of a slice that an adapter gave, after checking that it is the slice that was asked for; copies only what is not C-contiguous.

    Raises:
        CheckpointError: another shape or dtype than described.
    """
    if array.shape != extents(bounds) or array.dtype != numpy_dtype(record.dtype):
        raise CheckpointError(
            f"tensor {record.name!r} of {stem!r}: slice {bounds} of {record.dtype} was expected as shape {extents(bounds)}, came as {array.dtype} {array.shape}"
        )
    return byte_view(array)
