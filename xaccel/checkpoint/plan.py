"""The file plan: which tensor lies in which file at which byte. Every process computes the same one from names, shapes and dtypes alone."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from xaccel.checkpoint.manifest import check_file_name
from xaccel.checkpoint.object_state import ObjectState
from xaccel.checkpoint.records import TensorRecord
from xaccel.checkpoint.safetensors_file import METADATA_KEY, Header, build_header, byte_size, item_size
from xaccel.errors import ConfigurationError

Scope = Literal["shared", "process"]


@dataclasses.dataclass(frozen=True)
class Section:
    """One object's tensors, to be written into files that begin with `stem`.

    Attributes:
        stem: `model`, `optimizer_1`, `process-00000`, `custom_checkpoint_0`, …
        state: where the tensors come from.
        scope: "shared": every process brings the same section and writes the slices that it owns; "process": only this process has it.
        max_shard_bytes: largest file; a single tensor above it gets a file of its own. `None`: one file.
    """

    stem: str
    state: ObjectState
    scope: Scope = "shared"
    max_shard_bytes: int | None = None


@dataclasses.dataclass(frozen=True)
class FilePlan:
    """One safetensors file: its first bytes and where each tensor lies in it."""

    name: str
    header_bytes: bytes
    header: Header


@dataclasses.dataclass(frozen=True)
class SectionPlan:
    """The files of one section, and its index file where there is more than one."""

    stem: str
    scope: Scope
    records: tuple[TensorRecord, ...]
    files: tuple[FilePlan, ...]
    index: tuple[str, bytes] | None = None

    def file_of(self, name: str) -> FilePlan:
        """The file that holds a tensor."""
        return next(file for file in self.files if name in file.header.tensors)

    def sizes(self) -> dict[str, int]:
        """File name -> bytes, the index included."""
        sizes = {file.name: file.header.file_bytes for file in self.files}
        return sizes | ({self.index[0]: len(self.index[1])} if self.index else {})


def plan_section(section: Section) -> SectionPlan:
    """Lay out one section.

    Raises:
        ConfigurationError: two tensors of one name, a name that is reserved, or a stem that is no file name.
        UnsupportedError: a dtype that the format does not have.
    """
    check_file_name(section.stem, "section")
    records = tuple(section.state.describe())
    _check_names(section.stem, records)
    groups = _shards(records, section.max_shard_bytes)
    files = tuple(_plan_file(_file_name(section.stem, index, len(groups)), group) for index, group in enumerate(groups))
    index = _index_file(section.stem, records, files) if len(files) > 1 else None
    return SectionPlan(section.stem, section.scope, records, files, index)


def _check_names(stem: str, records: Sequence[TensorRecord]) -> None:
    seen: set[str] = {METADATA_KEY}
    for record in records:
        for name in (record.name, *record.aliases):
            if name in seen:
                raise ConfigurationError(
                    f"section {stem!r}: tensor name {name!r} is used twice or reserved; every tensor needs a name of its own"
                )
            seen.add(name)


def _shards(records: Sequence[TensorRecord], max_bytes: int | None) -> list[list[TensorRecord]]:
    """Greedy, in order, as Hugging Face tools split. No tensor: no file."""
    shards: list[list[TensorRecord]] = []
    filled = 0
    for record in records:
        size = byte_size(record.shape, record.dtype)
        if not shards or (max_bytes is not None and shards[-1] and filled + size > max_bytes):
            shards.append([])
            filled = 0
        shards[-1].append(record)
        filled += size
    return shards


def _file_name(stem: str, index: int, count: int) -> str:
    return f"{stem}.safetensors" if count == 1 else f"{stem}-{index + 1:05d}-of-{count:05d}.safetensors"


def _plan_file(name: str, records: Sequence[TensorRecord]) -> FilePlan:
    # Wide elements first: every tensor is then aligned to its own item size, since the data itself begins at a multiple of 64.
    ordered = sorted(records, key=lambda record: (-item_size(record.dtype), record.name))
    # "format": transformers asks for it. Aliases as safetensors' own save_model notes them: other name -> name that is stored.
    metadata = {"format": "pt"} | {alias: record.name for record in ordered for alias in record.aliases}
    header_bytes, header = build_header([(record.name, record.dtype, record.shape) for record in ordered], metadata)
    return FilePlan(name, header_bytes, header)


def _index_file(stem: str, records: Sequence[TensorRecord], files: Sequence[FilePlan]) -> tuple[str, bytes]:
    homes = {name: file.name for file in files for name in file.header.tensors}
    total = sum(byte_size(record.shape, record.dtype) for record in records)
    content = {"metadata": {"total_size": total}, "weight_map": {record.name: homes[record.name] for record in records}}
    return f"{stem}.safetensors.index.json", json.dumps(content, indent=2).encode()


def plan_digest(plans: Sequence[SectionPlan]) -> str:
    """Equal on all processes exactly if they planned the same shared files."""
    content: list[Any] = [
        [plan.stem, [[record.name, record.dtype, record.shape, record.aliases] for record in plan.records], plan.sizes()]
        for plan in plans
        if plan.scope == "shared"
    ]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def total_bytes(plans: Sequence[SectionPlan]) -> int:
    """Bytes of all files of the plans."""
    return sum(sum(plan.sizes().values()) for plan in plans)


def merge_sizes(plans: Sequence[Mapping[str, int]]) -> dict[str, int]:
    """The files of several processes together."""
    return {name: size for sizes in plans for name, size in sizes.items()}
