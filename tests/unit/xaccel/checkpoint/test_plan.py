from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from xaccel.checkpoint.array_state import ArrayState
from xaccel.checkpoint.plan import Section, plan_digest, plan_section
from xaccel.errors import ConfigurationError, CorruptCheckpointError, UnsupportedError


def plan(arrays, max_shard_bytes=None, aliases=None):
    return plan_section(Section("model", ArrayState(arrays, aliases=aliases), max_shard_bytes=max_shard_bytes))


def test_every_tensor_is_aligned_to_its_item_size():
    made = plan(
        {"a": np.zeros(3, np.int8), "b": np.zeros(3, np.float64), "c": np.zeros(5, ml_dtypes.bfloat16), "d": np.zeros(1, np.float32)}
    )
    header = made.files[0].header
    assert header.data_offset % 64 == 0
    assert {name: info.begin for name, info in header.tensors.items()} == {"b": 0, "d": 24, "c": 28, "a": 38}


def test_shards_are_filled_in_order_and_a_large_tensor_stands_alone():
    made = plan({"a": np.zeros(4, np.int8), "b": np.zeros(4, np.int8), "big": np.zeros(100, np.int8), "c": np.zeros(1, np.int8)}, 8)
    assert [list(file.header.tensors) for file in made.files] == [["a", "b"], ["big"], ["c"]]
    assert made.files[1].name == "model-00002-of-00003.safetensors" and made.index[0] == "model.safetensors.index.json"


def test_one_shard_has_no_index_and_no_tensor_no_file():
    assert plan({"a": np.zeros(4)}, 1000).index is None
    assert plan({}).files == ()


def test_a_tie_is_stored_once_and_noted_as_safetensors_does():
    made = plan({"embed": np.zeros(2)}, aliases={"embed": ("head",)})
    assert made.files[0].header.metadata == {"format": "pt", "head": "embed"} and list(made.files[0].header.tensors) == ["embed"]


def test_views_of_one_buffer_are_two_tensors():  # C-70
    buffer = np.arange(5.0)
    made = plan({"a": buffer[:2], "b": buffer[2:5]})
    assert {name: info.shape for name, info in made.files[0].header.tensors.items()} == {"a": (2,), "b": (3,)}


def test_the_digest_tells_names_shapes_and_dtypes_apart():
    arrays = [{"a": np.zeros(2)}, {"b": np.zeros(2)}, {"a": np.zeros(3)}, {"a": np.zeros(2, np.int64)}]
    digests = [plan_digest([plan(each)]) for each in arrays]
    assert len(set(digests)) == 4 and plan_digest([plan({"a": np.ones(2)})]) == digests[0]


def test_what_cannot_be_stored():
    with pytest.raises(ConfigurationError, match="'b' is used twice"):
        plan({"a": np.zeros(1), "b": np.zeros(1)}, aliases={"a": ("b",)})
    with pytest.raises(ConfigurationError, match="__metadata__"):
        plan({"__metadata__": np.zeros(1)})
    with pytest.raises(UnsupportedError, match="complex128"):
        plan({"a": np.zeros(1, np.complex128)})
    with pytest.raises(CorruptCheckpointError, match="only bare names"):
        plan_section(Section("../model", ArrayState({})))
