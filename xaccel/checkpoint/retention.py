"""Numbered checkpoints in one folder: the newest, the next number, and which go. By number always, never by name order."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from xaccel.checkpoint.layout import open_checkpoint
from xaccel.checkpoint.leftovers import temporary_name
from xaccel.checkpoint.manifest import MANIFEST_NAME
from xaccel.checkpoint.storage import LocalStorage, Storage
from xaccel.errors import CheckpointError, CheckpointNotFoundError

PREFIX = "checkpoint"
_NUMBERED = re.compile(rf"{PREFIX}_([0-9]+)")


def checkpoint_name(iteration: int) -> str:
    """Name of the folder of one iteration."""
    return f"{PREFIX}_{iteration}"


def numbered_checkpoints(folder: str | os.PathLike[str]) -> dict[int, Path]:
    """Number -> folder, ascending, complete or not. Other names (a copy `checkpoint_3_backup`, a temporary) are not among them."""
    found = {}
    for name in LocalStorage().list(os.fspath(folder)):
        match = _NUMBERED.fullmatch(name)
        if match and (Path(folder) / name).is_dir():
            found[int(match[1])] = Path(folder) / name
    return dict(sorted(found.items()))


def is_complete(path: Path) -> bool:
    """Whether every file that the manifest names is there in its full size."""
    if not (path / MANIFEST_NAME).is_file():
        return False
    try:
        open_checkpoint(path).close()
    except CheckpointError:
        return False
    return True


def newest_checkpoint(folder: str | os.PathLike[str]) -> Path:
    """The complete checkpoint `checkpoint_<number>` of the greatest number.

    Raises:
        CheckpointNotFoundError: there is none.
    """
    for path in reversed(numbered_checkpoints(folder).values()):
        if is_complete(path):
            return path
    raise CheckpointNotFoundError(f"no complete checkpoint ({PREFIX}_<number> with a {MANIFEST_NAME}) in {os.fspath(folder)}")


def next_iteration(folder: str | os.PathLike[str], at_least: int = 0) -> int:
    """The first number, not below `at_least`, that is after every checkpoint in the folder, complete or not: nothing is ever overwritten."""
    return max([at_least, *(number + 1 for number in numbered_checkpoints(folder))])


def surplus(complete: Sequence[int], limit: int) -> list[int]:
    """The numbers that go so that the newest `limit` stay, oldest first.

    >>> surplus([9, 10, 8, 11], limit=2)
    [8, 9]
    """
    return sorted(complete)[:-limit]


def apply_limit(folder: str | os.PathLike[str], limit: int, storage: Storage | None = None) -> list[Path]:
    """Remove the oldest complete checkpoints beyond `limit`; called after a commit. Incomplete folders neither count nor go.

    Returns:
        The folders that were removed.
    """
    complete = {number: path for number, path in numbered_checkpoints(folder).items() if is_complete(path)}
    gone = [complete[number] for number in surplus(list(complete), limit)]
    for path in gone:
        remove_checkpoint(path, storage or LocalStorage())
    return gone


def remove_checkpoint(path: Path, storage: Storage) -> None:
    """Rename it to a temporary's name first: a removal that is cut short leaves something for the next sweep, never half a checkpoint."""
    doomed = temporary_name(path)
    storage.commit(str(path), str(doomed))
    storage.remove(str(doomed))
