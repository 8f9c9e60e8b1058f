from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

from xaccel.config.data import DataLoaderConfiguration
from xaccel.data.active import ActiveLoaders
from xaccel.data.loader import LoaderContext, PlannedLoader, skip_first_batches
from xaccel.data.source import ArrayLoader, BatchStream, MapSource
from xaccel.errors import DataError
from xaccel.process.topology import ProcessTopology, ReplicaLayout


class HostFeed:
    def place(self, batch: Any, layout: ReplicaLayout) -> Any:
        return batch


def context(num_replicas: int = 1, local: tuple[int, ...] | None = None, active: ActiveLoaders | None = None, seed: int = 7, **config: Any):
    return LoaderContext(
        replicas=ReplicaLayout(num_replicas=num_replicas, local_replicas=local or tuple(range(num_replicas))),
        config=DataLoaderConfiguration(**config),
        feed=HostFeed(),
        collectives=None,
        active=active or ActiveLoaders(),
        seed=seed,
        topology=ProcessTopology(),
    )


def planned(num_samples: int, batch_size: int, given: LoaderContext, **options: Any) -> PlannedLoader:
    return PlannedLoader(MapSource(ArrayLoader({"x": np.arange(num_samples)}, batch_size, **options), given), given)


def ids(loader: PlannedLoader) -> list[list[int]]:
    return [batch["x"].tolist() for batch in loader]


def kept(loader: PlannedLoader) -> list[int]:
    result: list[int] = []
    for batch in loader:
        rows = batch["x"].tolist()
        result += rows[: loader.remainder] if loader.remainder >= 0 else rows
    return result


def test_the_end_is_known_before_the_last_batch_is_used():
    loader = planned(18, 4, context(2))
    assert [loader.end_of_dataloader for _ in loader] == [False, False, True]
    assert len(loader) == 3
    assert loader.total_batch_size == 8
    assert loader.total_dataset_length == 18
    assert kept(loader) == list(range(18))


def test_every_epoch_is_another_permutation():
    loader = planned(20, 3, context(2), shuffle=True)
    first, second = kept(loader), kept(loader)
    assert sorted(first) == sorted(second) == list(range(20))
    assert first != second


def test_an_abandoned_epoch_begins_again_and_one_left_in_its_last_batch_is_over():
    loader = planned(8, 4, context(), shuffle=True)
    whole = ids(planned(8, 4, context(), shuffle=True))
    for _ in loader:
        break
    assert loader.epoch == 0
    assert ids(loader) == whole
    for _ in loader:
        if loader.end_of_dataloader:
            break
    assert loader.epoch == 2


@pytest.mark.parametrize(("replicas", "batch_size"), [(2, 4), (4, 2), (1, 8), (4, 3)])
def test_resume_is_the_rest_of_the_uninterrupted_run(replicas, batch_size):
    original = planned(64, 4, context(2), shuffle=True)
    epochs = [kept(original) for _ in range(3)]
    running = planned(64, 4, context(2), shuffle=True)
    kept(running)
    state: dict[str, Any] = {}
    for step, _ in enumerate(running):
        if step == 2:
            state = running.state_dict()
            break
    assert state["samples"] == 24
    fresh = planned(64, batch_size, context(replicas, seed=99), shuffle=True)
    fresh.load_state_dict(state)
    assert fresh.state_dict() == state
    assert kept(fresh) == epochs[1][24:]
    assert kept(fresh) == epochs[2]


def test_a_second_save_in_a_resumed_epoch_does_not_slide():
    loader = planned(40, 4, context(), shuffle=True)
    whole = kept(planned(40, 4, context(), shuffle=True))
    for stop in (2, 3):
        for step, _ in enumerate(loader, start=1):
            if step == stop:
                state = loader.state_dict()
                break
        loader = planned(40, 4, context(), shuffle=True)
        loader.load_state_dict(state)
    assert kept(loader) == whole[20:]


def test_saved_at_the_end_of_an_epoch_whole_epochs_follow():
    loader = planned(16, 4, context(), shuffle=True)
    epochs = [kept(planned_) for planned_ in [loader] for _ in range(3)]
    again = planned(16, 4, context(), shuffle=True)
    for _ in again:
        state = again.state_dict()
    assert state == again.state_dict() == {"seed": 7, "epoch": 1, "samples": 0}
    fresh = planned(16, 4, context(), shuffle=True)
    fresh.load_state_dict(state)
    assert [kept(fresh), kept(fresh)] == epochs[1:]


def test_skipping_after_load_state_counts_from_the_beginning_of_the_epoch():
    whole = planned(64, 4, context(2), shuffle=True)
    expected = [kept(whole), kept(whole)]
    fresh = planned(64, 4, context(2), shuffle=True)
    fresh.load_state_dict({"seed": 7, "epoch": 0, "samples": 24})
    assert kept(skip_first_batches(fresh, 3)) == expected[0][24:]
    assert kept(fresh) == expected[1]


def test_a_save_while_the_skipping_loader_is_iterated_has_its_position():
    loader = planned(64, 4, context(2), shuffle=True)
    kept(loader)
    for _ in skip_first_batches(loader, 2):
        break
    assert loader.state_dict() == {"seed": 7, "epoch": 1, "samples": 24}


def test_skipping_in_whole_rounds_with_drop_last():
    loader = planned(18, 4, context(2), drop_last=True)
    skipping = skip_first_batches(loader, 1)
    assert len(skipping) == 1
    assert ids(skipping) == [list(range(8, 16))]
    assert len(ids(loader)) == 2


def test_what_is_skipped_is_not_read():
    class Counting:
        shape = (1_000_000,)
        read = 0

        def __len__(self) -> int:
            return 1_000_000

        def __getitem__(self, rows: Any) -> Any:
            self.read += len(rows)
            return rows

    rows = Counting()
    given = context(2)
    loader = PlannedLoader(MapSource(ArrayLoader({"x": rows}, 8, shuffle=True), given), given)
    loader.load_state_dict({"seed": 1, "epoch": 0, "samples": 900_000})
    next(iter(loader))
    assert rows.read == 16


def test_an_inner_loader_that_was_left_is_not_the_current_one():
    active = ActiveLoaders()
    given = context(active=active)
    outer, inner = planned(12, 4, given), planned(5, 4, given)
    seen = []
    for _ in outer:
        held = iter(inner)
        next(held)
        seen.append(active.current)
    assert seen == [inner] * 3
    steps = iter(outer)
    next(steps)
    held = iter(inner)
    next(held)
    next(steps)
    assert active.current is outer
    steps.close()
    assert active.current is None


def test_nothing_keeps_an_abandoned_loader_alive():
    active = ActiveLoaders()
    loader = planned(12, 4, context(active=active))
    for _ in loader:
        break
    reference = weakref.ref(loader)
    del loader
    gc.collect()
    assert reference() is None
    assert active.current is None


def test_a_state_of_something_else_is_refused():
    with pytest.raises(DataError, match="lacks epoch, samples, seed"):
        planned(4, 2, context()).load_state_dict({})


class Batches:
    def __init__(self, *batches: Any):
        self.batches = batches

    def __iter__(self) -> Any:
        return iter(self.batches)


def stream(given: LoaderContext, *batches: Any, **options: Any) -> PlannedLoader:
    return PlannedLoader(BatchStream(Batches(*batches), given, **options), given)


def test_replicas_take_turns_at_ready_batches():
    first, second = np.zeros((2, 5)), np.ones((2, 7))
    for replica, expected in enumerate((first, second)):
        (given,) = stream(context(2, (replica,)), first, second)
        assert given is expected


def test_a_stream_has_no_length_and_knows_its_end():
    loader = stream(context(), np.zeros(3), np.zeros(3))
    with pytest.raises(TypeError, match="no length"):
        len(loader)
    assert [loader.end_of_dataloader for _ in loader] == [False, True]


@pytest.mark.parametrize("replica", [0, 1])
def test_without_even_batches_a_replica_that_has_less_ends_earlier(replica):
    loader = stream(context(2, (replica,), even_batches=False), *(np.full(2, index) for index in range(3)))
    assert [loader.end_of_dataloader for _ in loader] == [[False, True], [True]][replica]


def test_one_global_array_has_equal_rows_for_every_replica():
    batches = [{"x": np.arange(start, min(start + 4, 22))} for start in range(0, 22, 4)]
    loader = stream(context(4), *batches, equal_rows=True)
    assert [len(batch["x"]) for batch in loader] == [16, 16]
    assert kept(loader) == list(range(22))


def test_a_resumed_stream_continues():
    loader = stream(context(), *(np.full(2, index) for index in range(4)))
    loader.load_state_dict({"seed": 0, "epoch": 0, "samples": 4})
    assert [int(batch[0]) for batch in loader] == [2, 3]


def test_any_iterable_can_be_skipped_into():
    assert list(skip_first_batches([1, 2, 3], 1)) == [2, 3]
    assert len(skip_first_batches([1, 2, 3], 5)) == 0
