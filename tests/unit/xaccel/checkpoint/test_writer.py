from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from xaccel.checkpoint.array_state import ArrayState
from xaccel.checkpoint.chunks import full_bounds
from xaccel.checkpoint.coordination import SoloCoordinator
from xaccel.checkpoint.layout import open_checkpoint
from xaccel.checkpoint.manifest import Manifest
from xaccel.checkpoint.plan import Section
from xaccel.checkpoint.storage import LocalStorage
from xaccel.checkpoint.writer import CheckpointWriter, write_checkpoint
from xaccel.errors import CheckpointError, CheckpointSpaceError

rng = np.random.default_rng(0)


def some_arrays() -> dict[str, np.ndarray]:
    return {
        "layer.weight": rng.standard_normal((12, 5)).astype(np.float32),
        "layer.bias": rng.standard_normal(12).astype(ml_dtypes.bfloat16),
        "fp8": rng.standard_normal((3, 4)).astype(ml_dtypes.float8_e4m3fn),
        "fp8_wide": rng.standard_normal((3, 4)).astype(ml_dtypes.float8_e5m2),
        "count": np.array(2**40, np.int64),
        "mask": np.array([True, False, True]),
        "empty": np.zeros((0, 7), np.float32),
        "half": rng.standard_normal((2, 3, 4)).astype(np.float16),
    }


def save(target: Path, arrays: dict[str, np.ndarray], storage: LocalStorage | None = None, **draft: int) -> Path:
    return write_checkpoint(target, [Section("model", ArrayState(arrays))], Manifest(**draft), SoloCoordinator(), storage)


def same(first: np.ndarray, second: np.ndarray) -> bool:
    return first.dtype == second.dtype and first.shape == second.shape and first.tobytes() == second.tobytes()


def test_all_dtypes_come_back_bit_equal(tmp_path):
    arrays = some_arrays()
    path = save(tmp_path / "checkpoint_3", arrays, iteration=3, step=17)
    with open_checkpoint(path) as checkpoint:
        assert checkpoint.manifest.iteration == 3 and checkpoint.manifest.step == 17
        section = checkpoint.section("model")
        assert list(section) == list(arrays)
        for name, array in arrays.items():
            assert same(section[name].read(), array), name
        checkpoint.verify()
    assert sorted(os.listdir(path)) == ["checkpoint.json", "model.safetensors"]
    assert os.listdir(tmp_path) == ["checkpoint_3"]


def test_int64_keeps_all_64_bits(tmp_path):  # C-107
    with open_checkpoint(save(tmp_path / "c", {"n": np.array([2**40, -(2**62)])})) as checkpoint:
        assert checkpoint.tensor("n")[...].tolist() == [2**40, -(2**62)]


def test_the_file_is_plain_safetensors(tmp_path):
    arrays = {name: array for name, array in some_arrays().items() if not name.startswith("fp8")}
    path = save(tmp_path / "c", arrays)
    loaded = load_file(path / "model.safetensors")
    assert all(same(loaded[name], array) for name, array in arrays.items())
    with safe_open(path / "model.safetensors", "numpy") as file:
        assert file.metadata() == {"format": "pt"}
    header_bytes = int.from_bytes((path / "model.safetensors").read_bytes()[:8], "little")
    assert (8 + header_bytes) % 64 == 0


def rows(index: int, count: int, size: int) -> tuple[int, int]:
    return size * index // count, size * (index + 1) // count


def sharded(arrays: dict[str, np.ndarray], index: int, count: int, dim_of: dict[str, int]) -> ArrayState:
    owned = {}
    for name, array in arrays.items():
        bounds = list(full_bounds(array.shape))
        if name in dim_of:
            bounds[dim_of[name]] = rows(index, count, array.shape[dim_of[name]])
            owned[name] = (tuple(bounds),)
        else:
            owned[name] = (tuple(bounds),) if index == 0 else ()
    return ArrayState(arrays, owned=owned)


@pytest.mark.parametrize("num_processes", [1, 2, 3, 4])
def test_any_number_of_ranks_writes_the_same_files(tmp_path, run_ranks, num_processes):
    arrays = some_arrays()
    dims = {"layer.weight": 1, "layer.bias": 0, "half": 1, "fp8": 0}

    def work(coordinator):
        index, count = coordinator.process_index, coordinator.num_processes
        own = ArrayState({"state": np.full(4, index)})
        sections = [Section("model", sharded(arrays, index, count, dims)), Section(f"process-{index:05d}", own, scope="process")]
        return write_checkpoint(tmp_path / "c", sections, Manifest(), coordinator)

    assert run_ranks(num_processes, work) == [tmp_path / "c"] * num_processes
    save(tmp_path / "alone", arrays)
    assert (tmp_path / "c/model.safetensors").read_bytes() == (tmp_path / "alone/model.safetensors").read_bytes()
    with open_checkpoint(tmp_path / "c") as checkpoint:
        checkpoint.verify()
        assert all(same(checkpoint.section("model")[name].read(), array) for name, array in arrays.items())
        for index in range(num_processes):
            assert checkpoint.section(f"process-{index:05d}")["state"].read().tolist() == [index] * 4


def test_an_error_on_one_rank_is_raised_on_all(tmp_path, run_ranks):
    class Failing(ArrayState):
        def read(self, name, bounds):
            raise RuntimeError("device lost")

    def work(coordinator):
        kind = Failing if coordinator.process_index == 1 else ArrayState
        arrays = {"a": np.arange(4.0)}
        owned = {"a": (((2 * coordinator.process_index, 2 * coordinator.process_index + 2),),)}
        return write_checkpoint(tmp_path / "c", [Section("model", kind(arrays, owned=owned))], Manifest(), coordinator)

    first, second = run_ranks(2, work)
    assert isinstance(first, CheckpointError) and "process 1: RuntimeError: device lost" in str(first)
    assert isinstance(second, RuntimeError)
    assert os.listdir(tmp_path) == []


def test_ranks_that_describe_other_tensors_all_raise(tmp_path, run_ranks):
    def work(coordinator):
        arrays = {"a": np.zeros(2 + coordinator.process_index)}
        return write_checkpoint(tmp_path / "c", [Section("model", ArrayState(arrays))], Manifest(), coordinator)

    for error in run_ranks(3, work):
        assert isinstance(error, CheckpointError) and "processes [1, 2]" in str(error)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("owned", "message"), [((((0, 3),),), "1 of 4 elements"), ((((0, 3),), ((2, 4),)), "overlap")])
def test_slices_that_do_not_tile_are_refused(tmp_path, owned, message):
    state = ArrayState({"a": np.arange(4)}, owned={"a": owned})
    with pytest.raises(CheckpointError, match=message):
        write_checkpoint(tmp_path / "c", [Section("model", state)], Manifest(), SoloCoordinator())
    assert os.listdir(tmp_path) == []


def test_a_slice_of_another_dtype_than_described_is_refused(tmp_path):
    class Lying(ArrayState):
        def read(self, name, bounds):
            return super().read(name, bounds).astype(np.float64)

    with pytest.raises(CheckpointError, match=r"'a'.*F32.*float64"):
        write_checkpoint(tmp_path / "c", [Section("model", Lying({"a": np.zeros(3, np.float32)}))], Manifest(), SoloCoordinator())


def test_saving_over_an_existing_checkpoint_swaps(tmp_path):
    save(tmp_path / "c", {"a": np.zeros(3), "b": np.zeros(2)})
    save(tmp_path / "c", {"a": np.ones(3)})
    with open_checkpoint(tmp_path / "c") as checkpoint:
        assert list(checkpoint.section("model")) == ["a"]
        assert checkpoint.tensor("a")[:].tolist() == [1, 1, 1]
    assert os.listdir(tmp_path) == ["c"]


def test_leftovers_of_dead_saves_go_and_nothing_else(tmp_path):
    dead = tmp_path / f".c.tmp-{'0' * 32}"
    kept = [tmp_path / name for name in (".c.tmp-notes", "c.tmp", ".c.tmp-" + "0" * 31, "checkpoint_copy")]
    for folder in (dead, *kept):
        folder.mkdir()
        (folder / "x").write_text("x")
    save(tmp_path / "c", {"a": np.zeros(3)})
    assert not dead.exists()
    assert all(folder.exists() for folder in kept)


def test_a_living_save_is_not_swept(tmp_path):
    with CheckpointWriter(tmp_path / "slow", SoloCoordinator()) as slow:
        slow.write([Section("model", ArrayState({"a": np.ones(3)}))])
        save(tmp_path / "fast", {"a": np.zeros(3)})
        slow.commit(Manifest())
    assert sorted(os.listdir(tmp_path)) == ["fast", "slow"]


def test_a_caller_adds_files_of_its_own(tmp_path):
    with CheckpointWriter(tmp_path / "c", SoloCoordinator()) as writer:
        (writer.directory / "config.json").write_text("{}")
        writer.write([Section("model", ArrayState({"a": np.ones(3)}))])
        writer.commit(Manifest())
    assert (tmp_path / "c/config.json").read_text() == "{}"


class FullDisk(LocalStorage):
    """A disk that has room by its own account, and is full when it comes to writing."""

    def write_at(self, path, offset, data):
        if len(data) > 10_000:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)
        super().write_at(path, offset, data)


class SmallDisk(LocalStorage):
    def free_bytes(self, path):
        return 100


@pytest.mark.parametrize("storage", [FullDisk(), SmallDisk()])
def test_a_full_disk_is_a_clear_error_and_leaves_nothing(tmp_path, storage):
    save(tmp_path / "c", {"a": np.zeros(3)})
    with pytest.raises(CheckpointSpaceError, match=r"needs 160\d\d\d bytes.* bytes are free"):
        save(tmp_path / "c", {"a": np.zeros(20_000)}, storage)
    assert os.listdir(tmp_path) == ["c"]
    with open_checkpoint(tmp_path / "c") as checkpoint:
        assert checkpoint.tensor("a").shape == (3,)


def test_sharded_files_have_an_index_that_hugging_face_reads(tmp_path):
    arrays = {f"w{index}": np.full((4, 64), index, np.float32) for index in range(5)}
    section = Section("model", ArrayState(arrays), max_shard_bytes=2048)
    path = write_checkpoint(tmp_path / "c", [section], Manifest(), SoloCoordinator())
    index = json.loads((path / "model.safetensors.index.json").read_text())
    assert index["metadata"]["total_size"] == 5 * 1024
    assert index["weight_map"]["w0"] == "model-00001-of-00003.safetensors"
    assert index["weight_map"]["w4"] == "model-00003-of-00003.safetensors"
    for name, file in index["weight_map"].items():
        assert same(load_file(path / file)[name], arrays[name])
    with open_checkpoint(path) as checkpoint:
        checkpoint.verify()
        assert same(checkpoint.tensor("w3").read(), arrays["w3"])


def test_a_file_in_the_way_is_not_overwritten(tmp_path):
    (tmp_path / "c").write_text("notes")
    with pytest.raises(CheckpointError, match="a file of that name exists"):
        save(tmp_path / "c", {"a": np.zeros(3)})
    assert (tmp_path / "c").read_text() == "notes"
