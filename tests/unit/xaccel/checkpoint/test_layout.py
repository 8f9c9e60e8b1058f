from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from xaccel.checkpoint.layout import open_checkpoint
from xaccel.checkpoint.leftovers import temporary_name
from xaccel.errors import CheckpointNotFoundError, CorruptCheckpointError

A, B = np.arange(6.0).reshape(2, 3), np.arange(3, dtype=np.int64)


def test_a_plain_file_and_a_folder_that_holds_it(tmp_path):
    save_file({"a": A, "b": B}, tmp_path / "weights.safetensors", metadata={"head": "a", "note": "x"})
    for path in (tmp_path / "weights.safetensors", tmp_path):
        with open_checkpoint(path) as checkpoint:
            assert np.array_equal(checkpoint.section("model")["a"][:, 1], A[:, 1])
            assert np.array_equal(checkpoint.tensor("head")[...], A)  # a tie as safetensors notes it
            assert checkpoint.manifest.step == 0


def test_a_sharded_index(tmp_path):
    save_file({"a": A}, tmp_path / "model-00001-of-00002.safetensors")
    save_file({"b": B}, tmp_path / "model-00002-of-00002.safetensors")
    homes = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"metadata": {"total_size": 72}, "weight_map": homes}))
    for path in (tmp_path, tmp_path / "model.safetensors.index.json"):
        with open_checkpoint(path) as checkpoint:
            assert np.array_equal(checkpoint.tensor("a")[...], A) and np.array_equal(checkpoint.tensor("b")[1:], B[1:])


def test_a_tensor_in_two_shards_is_refused(tmp_path):
    for name in ("x", "y"):
        save_file({"a": A, name: B}, tmp_path / f"{name}.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": "x.safetensors", "y": "y.safetensors"}}))
    with pytest.raises(CorruptCheckpointError, match=r"'a' is in 'x\.safetensors' and in 'y\.safetensors'"):
        open_checkpoint(tmp_path)


def test_the_folder_of_an_unfinished_save_is_not_opened(tmp_path):
    unfinished = temporary_name(tmp_path / "c")
    unfinished.mkdir()
    save_file({"a": A}, unfinished / "model.safetensors")
    with pytest.raises(CheckpointNotFoundError, match="never completed"):
        open_checkpoint(unfinished)
