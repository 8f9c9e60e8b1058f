"""Every prepared and registered object as sections of a checkpoint, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from xaccel.backend.state import StateAccess
from xaccel.checkpoint.names import is_derived
from xaccel.checkpoint.object_state import ObjectState
from xaccel.checkpoint.reader import Checkpoint, StoredSection
from xaccel.checkpoint.records import WantedTensor
from xaccel.checkpoint.safetensors_file import dtype_kind
from xaccel.checkpoint.slots import FOREIGN_PREFIXES
from xaccel.mesh.spec import Bounds
from xaccel.prepared import Prepared


@dataclasses.dataclass(frozen=True)
class SavedObject:
    """One live object and where it stands in a checkpoint.

    Attributes:
        stem: of its files.
        group: list of the manifest that holds its scalars: "models", "optimizers" or "custom".
        index: its place in that list.
        state: its state.
    """

    stem: str
    group: str
    index: int
    state: ObjectState


def live_objects(state: StateAccess, prepared: Prepared, models: Sequence[Any]) -> list[SavedObject]:
    """Models, optimizers and registered objects, in the order of preparation.

    Args:
        models: those of the prepared models that count (a hook may have taken others over); each keeps its own number.
    """
    chosen = [(index, model) for index, model in enumerate(prepared.models) if any(model is other for other in models)]
    found = [SavedObject(_stem("model", index), "models", index, state.model(model)) for index, model in chosen]
    for index, optimizer in enumerate(prepared.optimizers):
        found.append(SavedObject(_stem("optimizer", index), "optimizers", index, state.optimizer(optimizer, prepared.models)))
    for index, value in enumerate(prepared.registered):
        found.append(SavedObject(f"custom_checkpoint_{index}", "custom", index, state.registered(value)))
    return found


def model_stem(index: int) -> str:
    """The section of one prepared model."""
    return _stem("model", index)


def _stem(word: str, index: int) -> str:
    return f"{word}_{index}" if index else word


@dataclasses.dataclass
class Differences:
    """How a checkpoint and the live objects differ."""

    missing: list[str] = dataclasses.field(default_factory=list)
    unexpected: list[str] = dataclasses.field(default_factory=list)
    mismatched: list[str] = dataclasses.field(default_factory=list)
    not_carried: list[str] = dataclasses.field(default_factory=list)

    @classmethod
    def union(cls, several: Sequence[Differences]) -> Differences:
        """Those of all processes, each line once."""
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(**{name: list(dict.fromkeys(line for each in several for line in getattr(each, name))) for name in names})

    def __bool__(self) -> bool:
        return bool(self.missing or self.unexpected or self.mismatched)


class ObjectLoader:
    """Loads one object: first compares, then reads what fits.

    Args:
        saved: the object.
        checkpoint: open.
    """

    def __init__(self, saved: SavedObject, checkpoint: Checkpoint):
        self.saved = saved
        self._section: StoredSection | None = checkpoint.sections.get(saved.stem)
        scalars = getattr(checkpoint.manifest, saved.group)
        self.has_scalars = saved.index < len(scalars)
        self._scalars: Mapping[str, Any] = scalars[saved.index] if self.has_scalars else {}
        self._sources: dict[str, str] = {}

    def compare(self, differences: Differences) -> None:
        """Note what is missing, left over, or of another shape or kind."""
        if self._section is None:
            differences.missing.append(f"{self.saved.stem}: the whole object")
            return
        records = self._section.records()
        taken: set[str] = set()
        for wanted in self.saved.state.wanted(records):
            source = self._source(wanted)
            if source is None:
                differences.missing.append(f"{self.saved.stem}: {wanted.name}")
                continue
            taken.add(source)
            reason = _mismatch(wanted, records[source].shape, records[source].dtype)
            if reason is not None:
                differences.mismatched.append(f"{self.saved.stem}: {wanted.name} {reason}")
                continue
            self._sources[wanted.name] = source
        for name in records:
            if name in taken or is_derived(name):
                continue
            target = differences.not_carried if name.startswith(FOREIGN_PREFIXES) else differences.unexpected
            target.append(f"{self.saved.stem}: {name}")

    def _source(self, wanted: WantedTensor) -> str | None:
        assert self._section is not None, "compared sections exist"
        return next((self._section.stored_name(name) for name in (wanted.name, *wanted.aliases) if name in self._section), None)

    def load(self, decode: Any) -> list[str]:
        """Assign all that fits; returns what cannot cross, by name."""
        if self._section is None:
            return []
        return [f"{self.saved.stem}: {each}" for each in self.saved.state.load(self._read, decode(self._scalars))]

    def _read(self, name: str, bounds: Bounds) -> np.ndarray:
        assert self._section is not None, "read sections exist"
        source = self._sources.get(name)
        if source is None:
            raise KeyError(name)
        return self._section[source].read(bounds)


def _mismatch(wanted: WantedTensor, shape: tuple[int, ...], dtype: str) -> str | None:
    if tuple(shape) != tuple(wanted.shape):
        return f"has shape {tuple(wanted.shape)}, in the checkpoint {tuple(shape)}"
    # Only between floats: an int64 that does not fit into int32 would become another number.
    if dtype != wanted.dtype and not dtype_kind(dtype) == dtype_kind(wanted.dtype) == "f":
        return f"is {wanted.dtype}, in the checkpoint {dtype}"
    return None
