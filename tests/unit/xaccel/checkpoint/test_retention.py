from __future__ import annotations

import os

import numpy as np
import pytest

from xaccel.checkpoint.array_state import ArrayState
from xaccel.checkpoint.coordination import SoloCoordinator
from xaccel.checkpoint.layout import open_checkpoint
from xaccel.checkpoint.manifest import Manifest
from xaccel.checkpoint.plan import Section
from xaccel.checkpoint.retention import apply_limit, checkpoint_name, newest_checkpoint, next_iteration, numbered_checkpoints
from xaccel.checkpoint.writer import write_checkpoint
from xaccel.errors import CheckpointNotFoundError


def save(folder, number):
    state = ArrayState({"n": np.array(number)})
    write_checkpoint(folder / checkpoint_name(number), [Section("model", state)], Manifest(iteration=number), SoloCoordinator())


def test_eight_to_eleven_with_limit_two(tmp_path):  # 18
    for number in (8, 9, 10, 11):
        save(tmp_path, number)
        apply_limit(tmp_path, 2)
    assert list(numbered_checkpoints(tmp_path)) == [10, 11]
    assert newest_checkpoint(tmp_path).name == "checkpoint_11"
    assert sorted(os.listdir(tmp_path)) == ["checkpoint_10", "checkpoint_11"]


def test_twelve_saves_with_limit_three(tmp_path):  # C-55, C-58
    for number in range(12):
        save(tmp_path, number)
        assert len(numbered_checkpoints(tmp_path)) == min(number + 1, 4)  # the new one is complete before an old one goes
        gone = apply_limit(tmp_path, 3)
        assert [path.name for path in gone] == ([f"checkpoint_{number - 3}"] if number >= 3 else [])
    assert list(numbered_checkpoints(tmp_path)) == [9, 10, 11]


def test_a_half_written_newest_is_not_offered(tmp_path):  # 20
    save(tmp_path, 1)
    (tmp_path / "checkpoint_2").mkdir()
    (tmp_path / "checkpoint_2/model.safetensors").write_bytes(bytes(100))
    save(tmp_path, 3)
    (tmp_path / "checkpoint_3/model.safetensors").write_bytes(b"short")
    assert newest_checkpoint(tmp_path).name == "checkpoint_1"
    # Nothing is overwritten, and what is not complete neither counts nor goes.
    assert next_iteration(tmp_path) == 4
    save(tmp_path, 4)
    assert [path.name for path in apply_limit(tmp_path, 1)] == ["checkpoint_1"]
    assert list(numbered_checkpoints(tmp_path)) == [2, 3, 4]


def test_a_new_run_beside_a_great_number_goes_on_after_it(tmp_path):  # C-60
    save(tmp_path, 126000)
    assert next_iteration(tmp_path, at_least=0) == 126001
    assert next_iteration(tmp_path, at_least=200000) == 200000
    assert next_iteration(tmp_path / "absent", at_least=7) == 7


def test_copies_are_neither_counted_nor_removed(tmp_path):  # C-61
    for number in (1, 2):
        save(tmp_path, number)
    os.rename(tmp_path / "checkpoint_1", tmp_path / "checkpoint_1_backup")
    save(tmp_path, 3)
    apply_limit(tmp_path, 1)
    assert sorted(os.listdir(tmp_path)) == ["checkpoint_1_backup", "checkpoint_3"]
    with open_checkpoint(tmp_path / "checkpoint_1_backup") as checkpoint:
        assert checkpoint.tensor("n")[()] == 1


def test_no_checkpoint_at_all(tmp_path):
    with pytest.raises(CheckpointNotFoundError, match="no complete checkpoint"):
        newest_checkpoint(tmp_path)
