from __future__ import annotations

import json

import numpy as np
import pytest

import xaccel.checkpoint.reader as reader
from xaccel.checkpoint.array_state import ArrayState
from xaccel.checkpoint.coordination import SoloCoordinator
from xaccel.checkpoint.layout import open_checkpoint
from xaccel.checkpoint.manifest import Manifest
from xaccel.checkpoint.plan import Section
from xaccel.checkpoint.storage import LocalStorage
from xaccel.checkpoint.writer import write_checkpoint
from xaccel.errors import CheckpointNotFoundError, CorruptCheckpointError

VALUES = np.arange(4 * 6 * 5, dtype=np.int32).reshape(4, 6, 5)


@pytest.fixture
def path(tmp_path):
    state = ArrayState(
        {"w": VALUES, "scale": np.array(2.5)}, aliases={"w": ("tied",)}, owned={"w": (((0, 4), (0, 3), (0, 5)), ((0, 4), (3, 6), (0, 5)))}
    )
    other = ArrayState({"exp_avg/w": VALUES + 1, "scale": np.array(1)})
    return write_checkpoint(tmp_path / "c", [Section("model", state), Section("optimizer", other)], Manifest(), SoloCoordinator())


INDICES = [
    ...,
    0,
    -1,
    slice(1, 3),
    (slice(None), 2),
    (..., 4),
    (1, 2, 3),
    (slice(3, None, -2), ..., slice(0, 5, 2)),
    slice(2, 2),
    (slice(None, None, -1), 1),
]


@pytest.mark.parametrize("index", INDICES)
def test_slices_are_numpys(path, index):
    with open_checkpoint(path) as checkpoint:
        found = checkpoint.tensor("w")[index]
    assert np.array_equal(found, VALUES[index]) and found.shape == VALUES[index].shape and found.dtype == VALUES.dtype


@pytest.mark.parametrize("index", [4, (0, 0, 0, 0), (..., ...), None, True, [0, 1], "w"])
def test_other_indices_are_refused(path, index):
    with open_checkpoint(path) as checkpoint, pytest.raises(IndexError):
        checkpoint.tensor("w")[index]


def test_only_the_bytes_of_the_slice_are_read(path, monkeypatch):
    counted = []
    plain = LocalStorage.read_at

    def counting(self, name, offset, into):
        counted.append(len(into))
        return plain(self, name, offset, into)

    with open_checkpoint(path) as checkpoint:
        tensor = checkpoint.tensor("w")
        tensor[0, 0, 0]
        monkeypatch.setattr(LocalStorage, "read_at", counting)
        assert tensor[2:3].nbytes == sum(counted) == 120
        monkeypatch.setattr(reader, "MAX_GAP_BYTES", 0)
        counted.clear()
        assert tensor[:, 0].nbytes == sum(counted) == 4 * 20


def test_aliases_and_names(path):
    with open_checkpoint(path) as checkpoint:
        assert np.array_equal(checkpoint.tensor("tied")[...], VALUES)
        assert checkpoint.section("model").stored_name("tied") == "w"
        assert list(checkpoint.section("model")) == ["w", "scale"]
        assert checkpoint.section("model").records()["w"].aliases == ("tied",)
        with pytest.raises(KeyError, match="name the section"):
            checkpoint.tensor("scale")
        assert checkpoint.tensor("scale", "model")[()] == 2.5
        with pytest.raises(KeyError, match="no section"):
            checkpoint.tensor("nothing")
        with pytest.raises(CheckpointNotFoundError, match="model_1"):
            checkpoint.section("model_1")


def test_a_copy_elsewhere_loads(path, tmp_path):  # C-61
    import subprocess

    subprocess.run(["cp", "-r", str(path), str(tmp_path / "copy")], check=True)
    with open_checkpoint(tmp_path / "copy") as checkpoint:
        checkpoint.verify()


def flip(path, name):
    with open_checkpoint(path) as checkpoint:
        tensor = checkpoint.tensor(name)
        place = tensor._data_start()
    content = bytearray((path / "model.safetensors").read_bytes())
    content[place] ^= 1
    (path / "model.safetensors").write_bytes(content)


def test_a_flipped_bit_is_found_by_its_chunk(path):
    flip(path, "w")
    with open_checkpoint(path) as checkpoint:
        tensor = checkpoint.tensor("w")
        with pytest.raises(CorruptCheckpointError, match=r"model\.safetensors: tensor 'w', slice \(\(0, 4\), \(0, 3\), \(0, 5\)\): hash"):
            tensor[...]
        assert np.array_equal(tensor[:, 3:], VALUES[:, 3:])
        # Half a chunk is not checked by the read itself, but known to be unchecked.
        part = ((0, 2), (0, 6), (0, 5))
        tensor.read(part)
        assert tensor.partly_covered([part]) == [0, 1]
        with pytest.raises(CorruptCheckpointError):
            tensor.check_chunks([0])
        with pytest.raises(CorruptCheckpointError):
            checkpoint.verify()


@pytest.mark.parametrize("size", [0, 2, 100])
def test_a_cut_file_is_found_by_its_size(path, size):  # C-67
    (path / "optimizer.safetensors").write_bytes((path / "optimizer.safetensors").read_bytes()[:size])
    with pytest.raises(CorruptCheckpointError, match=rf"optimizer\.safetensors has {size} bytes, expected"):
        open_checkpoint(path)
    with open_checkpoint(path, strict=False) as checkpoint:
        assert list(checkpoint.damaged) == ["optimizer.safetensors"]
        assert list(checkpoint.section("optimizer")) == []
        assert np.array_equal(checkpoint.tensor("w")[...], VALUES)


def test_an_absent_file_is_named(path):
    (path / "model.safetensors").unlink()
    with pytest.raises(CorruptCheckpointError, match=r"model\.safetensors is absent"):
        open_checkpoint(path)


def test_a_header_that_contradicts_the_manifest(path):
    manifest = json.loads((path / "checkpoint.json").read_text())
    entry = next(entry for entry in manifest["tensors"] if entry["name"] == "w" and entry["section"] == "model")
    entry["shape"], entry["chunks"] = [4, 5, 6], []
    (path / "checkpoint.json").write_text(json.dumps(manifest))
    with (
        open_checkpoint(path) as checkpoint,
        pytest.raises(CorruptCheckpointError, match=r"'w': the manifest says I32 \(4, 5, 6\), the header I32 \(4, 6, 5\)"),
    ):
        checkpoint.tensor("w")[0]
