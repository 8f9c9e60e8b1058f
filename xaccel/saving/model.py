"""Weights alone, as other tools read them."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from xaccel.checkpoint.array_state import ArrayState
from xaccel.checkpoint.coordination import Coordinator, SoloCoordinator, on_first
from xaccel.checkpoint.manifest import Manifest
from xaccel.checkpoint.object_state import ObjectState
from xaccel.checkpoint.plan import Section
from xaccel.checkpoint.writer import write_checkpoint
from xaccel.errors import ConfigurationError

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
_OURS = re.compile(r"model(-\d{5}-of-\d{5})?\.safetensors(\.index\.json)?")


def parse_size(size: int | str) -> int:
    """A size in bytes.

    >>> parse_size("5MB"), parse_size("2GiB"), parse_size(100)
    (5000000, 2147483648, 100)

    Raises:
        ConfigurationError: not a positive number of bytes with a known unit.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", str(size))
    if match is None or match[2].upper() not in _UNITS:
        raise ConfigurationError(f"size {size!r}: expected a number of bytes, or a text such as '5MB' or '2GiB'")
    found = int(float(match[1]) * _UNITS[match[2].upper()])
    if found < 1:
        raise ConfigurationError(f"size {size!r} is below one byte")
    return found


def write_model(state: ObjectState, folder: Path, max_shard_bytes: int, coordinator: Coordinator) -> None:
    """Write `model.safetensors` or its shards into `folder`, whose other files stay; those of an earlier model go.

    Every process writes the slices that it owns, aside; the complete files are then moved in.
    """
    on_first(coordinator, f"making {folder}", lambda: folder.mkdir(parents=True, exist_ok=True))
    aside = Path(on_first(coordinator, f"saving into {folder}", lambda: tempfile.mkdtemp(prefix=".model.tmp-", dir=folder)))
    section = Section("model", state, max_shard_bytes=max_shard_bytes)
    try:
        write_checkpoint(aside / "files", [section], Manifest(), coordinator)
        on_first(coordinator, f"moving the model into {folder}", lambda: _move_in(aside / "files", folder))
    finally:
        on_first(coordinator, f"clearing {aside}", lambda: _remove(aside))


def _move_in(source: Path, folder: Path) -> None:
    new = {path.name for path in source.iterdir() if _OURS.fullmatch(path.name)}
    for name in sorted(new):
        (source / name).replace(folder / name)
    for path in folder.iterdir():
        if _OURS.fullmatch(path.name) and path.name not in new:
            path.unlink()


def _remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def save_arrays(arrays: Mapping[str, np.ndarray], path: Path) -> None:
    """A dict of arrays as one safetensors file.

    Raises:
        ConfigurationError: something in it is no array; the message names it.
    """
    wrong = {name: type(value).__name__ for name, value in arrays.items() if not isinstance(value, np.ndarray)}
    if wrong:
        raise ConfigurationError(f"save(safe_serialization=True) takes a dict of arrays; these are none: {wrong}")
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".save.tmp-", dir=path.parent) as aside:
        write_checkpoint(Path(aside) / "files", [Section("model", ArrayState(arrays))], Manifest(), SoloCoordinator())
        (Path(aside) / "files" / "model.safetensors").replace(path)
