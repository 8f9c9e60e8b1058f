"""save_state and load_state over NumPy objects and threads as ranks."""

from __future__ import annotations

import os
import warnings

import numpy as np
import pytest

from xaccel.checkpoint.array_state import ArrayState
from xaccel.config.project import ProjectConfiguration
from xaccel.errors import CheckpointMismatchError, CheckpointNotFoundError, ConfigurationError, CorruptCheckpointError
from xaccel.prepared import Prepared
from xaccel.process.topology import ProcessTopology, ReplicaLayout
from xaccel.saving.manager import StateManager
from xaccel.testing.loopback import LoopbackArrays, LoopbackCollectives, run_threads


class NumpyAccess:
    """Live objects are `ArrayState`s themselves."""

    def __init__(self, process_index=0):
        self.random = ArrayState({"numpy": np.full(4, process_index)}, {"python": process_index})

    def model(self, model):
        return model

    def optimizer(self, optimizer, models):
        return optimizer

    def registered(self, value):
        return value.state

    def rng(self):
        return self.random


class Scale:
    name = "no"

    def __init__(self):
        self.scale = {"scale": 1024.0}

    def state_dict(self):
        return dict(self.scale)

    def load_state_dict(self, state):
        self.scale = dict(state)


class Scheduler:
    def __init__(self):
        self.state = {"last_epoch": 0, "best": float("inf"), "betas": (0.9, 0.99), "milestones": {30: 1}}

    def state_dict(self):
        return dict(self.state)

    def load_state_dict(self, state):
        self.state = dict(state)


class Registered:
    def __init__(self, value):
        self.state = ArrayState({"ema": np.full(3, value)}, {"count": value})

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        raise AssertionError("the adapter's ObjectState does this")


def manager(topology=None, *, number=0, project=None, arrays=None, backend="loopback"):
    topology = topology or ProcessTopology()
    prepared = Prepared()
    prepared.models.append(ArrayState(arrays or {"w": np.full((4, 2), number, np.float32), "b": np.full(2, number)}))
    prepared.optimizers.append(ArrayState({"exp_avg/w": np.full((4, 2), number + 0.5)}, {"steps": {}}))
    prepared.schedulers.append(Scheduler())
    made = StateManager(
        state=NumpyAccess(topology.process_index),
        arrays=LoopbackArrays(),
        collectives=LoopbackCollectives(topology),
        topology=topology,
        project=project or ProjectConfiguration(),
        prepared=prepared,
        precision=Scale(),
        replicas=ReplicaLayout(num_replicas=topology.num_processes, local_replicas=(topology.process_index,)),
        backend=backend,
        full_state_dict=lambda model: dict(model.arrays),
        save_object=lambda obj, path: None,
    )
    made.prepared = prepared
    return made


@pytest.fixture
def alone():
    return lambda work: run_threads(1, work)[0]


def automatic(folder, **options):
    return ProjectConfiguration(project_dir=str(folder), automatic_checkpoint_naming=True, **options)


def test_everything_comes_back(tmp_path, alone):
    def work(topology):
        first = manager(topology, number=7)
        first.register_for_checkpointing(Registered(7))
        first.prepared.schedulers[0].state["last_epoch"] = 3
        path = first.save_state(tmp_path / "c")
        second = manager(topology)
        second.register_for_checkpointing(Registered(0))
        second._precision.scale = {"scale": 1.0}
        report = second.load_state(path)
        assert (report.missing, report.unexpected, report.mismatched) == ((), (), ())
        return second

    second = alone(work)
    assert (second.prepared.models[0].arrays["w"] == 7).all()
    assert (second.prepared.optimizers[0].arrays["exp_avg/w"] == 7.5).all()
    assert second.prepared.schedulers[0].state == {"last_epoch": 3, "best": float("inf"), "betas": (0.9, 0.99), "milestones": {30: 1}}
    assert second.prepared.registered[0].state.values == {"count": 7} and (second.prepared.registered[0].state.arrays["ema"] == 7).all()
    assert second._precision.scale == {"scale": 1024.0}


def test_numbering_goes_on_in_a_new_process(tmp_path, alone):  # C-56
    def work(topology):
        first = manager(topology, number=0, project=automatic(tmp_path))
        first.save_state()
        first.prepared.models[0].arrays["b"][:] = 1
        first.save_state()
        second = manager(topology, number=9, project=automatic(tmp_path))
        report = second.load_state()
        assert (second.prepared.models[0].arrays["b"] == 1).all()
        return report.path, second.save_state()

    loaded, saved = alone(work)
    assert [os.path.basename(path) for path in (loaded, saved)] == ["checkpoint_1", "checkpoint_2"]


def test_a_new_run_saves_after_a_great_number(tmp_path, alone):  # C-60, without load_state
    def work(topology):
        manager(topology, project=automatic(tmp_path, iteration=126000)).save_state()
        return os.path.basename(manager(topology, project=automatic(tmp_path)).save_state())

    assert alone(work) == "checkpoint_126001"


def test_limits(tmp_path, alone):  # 18, C-55
    def work(topology):
        saver = manager(topology, project=automatic(tmp_path, iteration=8, total_limit=2))
        for _ in range(4):
            saver.save_state()

    alone(work)
    assert sorted(os.listdir(tmp_path / "checkpoints")) == ["checkpoint_10", "checkpoint_11"]


def test_a_limit_without_automatic_naming_warns_and_deletes_nothing(tmp_path, alone):  # C-57
    with pytest.warns(UserWarning, match="does nothing without automatic_checkpoint_naming"):
        project = ProjectConfiguration(total_limit=2)

    def work(topology):
        saver = manager(topology, project=project)
        for name in "abc":
            saver.save_state(tmp_path / name)

    alone(work)
    assert sorted(os.listdir(tmp_path)) == ["a", "b", "c"]


def test_a_half_written_newest_is_passed_over(tmp_path, alone):  # 20
    def work(topology):
        saver = manager(topology, number=5, project=automatic(tmp_path))
        saver.save_state()
        (tmp_path / "checkpoints/checkpoint_1").mkdir()
        return os.path.basename(saver.load_state().path), os.path.basename(saver.save_state())

    assert alone(work) == ("checkpoint_0", "checkpoint_2")


def test_no_folder_and_no_checkpoint(tmp_path, alone):
    def work(topology):
        with pytest.raises(ConfigurationError):
            manager(topology).save_state()
        with pytest.raises(CheckpointNotFoundError):
            manager(topology, project=automatic(tmp_path)).load_state()
        with pytest.raises(CheckpointNotFoundError):
            manager(topology).load_state(tmp_path / "nowhere")

    alone(work)


def test_all_differences_in_one_error_before_anything_changes(tmp_path, alone):
    def work(topology):
        path = manager(
            topology, number=3, arrays={"w": np.ones((4, 2), np.float32), "old": np.ones(2), "n": np.ones(2, np.int64)}
        ).save_state(tmp_path / "c")
        second = manager(topology, arrays={"w": np.zeros((4, 3), np.float32), "new": np.zeros(2), "n": np.zeros(2, np.float32)})
        with pytest.raises(CheckpointMismatchError) as caught:
            second.load_state(path)
        assert not any(array.any() for array in second.prepared.models[0].arrays.values())
        assert (second.prepared.optimizers[0].arrays["exp_avg/w"] == 0.5).all()
        return caught.value, second.load_state(path, strict=False), second

    error, report, second = alone(work)
    for found in (error, report):
        assert found.missing == ("model: new",) and found.unexpected == ("model: old",)
        assert (
            len(found.mismatched) == 2
            and "w" in found.mismatched[0]
            and "(4, 3)" in found.mismatched[0]
            and "(4, 2)" in found.mismatched[0]
        )
    assert (second.prepared.optimizers[0].arrays["exp_avg/w"] == 3.5).all()


def test_integers_of_another_width_do_not_match(tmp_path, alone):  # C-107
    def work(topology):
        path = manager(topology, arrays={"w": np.zeros((4, 2), np.float32), "n": np.array([2**40])}).save_state(tmp_path / "c")
        second = manager(topology, arrays={"w": np.zeros((4, 2), np.float32), "n": np.array([0], np.int32)})
        with pytest.raises(CheckpointMismatchError, match=r"n .*I32.*I64"):
            second.load_state(path)

    alone(work)


@pytest.mark.parametrize("tied", [True, False])
def test_one_name_of_a_tie(tmp_path, alone, tied):  # C-72
    def work(topology):
        writer = manager(topology, arrays={"head": np.full(3, 2.0)})
        path = writer.save_state(tmp_path / "d")
        second = manager(topology, arrays={"embed": np.zeros(3)} if tied else {"embed": np.zeros(3), "head": np.zeros(3)})
        if tied:
            second.prepared.models[0]._aliases = {"embed": ("head",)}
            second.load_state(path)
            return second.prepared.models[0].arrays["embed"].tolist()
        with pytest.raises(CheckpointMismatchError, match="embed") as caught:
            second.load_state(path)
        return caught.value.missing

    assert alone(work) == ([2.0, 2.0, 2.0] if tied else ("model: embed",))


def test_a_cut_random_state_is_an_error_that_names_the_file(tmp_path, alone):  # C-67
    def work(topology):
        path = manager(topology).save_state(tmp_path / "c")
        file = tmp_path / "c/process-00000.safetensors"
        file.write_bytes(file.read_bytes()[:2])
        with pytest.raises(CorruptCheckpointError, match=r"process-00000\.safetensors has 2 bytes"):
            manager(topology).load_state(path)

    alone(work)


def test_a_cut_random_state_is_reported_where_not_strict(tmp_path, alone):  # C-67
    def work(topology):
        path = manager(topology, number=4).save_state(tmp_path / "c")
        file = tmp_path / "c/process-00000.safetensors"
        file.write_bytes(file.read_bytes()[:2])
        second = manager(topology)
        with pytest.warns(UserWarning) as seen:
            report = second.load_state(path, strict=False)
        assert any("process-00000.safetensors has 2 bytes" in str(each.message) for each in seen)
        assert report.not_carried == ("random states: process-00000 is damaged",)
        assert (second.prepared.models[0].arrays["w"] == 4).all()

    alone(work)


@pytest.mark.parametrize(("writers", "readers"), [(1, 2), (3, 2), (2, 2)])
def test_any_number_of_processes(tmp_path, writers, readers):
    def write(topology):
        saver = manager(topology, number=6)
        if topology.process_index:
            for state in (saver.prepared.models[0], saver.prepared.optimizers[0]):
                state._owned = dict.fromkeys(state.arrays, ())
        return saver.save_state(tmp_path / "c")

    def read(topology):
        second = manager(topology)
        report = second.load_state(tmp_path / "c")
        return second.prepared.models[0].arrays["w"].max(), report.not_carried, second._state.random.values

    run_threads(writers, write)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # threads share one filter; what is asserted is the report
        results = run_threads(readers, read)
    for index, (value, lost, scalars) in enumerate(results):
        assert value == 6
        assert bool(lost) == (writers != readers)
        assert writers != readers or scalars == {"python": index}


def test_the_differences_of_all_ranks_are_raised_on_all(tmp_path):
    run_threads(1, lambda topology: manager(topology, arrays={"w": np.zeros(3)}).save_state(tmp_path / "c"))

    def read(topology):
        names = {"w": np.zeros(3), f"only_{topology.process_index}": np.zeros(1)}
        with pytest.raises(CheckpointMismatchError) as caught:
            manager(topology, arrays=names).load_state(tmp_path / "c")
        return caught.value.missing

    assert run_threads(2, read) == [("model: only_0", "model: only_1")] * 2


def test_a_corrupt_byte_on_one_rank_is_raised_on_all(tmp_path):
    def write(topology):
        return manager(topology, number=1, arrays={"w": np.arange(4.0)}).save_state(tmp_path / "c")

    run_threads(1, write)
    file = tmp_path / "c/model.safetensors"
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)

    def read(topology):
        arrays = {"w": np.zeros(4)}
        second = manager(topology, arrays=arrays)
        if topology.process_index == 1:
            second.prepared.models[0].load = lambda read, scalars: []  # needs none of these bytes
        with pytest.raises(CorruptCheckpointError):
            second.load_state(tmp_path / "c")
        return "raised"

    assert run_threads(2, read) == ["raised"] * 2


def test_files_of_a_save_hook_are_in_the_checkpoint(tmp_path, alone):
    def work(topology):
        saver = manager(topology)
        seen = []

        def hook(models, weights, output_dir):
            seen.append((models, [sorted(each) for each in weights]))
            os.makedirs(output_dir, exist_ok=True)
            with open(os.path.join(output_dir, "config.json"), "w") as file:
                file.write("{}")

        handle = saver.register_save_state_pre_hook(hook)
        path = saver.save_state(tmp_path / "c")
        assert os.path.exists(os.path.join(path, "config.json"))
        handle.remove()
        saver.save_state(tmp_path / "d")
        return seen, saver

    seen, saver = alone(work)
    assert seen == [(saver.prepared.models, [["b", "w"]])]


def test_a_save_hook_takes_over_a_model(tmp_path, alone):
    def work(topology):
        saver = manager(topology)
        saver.register_save_state_pre_hook(lambda models, weights, output_dir: weights.pop())
        path = saver.save_state(tmp_path / "c")
        assert not os.path.exists(os.path.join(path, "model.safetensors"))
        loader = manager(topology, number=3)
        loader.register_load_state_pre_hook(lambda models, input_dir: models.pop())
        loader.load_state(path)
        return loader.prepared.models[0].arrays["b"].tolist()

    assert alone(work) == [3, 3]


def test_objects_without_state_are_refused_at_registration(alone):
    with pytest.raises(ConfigurationError, match="object"):
        alone(lambda topology: manager(topology).register_for_checkpointing(object()))
