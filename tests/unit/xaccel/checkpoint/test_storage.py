from __future__ import annotations

import os

import pytest

from xaccel.checkpoint import storage as room
from xaccel.checkpoint.leftovers import aside_of, is_leftover, sweep, temporary_name, try_lock
from xaccel.checkpoint.storage import LocalStorage, swap_by_two_renames


@pytest.fixture
def storage():
    made = LocalStorage()
    yield made
    made.close()


def folder(path, text):
    path.mkdir()
    (path / "file").write_text(text)
    return str(path)


def test_bytes_go_where_they_are_told(tmp_path, storage):
    path = str(tmp_path / "f")
    storage.create(path, 10)
    storage.write_at(path, 4, memoryview(b"abc"))
    into = bytearray(8)
    assert storage.read_at(path, 3, memoryview(into)) == 7  # the file ends
    assert into[:7] == b"\0abc\0\0\0" and storage.size(path) == 10
    with pytest.raises(FileExistsError):
        storage.create(path, 1)


def test_commit_to_a_new_name_and_over_an_old_one(tmp_path, storage):
    storage.commit(folder(tmp_path / "new", "1"), str(tmp_path / "target"))
    storage.commit(folder(tmp_path / "new", "2"), str(tmp_path / "target"))
    assert (tmp_path / "target/file").read_text() == "2" and os.listdir(tmp_path) == ["target"]


def test_commit_where_the_file_system_cannot_exchange(tmp_path, storage, monkeypatch):
    monkeypatch.setattr(room, "exchange", lambda first, second: False)
    folder(tmp_path / "target", "old")
    aside = temporary_name(tmp_path / "target")
    storage.commit(folder(aside, "new"), str(tmp_path / "target"))
    assert (tmp_path / "target/file").read_text() == "new" and os.listdir(tmp_path) == ["target"]


def test_a_crash_between_two_renames_loses_nothing(tmp_path, storage):
    target, new = tmp_path / "target", temporary_name(tmp_path / "target")
    folder(target, "old")
    folder(new, "new")
    os.rename(target, str(new).replace(".tmp-", ".old-"))  # and here the power goes
    assert (aside_of(target) / "file").read_text() == "old"
    assert len(sweep(tmp_path, storage)) == 2
    assert (target / "file").read_text() == "old" and os.listdir(tmp_path) == ["target"]
    assert aside_of(target) is None


def test_the_old_one_goes_once_the_new_one_stands(tmp_path, storage):
    target = tmp_path / "target"
    folder(target, "old")
    aside = swap_by_two_renames(folder(temporary_name(target), "new"), str(target))
    assert os.path.exists(aside) and (target / "file").read_text() == "new"
    sweep(tmp_path, storage)
    assert os.listdir(tmp_path) == ["target"] and (target / "file").read_text() == "new"


def test_locked_folders_are_left_alone(tmp_path, storage):
    living = temporary_name(tmp_path / "c")
    living.mkdir()
    lock = try_lock(living)
    assert try_lock(living) is None and sweep(tmp_path, storage) == [] and is_leftover(living)
    os.close(lock)
    assert sweep(tmp_path, storage) == [living.name] and not living.exists()


def test_free_bytes_of_what_does_not_exist_yet(tmp_path, storage):
    assert storage.free_bytes(str(tmp_path / "a/b/c")) > 0
