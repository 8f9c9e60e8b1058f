"""The safetensors container: header out, header in. Element types are tags; nothing here looks at an element.

    8 bytes, little endian: length N of the header
    N bytes: JSON object {name: {"dtype": tag, "shape": [...], "data_offsets": [begin, end]}, "__metadata__": {text: text}}
    data, to the end of the file; offsets count from its first byte

What is written here MUST, and what is read here is refused unless it does:

* describe every byte of the data exactly once: no hole, no overlap, nothing behind the last tensor;
* give each tensor `end - begin` = product of its shape times its item size; a shape may hold 0, and `[]` is one element;
* name each tensor once, with a known dtype.

The header is padded with spaces to a multiple of 64 bytes, so that the data is aligned for mapping it straight into arrays.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from xaccel.errors import CorruptCheckpointError, UnsupportedError

if TYPE_CHECKING:
    import numpy as np

HEADER_ALIGNMENT_BYTES = 64
"""A cache line, and what XLA asks of a host buffer that it aliases."""

MAX_HEADER_BYTES = 100_000_000
"""The limit of the reference implementation: a length beyond it is an attack or garbage, not a model."""

MAX_INTEGER = 2**63 - 1
"""Sizes beyond it do not fit a file offset."""

METADATA_KEY = "__metadata__"

# tag -> (numpy or ml_dtypes name, bytes an element, kind: f float, c complex, i integer, b bool)
_DTYPES: Mapping[str, tuple[str, int, str]] = {
    "BOOL": ("bool", 1, "b"),
    "U8": ("uint8", 1, "i"),
    "I8": ("int8", 1, "i"),
    "U16": ("uint16", 2, "i"),
    "I16": ("int16", 2, "i"),
    "U32": ("uint32", 4, "i"),
    "I32": ("int32", 4, "i"),
    "U64": ("uint64", 8, "i"),
    "I64": ("int64", 8, "i"),
    "F8_E4M3": ("float8_e4m3fn", 1, "f"),
    "F8_E5M2": ("float8_e5m2", 1, "f"),
    "F8_E8M0": ("float8_e8m0fnu", 1, "f"),
    "F16": ("float16", 2, "f"),
    "BF16": ("bfloat16", 2, "f"),
    "F32": ("float32", 4, "f"),
    "F64": ("float64", 8, "f"),
    "C64": ("complex64", 8, "c"),
}
_TAGS = {name: tag for tag, (name, _, _) in _DTYPES.items()}


@dataclasses.dataclass(frozen=True, kw_only=True)
class TensorInfo:
    """One tensor of a file; `begin` and `end` count from the first byte of the data."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclasses.dataclass(frozen=True, kw_only=True)
class Header:
    """The header of one file.

    Attributes:
        tensors: by name, in the order of their data.
        metadata: the free texts of the file.
        data_offset: where the data begins in the file, in bytes.
        file_bytes: size of the whole file.
    """

    tensors: Mapping[str, TensorInfo]
    metadata: Mapping[str, str]
    data_offset: int
    file_bytes: int


def item_size(tag: str) -> int:
    """Bytes of one element.

    Raises:
        UnsupportedError: no such dtype in the format.
    """
    return _lookup(tag)[1]


def dtype_kind(tag: str) -> str:
    """`f` float, `c` complex, `i` integer (either sign), `b` bool."""
    return _lookup(tag)[2]


def _lookup(tag: str) -> tuple[str, int, str]:
    if tag not in _DTYPES:
        raise UnsupportedError(f"dtype {tag!r} cannot be stored in a safetensors file; known are {sorted(_DTYPES)}")
    return _DTYPES[tag]


def numpy_dtype(tag: str) -> np.dtype[Any]:
    """The NumPy (or ml_dtypes) dtype of a tag.

    >>> numpy_dtype("BF16").name
    'bfloat16'
    """
    import numpy as np

    name = _lookup(tag)[0]
    if not name.startswith(("bfloat", "float8")):
        return np.dtype(name)
    import ml_dtypes  # here: loading it takes a second on a cold disk, and most checkpoints need none of its types

    return np.dtype(getattr(ml_dtypes, name))


def dtype_tag(name: str) -> str:
    """The tag of a dtype by its NumPy or ml_dtypes name.

    >>> dtype_tag("float8_e4m3fn")
    'F8_E4M3'

    Raises:
        UnsupportedError: the format has no such dtype.
    """
    if name not in _TAGS:
        raise UnsupportedError(f"dtype {name!r} cannot be stored in a safetensors file; convert to one of {sorted(_TAGS)} first")
    return _TAGS[name]


def byte_view(array: np.ndarray) -> memoryview:
    """The elements' bytes in C order; the array's own memory where it is C-contiguous."""
    import numpy as np

    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def byte_size(shape: Sequence[int], tag: str) -> int:
    """Bytes of a whole tensor."""
    return math.prod(shape) * item_size(tag)


def build_header(tensors: Sequence[tuple[str, str, Sequence[int]]], metadata: Mapping[str, str]) -> tuple[bytes, Header]:
    """The first bytes of a file that holds `tensors` (name, tag, shape) in this order, and the same as a `Header`."""
    infos: dict[str, TensorInfo] = {}
    end = 0
    for name, tag, shape in tensors:
        begin, end = end, end + byte_size(shape, tag)
        infos[name] = TensorInfo(name=name, dtype=tag, shape=tuple(shape), begin=begin, end=end)
    content: dict[str, Any] = {METADATA_KEY: dict(metadata)} if metadata else {}
    content |= {
        info.name: {"dtype": info.dtype, "shape": list(info.shape), "data_offsets": [info.begin, info.end]} for info in infos.values()
    }
    text = json.dumps(content, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(len(text) + 8) % HEADER_ALIGNMENT_BYTES)
    data_offset = 8 + len(text)
    return len(text).to_bytes(8, "little") + text, Header(
        tensors=infos, metadata=dict(metadata), data_offset=data_offset, file_bytes=data_offset + end
    )


def header_length(first_bytes: bytes, file_bytes: int, file: str) -> int:
    """Length of the JSON text, checked against the file's size before anything of that length is read.

    Raises:
        CorruptCheckpointError: the file is too short for its header, or the length is absurd.
    """
    if file_bytes < 8 or len(first_bytes) < 8:
        raise CorruptCheckpointError(f"{file}: {file_bytes} bytes are too few for a safetensors file (8 for the header's length)")
    length = int.from_bytes(first_bytes[:8], "little")
    if length > MAX_HEADER_BYTES:
        raise CorruptCheckpointError(
            f"{file}: header length {length} is above the limit of {MAX_HEADER_BYTES}; this is not a safetensors file"
        )
    if 8 + length > file_bytes:
        raise CorruptCheckpointError(
            f"{file}: header of {length} bytes reaches past the end of the file ({file_bytes} bytes): cut off or not safetensors"
        )
    return length


def parse_header(text: bytes, file_bytes: int, file: str) -> Header:
    """Read and check the JSON text of a header; takes no memory beyond the header's own size.

    Args:
        text: the header without its 8 length bytes.
        file_bytes: size of the whole file.
        file: name of the file, for messages.

    Raises:
        CorruptCheckpointError: naming the file, and the tensor where it is one tensor's fault.
    """
    content = _parse_json(text, file)
    metadata = _check_metadata(content.pop(METADATA_KEY, {}), file)
    infos = sorted((_check_entry(name, entry, file) for name, entry in content.items()), key=lambda info: (info.begin, info.end))
    data_offset = 8 + len(text)
    _check_cover(infos, file_bytes - data_offset, file)
    return Header(tensors={info.name: info for info in infos}, metadata=metadata, data_offset=data_offset, file_bytes=file_bytes)


def _parse_json(text: bytes, file: str) -> dict[str, Any]:
    if not text.startswith(b"{"):
        raise CorruptCheckpointError(f"{file}: the header must begin with '{{', found {text[:1]!r}")
    try:
        return json.loads(text.decode("utf-8"), object_pairs_hook=lambda pairs: _without_duplicates(pairs, file))
    except (ValueError, RecursionError) as error:
        if isinstance(error, CorruptCheckpointError):
            raise
        raise CorruptCheckpointError(f"{file}: the header is not valid JSON: {error}") from error


def _without_duplicates(pairs: list[tuple[str, Any]], file: str) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise CorruptCheckpointError(f"{file}: {twice!r} stands twice in the header")
    return result


def _check_metadata(metadata: Any, file: str) -> dict[str, str]:
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise CorruptCheckpointError(f"{file}: {METADATA_KEY} must map texts to texts")
    return metadata


def _is_size(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_INTEGER


def _check_entry(name: str, entry: Any, file: str) -> TensorInfo:
    where = f"{file}: tensor {name!r}"
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise CorruptCheckpointError(f"{where}: expected exactly dtype, shape and data_offsets, found {str(entry)[:200]}")
    tag, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(tag, str) or tag not in _DTYPES:
        raise CorruptCheckpointError(f"{where}: unknown dtype {str(tag)[:40]!r}; known are {sorted(_DTYPES)}")
    if not isinstance(shape, list) or not all(_is_size(size) for size in shape):
        raise CorruptCheckpointError(f"{where}: shape {str(shape)[:200]} is not a list of sizes")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_size(offset) for offset in offsets) or offsets[0] > offsets[1]:
        raise CorruptCheckpointError(f"{where}: data_offsets {str(offsets)[:200]} are not 0 <= begin <= end")
    expected = _bounded_product(shape, where) * item_size(tag)
    if offsets[1] - offsets[0] != expected:
        raise CorruptCheckpointError(
            f"{where}: shape {shape} of {tag} takes {expected} bytes, data_offsets {offsets} give {offsets[1] - offsets[0]}"
        )
    return TensorInfo(name=name, dtype=tag, shape=tuple(shape), begin=offsets[0], end=offsets[1])


def _bounded_product(shape: list[int], where: str) -> int:
    product = 1
    for size in shape:
        product *= size
        if product > MAX_INTEGER:
            raise CorruptCheckpointError(f"{where}: the number of elements of shape {str(shape)[:200]} overflows 64 bits")
    return product


def _check_cover(infos: Sequence[TensorInfo], data_bytes: int, file: str) -> None:
    end = 0
    for info in infos:
        if info.begin != end:
            fault = "overlaps the tensor before it" if info.begin < end else "leaves a hole before it"
            raise CorruptCheckpointError(f"{file}: tensor {info.name!r} {fault}: begins at byte {info.begin}, expected {end}")
        if info.end > data_bytes:
            raise CorruptCheckpointError(
                f"{file}: tensor {info.name!r} ends at byte {info.end} of {data_bytes} bytes of data: the file is cut off"
            )
        end = info.end
    if end != data_bytes:
        raise CorruptCheckpointError(f"{file}: {data_bytes - end} bytes behind the last tensor belong to nothing")
