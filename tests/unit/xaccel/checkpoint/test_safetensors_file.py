from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load

from xaccel.checkpoint.safetensors_file import build_header, byte_size, byte_view, dtype_kind, dtype_tag, numpy_dtype, parse_header
from xaccel.errors import UnsupportedError

TAGS = ["BOOL", "U8", "I8", "U16", "I16", "U32", "I32", "U64", "I64", "F8_E4M3", "F8_E5M2", "F8_E8M0", "F16", "BF16", "F32", "F64", "C64"]


@pytest.mark.parametrize("tag", TAGS)
def test_tags_and_dtypes_are_inverse(tag):
    dtype = numpy_dtype(tag)
    assert dtype_tag(dtype.name) == tag
    assert byte_size((3, 2), tag) == 6 * dtype.itemsize


def test_kinds():
    assert [dtype_kind(tag) for tag in ("F8_E5M2", "BF16", "F64", "I64", "U8", "BOOL", "C64")] == ["f", "f", "f", "i", "i", "b", "c"]
    assert numpy_dtype("F8_E4M3") == np.dtype(ml_dtypes.float8_e4m3fn)


@pytest.mark.parametrize("name", ["complex128", "object", "float8_e4m3b11fnuz", "str"])
def test_other_dtypes_are_refused_by_name(name):
    with pytest.raises(UnsupportedError, match=name):
        dtype_tag(name)


def test_a_header_is_aligned_and_read_back_by_both_parsers():
    a, b = np.arange(6, dtype=np.float64).reshape(2, 3), np.array(7, np.int8)
    first, header = build_header([("ä.weight", "F64", (2, 3)), ("b", "I8", ()), ("none", "F32", (0, 4))], {"note": "x"})
    assert len(first) % 64 == 0 and header.data_offset == len(first) and header.file_bytes == len(first) + 49
    assert parse_header(first[8:], header.file_bytes, "file") == header
    loaded = load(first + byte_view(a).tobytes() + byte_view(b).tobytes())
    assert (loaded["ä.weight"] == a).all() and loaded["b"] == 7 and loaded["none"].shape == (0, 4)


def test_a_file_without_tensors():
    first, header = build_header([], {})
    assert parse_header(first[8:], len(first), "file").tensors == {}
    assert header.file_bytes == len(first)


def test_byte_view_copies_only_what_is_not_contiguous():
    array = np.arange(6, dtype=np.int16).reshape(2, 3)
    assert np.shares_memory(np.asarray(byte_view(array)), array)
    assert byte_view(array.T).tobytes() == array.T.tobytes()
    assert byte_view(np.zeros((0, 3), ml_dtypes.bfloat16)).nbytes == 0
