"""C-79 and its kind: indices and manifests that name files elsewhere, contradict themselves, or come from a newer version."""

from __future__ import annotations

import json

import numpy as np
import pytest
from safetensors.numpy import save_file

from xaccel.checkpoint.array_state import ArrayState
from xaccel.checkpoint.coordination import SoloCoordinator
from xaccel.checkpoint.layout import open_checkpoint
from xaccel.checkpoint.manifest import Manifest
from xaccel.checkpoint.plan import Section
from xaccel.checkpoint.writer import write_checkpoint
from xaccel.errors import CheckpointNotFoundError, CheckpointVersionError, CorruptCheckpointError

ARRAY = {"w": np.arange(4.0)}


@pytest.fixture
def sharded(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    save_file(ARRAY, tmp_path / "other.safetensors")
    save_file(ARRAY, folder / "shard.safetensors")
    return folder


def index(folder, content):
    (folder / "model.safetensors.index.json").write_text(content if isinstance(content, str) else json.dumps(content))


@pytest.mark.parametrize(
    "name",
    ["../other.safetensors", "/etc/passwd", "a/../shard.safetensors", "..\\other.safetensors", "", ".", "..", "C:shard", "x\0y", 7, None],
)
def test_only_bare_names_in_an_index(sharded, name):
    index(sharded, {"weight_map": {"w": name}})
    with pytest.raises(CorruptCheckpointError, match="only bare names"):
        open_checkpoint(sharded)


def test_an_absolute_path_to_a_file_inside_is_refused_too(sharded):
    index(sharded, {"weight_map": {"w": str(sharded / "shard.safetensors")}})
    with pytest.raises(CorruptCheckpointError, match="only bare names"):
        open_checkpoint(sharded)


def test_a_link_out_of_the_folder_is_refused(sharded):
    (sharded / "linked.safetensors").symlink_to("../other.safetensors")
    index(sharded, {"weight_map": {"w": "linked.safetensors"}})
    with pytest.raises(CorruptCheckpointError, match=r"linked\.safetensors is a link .* out of the checkpoint's folder"):
        open_checkpoint(sharded)


def test_a_link_inside_and_a_linked_folder_load(sharded, tmp_path):
    (sharded / "linked.safetensors").symlink_to("shard.safetensors")
    index(sharded, {"weight_map": {"w": "linked.safetensors"}})
    (tmp_path / "alias").symlink_to(sharded)
    with open_checkpoint(tmp_path / "alias") as checkpoint:
        assert checkpoint.tensor("w")[...].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "not a safetensors index"),
        ([], "not a safetensors index"),
        ({"weight_map": ["w"]}, "not a safetensors index"),
        ({"weight_map": {"w": "absent.safetensors"}}, r"'absent\.safetensors' is absent"),
        ({"weight_map": {"v": "shard.safetensors"}}, "'v' is said to be in 'shard.safetensors', but is not"),
    ],
)
def test_other_indices_are_refused(sharded, content, message):
    index(sharded, content)
    with pytest.raises(CorruptCheckpointError, match=message):
        open_checkpoint(sharded)


@pytest.fixture
def saved(tmp_path):
    return write_checkpoint(tmp_path / "c", [Section("model", ArrayState(ARRAY))], Manifest(), SoloCoordinator())


def change(path, edit):
    content = json.loads((path / "checkpoint.json").read_text())
    edit(content)
    (path / "checkpoint.json").write_text(json.dumps(content))


def test_a_newer_version_is_refused_with_both_numbers(saved):
    change(saved, lambda content: content.update(version=7))
    with pytest.raises(CheckpointVersionError, match=r"version 7, .* up to version 1"):
        open_checkpoint(saved)


def rename(content, name):
    content["files"] = {name: content["files"]["model.safetensors"]}
    content["tensors"][0]["file"] = name


EDITS = {
    "path upwards": (lambda content: rename(content, "../c/model.safetensors"), "only bare names"),
    "absolute path": (lambda content: rename(content, "/etc/passwd"), "only bare names"),
    "file not listed": (lambda content: content["tensors"][0].update(file="other.safetensors"), "not among the manifest's files"),
    "unknown dtype": (lambda content: content["tensors"][0].update(dtype="F42"), "'w'.*'F42'"),
    "negative shape": (lambda content: content["tensors"][0].update(shape=[-4]), "'w'.*not a list of sizes"),
    "chunk outside": (lambda content: content["tensors"][0]["chunks"][0].update(offset=[2]), "'w': chunk at"),
    "chunks do not add up": (lambda content: content["tensors"][0]["chunks"][0].update(shape=[3]), "'w': its chunks do not add up"),
    "size no number": (lambda content: content["files"]["model.safetensors"].update(size="8"), "not a number of bytes"),
    "no tensors": (lambda content: content.pop("tensors"), "missing or of another kind"),
    "tensors of another kind": (lambda content: content.update(tensors={"w": 1}), "missing or of another kind"),
    "other format": (lambda content: content.update(format="orbax"), "format must be"),
    "version no number": (lambda content: content.update(version="1"), "not a positive integer"),
    "step no number": (lambda content: content.update(step="x"), "step='x' must be an integer"),
    "sections no object": (lambda content: content.update(sections=[]), "sections must be an object"),
}


@pytest.mark.parametrize("edit", EDITS)
def test_manifests_that_lie_are_refused(saved, edit):
    change(saved, EDITS[edit][0])
    with pytest.raises(CorruptCheckpointError, match=EDITS[edit][1]):
        open_checkpoint(saved)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[]", b"[" * 200_000])
def test_manifests_that_are_none_are_refused(saved, content):
    (saved / "checkpoint.json").write_bytes(content)
    with pytest.raises(CorruptCheckpointError, match=r"checkpoint\.json"):
        open_checkpoint(saved)


def test_unknown_keys_are_kept(saved):
    change(saved, lambda content: content.update(later={"a": 1}) or content["tensors"][0].update(codec="none"))
    with open_checkpoint(saved) as checkpoint:
        again = Manifest.from_json(checkpoint.manifest.to_json(), "again")
    assert again.extra == {"later": {"a": 1}} and again.tensors[0].extra == {"codec": "none"}


def test_a_linked_data_file_is_refused(saved, tmp_path):
    (saved / "model.safetensors").rename(tmp_path / "elsewhere.safetensors")
    (saved / "model.safetensors").symlink_to(tmp_path / "elsewhere.safetensors")
    with pytest.raises(CorruptCheckpointError, match="is a link"):
        open_checkpoint(saved)


def test_a_folder_without_a_manifest_is_no_checkpoint(saved, tmp_path):
    (saved / "checkpoint.json").unlink()
    (saved / "model.safetensors").rename(saved / "model.bin")
    with pytest.raises(CheckpointNotFoundError, match="not a complete checkpoint"):
        open_checkpoint(saved)
    with pytest.raises(CheckpointNotFoundError, match="no such file or folder"):
        open_checkpoint(tmp_path / "nowhere")
