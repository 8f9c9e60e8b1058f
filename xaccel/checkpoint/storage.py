"""Where bytes go. The rest of the room names files and offsets; only this file opens one."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

RENAME_EXCHANGE = 2
"""Flag of Linux' renameat2: swap two paths in one step."""

AT_FDCWD = -100


class Storage(Protocol):
    """A file system as the checkpoint needs it. Paths are strings; several processes may use one storage at a time."""

    def create(self, path: str, size: int) -> None:
        """Make a file of `size` bytes, whose content is not yet defined."""

    def write_at(self, path: str, offset: int, data: memoryview) -> None:
        """Write all of `data` from byte `offset` on."""

    def read_at(self, path: str, offset: int, into: memoryview) -> int:
        """Fill `into` from byte `offset` on; returns the number of bytes, fewer only at the end of the file."""

    def size(self, path: str) -> int:
        """Size of a file in bytes; `FileNotFoundError` if there is none."""

    def list(self, path: str) -> list[str]:
        """Names in a folder; empty if there is none."""

    def make_folder(self, path: str) -> None:
        """Make a folder (and those above it) that must not exist yet."""

    def sync(self, path: str) -> None:
        """Return once everything written to a file or folder would survive a power cut."""

    def commit(self, temporary: str, final: str) -> None:
        """Put the folder `temporary` at `final` in one step; what stood there is at no moment missing, and is removed afterwards."""

    def remove(self, path: str) -> None:
        """Remove a file or folder; nothing happens if there is none."""

    def free_bytes(self, path: str) -> int | None:
        """Room left for this user where `path` (or its nearest existing parent) lies; `None` where nobody knows."""

    def close(self) -> None:
        """Close what is open."""


class LocalStorage:
    """Files of a local or shared POSIX file system. Keeps written files open until `close`, so that a chunk costs one system call."""

    def __init__(self) -> None:
        self._open: dict[str, int] = {}

    def create(self, path: str, size: int) -> None:
        # ftruncate, not fallocate: preallocating made buffered writes a third slower.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._open[path] = descriptor
        os.ftruncate(descriptor, size)

    def _descriptor(self, path: str, flags: int) -> int:
        if path not in self._open:
            self._open[path] = os.open(path, flags | os.O_CLOEXEC)
        return self._open[path]

    def write_at(self, path: str, offset: int, data: memoryview) -> None:
        descriptor = self._descriptor(path, os.O_RDWR)
        while data:
            written = os.pwrite(descriptor, data, offset)
            data, offset = data[written:], offset + written

    def read_at(self, path: str, offset: int, into: memoryview) -> int:
        descriptor = self._descriptor(path, os.O_RDONLY)
        total = 0
        while total < len(into):
            count = os.preadv(descriptor, [into[total:]], offset + total)
            if count == 0:
                break
            total += count
        return total

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def list(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except (FileNotFoundError, NotADirectoryError):
            return []

    def make_folder(self, path: str) -> None:
        os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
        os.mkdir(path)

    def sync(self, path: str) -> None:
        if path in self._open:
            os.fsync(self._open[path])
            return
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def commit(self, temporary: str, final: str) -> None:
        parent = os.path.dirname(final) or "."
        if not os.path.lexists(final):
            os.rename(temporary, final)
            self.sync(parent)
            return
        aside = temporary if exchange(temporary, final) else swap_by_two_renames(temporary, final)
        self.sync(parent)
        self.remove(aside)

    def remove(self, path: str) -> None:
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path)
        else:
            Path(path).unlink(missing_ok=True)

    def free_bytes(self, path: str) -> int | None:
        existing = os.path.abspath(path)
        while not os.path.exists(existing):
            existing = os.path.dirname(existing)
        status = os.statvfs(existing)
        return status.f_bavail * status.f_frsize

    def close(self) -> None:
        while self._open:
            os.close(self._open.popitem()[1])

    def __del__(self) -> None:
        self.close()


def exchange(first: str, second: str) -> bool:
    """Swap two paths in one step; `False` where the system or the file system cannot (nothing has changed then)."""
    rename: Callable[..., int] | None = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(AT_FDCWD, os.fsencode(first), AT_FDCWD, os.fsencode(second), RENAME_EXCHANGE) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
        return False
    raise OSError(code, os.strerror(code), first, None, second)


def swap_by_two_renames(temporary: str, final: str) -> str:
    """Put `temporary` at `final` where the file system cannot exchange; returns where the old one now lies.

    Between the two renames a crash leaves the old one as `.<name>.old-<id>`: the sweep before the next save puts it back, and readers find it.
    """
    aside = temporary.replace(".tmp-", ".old-")
    os.rename(final, aside)
    os.rename(temporary, final)
    return aside
