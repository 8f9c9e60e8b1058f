"""Folders of saves that died: `.<name>.tmp-<id>` (never complete) and `.<name>.old-<id>` (the old one, moved aside for an instant)."""

from __future__ import annotations

import fcntl
import os
import re
import uuid
from pathlib import Path

from xaccel.checkpoint.storage import Storage
from xaccel.errors import CheckpointError

_LEFTOVER = re.compile(r"\.(?P<name>.+)\.(?P<kind>tmp|old)-[0-9a-f]{32}")


def temporary_name(target: Path) -> Path:
    """A new name beside `target` that `sweep` knows."""
    return target.parent / f".{target.name}.tmp-{uuid.uuid4().hex}"


class Reservation:
    """A new folder aside for one save, locked while its process lives: a lock that can be had marks a dead save."""

    def __init__(self, target: Path, storage: Storage):
        if target.exists() and not target.is_dir():
            raise CheckpointError(f"cannot save to {target}: a file of that name exists; choose another folder")
        self.directory = temporary_name(target)
        storage.make_folder(str(self.directory))
        self._lock = try_lock(self.directory)

    def release(self) -> None:
        """Let go of the lock."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def try_lock(directory: Path) -> int | None:
    """A descriptor that holds the folder's lock, or `None` if another process holds it or the file system has no locks on folders."""
    try:
        descriptor = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def sweep(folder: Path, storage: Storage) -> list[str]:
    """Remove what dead saves left in `folder`; an old checkpoint that a crash caught between two renames is put back.

    Only names of exactly the writer's own pattern are touched, and only if no living process holds their lock.

    Returns:
        The names that were removed or put back.
    """
    swept = []
    for name in storage.list(str(folder)):
        match = _LEFTOVER.fullmatch(name)
        if match is None:
            continue
        lock = try_lock(folder / name)
        if lock is None:
            continue
        try:
            _clear(folder / name, folder / match["name"], match["kind"], storage)
            swept.append(name)
        finally:
            os.close(lock)
    return swept


def _clear(leftover: Path, target: Path, kind: str, storage: Storage) -> None:
    if kind == "old" and not target.exists():
        storage.commit(str(leftover), str(target))
    else:
        storage.remove(str(leftover))


def aside_of(target: Path) -> Path | None:
    """Where the old checkpoint lies if a crash caught `target` between two renames; `None` in all other cases."""
    if target.exists():
        return None
    for entry in sorted(target.parent.glob(f".{target.name}.old-*")) if target.parent.is_dir() else []:
        if _LEFTOVER.fullmatch(entry.name):
            return entry
    return None


def is_leftover(path: Path) -> bool:
    """Whether `path` is a folder that some save had not completed."""
    match = _LEFTOVER.fullmatch(path.name)
    return match is not None and match["kind"] == "tmp"
