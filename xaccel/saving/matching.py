"""What a live object wants against what a checkpoint has: names, shapes and dtypes only."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from xaccel.checkpoint.records import WantedTensor
from xaccel.checkpoint.safetensors_file import dtype_kind

FOREIGN_PREFIXES = ("optax/", "torch/")
"""Optimizer states without a counterpart in the other framework are stored under these."""


@dataclasses.dataclass(frozen=True)
class Problems:
    """Differences, each as one line."""

    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    mismatched: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.missing or self.unexpected or self.mismatched)

    @classmethod
    def union(cls, several: Iterable[Problems]) -> Problems:
        """All of them, each line once, in order of appearance."""
        groups: tuple[dict[str, None], ...] = ({}, {}, {})
        for problems in several:
            for group, lines in zip(groups, (problems.missing, problems.unexpected, problems.mismatched)):
                group.update(dict.fromkeys(lines))
        return cls(*(tuple(group) for group in groups))


@dataclasses.dataclass(frozen=True)
class Match:
    """How one object's names meet one section's.

    Attributes:
        stored: name (or alias) that the object uses -> name under which the tensor is stored; only tensors that can be loaded.
        problems: what does not fit.
        foreign: stored names that belong to the framework which wrote them.
    """

    stored: Mapping[str, str]
    problems: Problems
    foreign: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True)
class StoredTensor:
    """What the comparison needs to know of a stored tensor."""

    name: str
    shape: tuple[int, ...]
    dtype: str


def match_section(title: str, wanted: Sequence[WantedTensor], stored: Mapping[str, StoredTensor], *, other_framework: bool) -> Match:
    """Compare.

    Args:
        title: name of the object, put before each tensor's name.
        stored: every name and alias of the section.
        other_framework: another adapter wrote the checkpoint.
    """
    names: dict[str, str] = {}
    taken: set[str] = set()
    missing, mismatched = [], []
    for want in wanted:
        found = next((stored[name] for name in (want.name, *want.aliases) if name in stored), None)
        if found is None:
            missing.append(f"{title}: {want.name}")
            continue
        taken.add(found.name)
        fault = difference(want, found)
        if fault is not None:
            mismatched.append(f"{title}: {want.name}: {fault}")
            continue
        names.update(dict.fromkeys((want.name, *want.aliases), found.name))
    left = [tensor.name for name, tensor in stored.items() if name == tensor.name and name not in taken]
    foreign = [name for name in left if other_framework and name.startswith(FOREIGN_PREFIXES)]
    unexpected = [f"{title}: {name}" for name in left if name not in foreign]
    return Match(names, Problems(tuple(missing), tuple(unexpected), tuple(mismatched)), tuple(f"{title}: {name}" for name in foreign))


def difference(want: WantedTensor, found: StoredTensor) -> str | None:
    """Why a stored tensor cannot fill a live one; `None` if it can. Between floating dtypes the adapter converts; nothing else is converted.

    >>> difference(WantedTensor(name="a", shape=(2,), dtype="F32", bounds=()), StoredTensor("a", (2,), "BF16")) is None
    True
    """
    if want.shape != found.shape:
        return f"shape {want.shape} is needed, the checkpoint has {found.shape}"
    if want.dtype != found.dtype and not (dtype_kind(want.dtype) == dtype_kind(found.dtype) == "f"):
        return f"dtype {want.dtype} is needed, the checkpoint has {found.dtype}"
    return None


def match_count(title: str, num_live: int, num_stored: int) -> Problems:
    """Objects that are matched by position (schedulers, loaders).

    >>> match_count("schedulers", 1, 2).unexpected
    ('schedulers[1]',)
    """
    missing = tuple(f"{title}[{index}]" for index in range(num_stored, num_live))
    unexpected = tuple(f"{title}[{index}]" for index in range(num_live, num_stored))
    return Problems(missing, unexpected)
