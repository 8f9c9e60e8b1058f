"""One safetensors file by itself, put in place in one step."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from xaccel.checkpoint.reader import as_path, read_header
from xaccel.checkpoint.safetensors_file import build_header, byte_view, dtype_tag, numpy_dtype
from xaccel.checkpoint.storage import LocalStorage, Storage
from xaccel.errors import CheckpointNotFoundError, CorruptCheckpointError

if TYPE_CHECKING:
    import numpy as np


def write_safetensors(path: str | os.PathLike[str], arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str], storage: Storage | None = None) -> None:
    """Write arrays by name; an existing file stays whole until the new one replaces it.

    Raises:
        UnsupportedError: a dtype that the format does not have.
    """
    storage = storage or LocalStorage()
    final = as_path(path)
    ordered = sorted(arrays, key=lambda name: (-arrays[name].dtype.itemsize, name))
    first_bytes, header = build_header([(name, dtype_tag(arrays[name].dtype.name), arrays[name].shape) for name in ordered], metadata)
    os.makedirs(final.parent, exist_ok=True)
    temporary = str(final.parent / f".{final.name}.tmp-{uuid.uuid4().hex}")
    try:
        storage.create(temporary, header.file_bytes)
        storage.write_at(temporary, 0, memoryview(first_bytes))
        for name in ordered:
            storage.write_at(temporary, header.data_offset + header.tensors[name].begin, byte_view(arrays[name]))
        storage.sync(temporary)
        storage.close()
        storage.replace(temporary, str(final))
        storage.sync(str(final.parent))
    finally:
        storage.close()
        storage.remove(temporary)


def read_safetensors(path: str | os.PathLike[str]) -> tuple[dict[str, np.ndarray], Mapping[str, str]]:
    """All arrays of one file, and its metadata.

    Raises:
        CheckpointNotFoundError: no such file.
        CorruptCheckpointError: it is not a whole safetensors file.
    """
    import numpy as np

    where = as_path(path)
    if not Path(where).is_file():
        raise CheckpointNotFoundError(f"there is no file {where}")
    storage = LocalStorage()
    try:
        header = read_header(storage, str(where), str(where))
        arrays = {}
        for info in header.tensors.values():
            array = np.empty(info.shape, numpy_dtype(info.dtype))
            if storage.read_at(str(where), header.data_offset + info.begin, byte_view(array)) != array.nbytes:
                raise CorruptCheckpointError(f"{where}: the file became shorter while it was read")
            arrays[info.name] = array
        return arrays, header.metadata
    finally:
        storage.close()
