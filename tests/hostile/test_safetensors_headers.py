"""C-78: files that lie about themselves. One typed error that names file and tensor, before memory is taken."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from xaccel.checkpoint.layout import open_checkpoint
from xaccel.checkpoint.safetensors_file import build_header, parse_header
from xaccel.errors import CorruptCheckpointError

F32 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def file_of(header: dict | str | bytes, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else (header if isinstance(header, str) else json.dumps(header)).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


LIES = {
    "shape larger than data": (file_of({"t": F32 | {"shape": [4], "data_offsets": [0, 16]}}, bytes(8)), r"'t' ends at byte 16 of 8"),
    "shape against offsets": (file_of({"t": F32 | {"shape": [3]}}, bytes(8)), r"'t': shape \[3\] of F32 takes 12 bytes"),
    "negative offset": (file_of({"t": F32 | {"data_offsets": [-8, 0]}}, bytes(8)), "'t': data_offsets"),
    "offsets reversed": (file_of({"t": F32 | {"data_offsets": [8, 0]}}, bytes(8)), "'t': data_offsets"),
    "past the end": (file_of({"t": F32 | {"data_offsets": [800, 808]}}, bytes(8)), "'t' leaves a hole"),
    "overlap": (file_of({"a": F32, "b": F32 | {"data_offsets": [4, 12]}}, bytes(12)), "'b' overlaps"),
    "same place twice": (file_of({"a": F32, "b": F32}, bytes(8)), "'b' overlaps"),
    "hole": (file_of({"a": F32, "b": F32 | {"data_offsets": [12, 20]}}, bytes(20)), "'b' leaves a hole"),
    "hole at the start": (file_of({"a": F32 | {"data_offsets": [4, 12]}}, bytes(12)), "'a' leaves a hole"),
    "trailing bytes": (file_of({"a": F32}, bytes(9)), "1 bytes behind the last tensor"),
    "unknown dtype": (file_of({"t": F32 | {"dtype": "F42"}}, bytes(8)), "'t': unknown dtype 'F42'"),
    "dtype no text": (file_of({"t": F32 | {"dtype": ["F32"]}}, bytes(8)), "'t': unknown dtype"),
    "name twice": (file_of(f'{{"t": {json.dumps(F32)}, "t": {json.dumps(F32)}}}', bytes(8)), "'t' stands twice"),
    "key twice inside": (
        file_of('{"t": {"dtype": "F32", "dtype": "I8", "shape": [2], "data_offsets": [0, 8]}}', bytes(8)),
        "'dtype' stands twice",
    ),
    "overflow": (file_of({"t": F32 | {"shape": [2**40, 2**40]}}, bytes(8)), "'t': the number of elements .* overflows"),
    "overflow to zero": (
        file_of({"t": F32 | {"shape": [2**32, 2**32, 1], "data_offsets": [0, 0]}}),
        "'t': the number of elements .* overflows",
    ),
    "size beyond 64 bits": (file_of({"t": F32 | {"shape": [2**64]}}, bytes(8)), "'t': shape .* is not a list of sizes"),
    "size is true": (file_of({"t": F32 | {"shape": [True, 2]}}, bytes(8)), "'t': shape"),
    "size is a float": (file_of({"t": F32 | {"shape": [2.0]}}, bytes(8)), "'t': shape"),
    "size negative": (file_of({"t": F32 | {"shape": [-2, -1]}}, bytes(8)), "'t': shape"),
    "shape no list": (file_of({"t": F32 | {"shape": 2}}, bytes(8)), "'t': shape"),
    "offsets of three": (file_of({"t": F32 | {"data_offsets": [0, 8, 8]}}, bytes(8)), "'t': data_offsets"),
    "entry no object": (file_of({"t": 7}), "'t': expected exactly"),
    "entry lacks a key": (file_of({"t": {"dtype": "F32", "shape": [2]}}), "'t': expected exactly"),
    "entry has one more": (file_of({"t": F32 | {"code": "x"}}, bytes(8)), "'t': expected exactly"),
    "metadata of numbers": (file_of({"__metadata__": {"a": 1}}), "must map texts to texts"),
    "header no object": (file_of("[]"), "must begin with"),
    "header begins with space": (file_of(" {}"), "must begin with"),
    "header no JSON": (file_of("{nothing}"), "not valid JSON"),
    "header no UTF-8": (file_of(b'{"\xff": 1}'), "not valid JSON"),
    "header nested deeply": (file_of('{"a":' * 100_000 + "1" + "}" * 100_000), "not valid JSON"),
    "header of long digits": (file_of('{"t": ' + "9" * 10_000 + "}"), "not valid JSON"),
    "length absurd": (file_of({}, length=2**63), "above the limit"),
    "length all ones": (file_of({}, length=2**64 - 1), "above the limit"),
    "length past the end": (file_of({}, length=1000), "past the end"),
    "nothing": (b"", "0 bytes are too few"),
    "seven bytes": (b"1234567", "7 bytes are too few"),
    "a pickle": (b"\x80\x04\x95\x00\x00\x00\x00\x00", "past the end of the file"),
}


@pytest.mark.parametrize("lie", LIES)
def test_lies_are_refused(tmp_path, lie):
    content, message = LIES[lie]
    (tmp_path / "bad.safetensors").write_bytes(content)
    with pytest.raises(CorruptCheckpointError, match=message) as caught:
        open_checkpoint(tmp_path / "bad.safetensors")
    assert "bad.safetensors" in str(caught.value) and len(str(caught.value)) < 1500


def good_file() -> bytes:
    first, _ = build_header([("a", "F32", (3, 4)), ("b", "I64", ()), ("c", "BF16", (0, 5)), ("d", "U8", (3,))], {"format": "pt"})
    return first + bytes(range(59))


@pytest.mark.parametrize("size", range(0, 230, 7))
def test_a_file_cut_anywhere_is_refused(tmp_path, size):
    content = good_file()
    assert size < len(content)
    (tmp_path / "cut.safetensors").write_bytes(content[:size])
    with pytest.raises(CorruptCheckpointError, match=r"cut\.safetensors"):
        open_checkpoint(tmp_path / "cut.safetensors")


def test_zero_sizes_and_zero_dims_load(tmp_path):
    (tmp_path / "good.safetensors").write_bytes(good_file())
    with open_checkpoint(tmp_path / "good.safetensors") as checkpoint:
        assert checkpoint.tensor("c")[...].shape == (0, 5)
        assert checkpoint.tensor("b")[()] == int.from_bytes(bytes(range(48, 56)), "little")
        assert checkpoint.tensor("d")[...].shape == (3,)
        assert checkpoint.tensor("a")[...].tobytes() == bytes(range(48))


def test_a_thousand_damaged_headers_raise_one_kind_of_error_or_load():
    text = good_file()
    length = int.from_bytes(text[:8], "little")
    header, source = text[8 : 8 + length], random.Random(0)
    refused = 0
    for _ in range(1000):
        damaged = bytearray(header)
        for _ in range(source.randint(1, 4)):
            place = source.randrange(len(damaged))
            kind = source.randrange(3)
            if kind == 0:
                damaged[place] = source.randrange(256)
            elif kind == 1:
                del damaged[place : place + source.randint(1, 9)]
            else:
                damaged[place:place] = source.choice([b"9", b"-", b'"', b"{", b"}", b"[", b"1e9", b"null", b"\xf0"])
        try:
            parsed = parse_header(bytes(damaged), 8 + len(damaged) + 59, "fuzzed")
        except CorruptCheckpointError as error:
            assert "fuzzed" in str(error)
            refused += 1
        else:
            # What passes describes exactly the data.
            assert sum(info.end - info.begin for info in parsed.tensors.values()) == 59
    assert refused > 500


def test_a_refusal_takes_no_memory(tmp_path):
    import tracemalloc

    (tmp_path / "huge.safetensors").write_bytes(file_of({"t": {"dtype": "F64", "shape": [2**37], "data_offsets": [0, 2**40]}}, bytes(8)))
    tracemalloc.start()
    try:
        with pytest.raises(CorruptCheckpointError, match="'t' ends at byte 1099511627776"):
            open_checkpoint(tmp_path / "huge.safetensors")
        assert tracemalloc.get_traced_memory()[1] < 5_000_000
    finally:
        tracemalloc.stop()


def test_the_reference_implementation_reads_our_good_file(tmp_path):
    from safetensors.numpy import load

    first, _ = build_header([("a", "F32", (3, 4)), ("b", "I64", ())], {"format": "pt"})
    loaded = load(first + np.arange(12, dtype=np.float32).tobytes() + np.int64(2**40).tobytes())
    assert loaded["a"].tolist() == np.arange(12).reshape(3, 4).tolist() and int(loaded["b"]) == 2**40
