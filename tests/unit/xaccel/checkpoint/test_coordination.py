from __future__ import annotations

import pytest

from xaccel.checkpoint.coordination import SoloCoordinator, on_first, together
from xaccel.errors import CheckpointError, CheckpointSpaceError


def test_results_in_rank_order(run_ranks):
    assert run_ranks(3, lambda run: together(run, "counting", lambda: run.process_index**2)) == [[0, 1, 4]] * 3
    assert run_ranks(3, lambda run: on_first(run, "naming", lambda: f"by {run.process_index}")) == ["by 0"] * 3


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [(ValueError("x"), CheckpointError, "ValueError: x"), (CheckpointSpaceError("full"), CheckpointSpaceError, "full")],
)
def test_one_failure_is_everyones(run_ranks, error, kind, message):
    def work(run):
        def fail():
            if run.process_index == 1:
                raise error

        return together(run, "saving", fail)

    first, own, last = run_ranks(3, work)
    assert own is error
    for other in (first, last):
        assert type(other) is kind and str(other) == f"saving failed on process 1: {message}"


def test_alone():
    assert together(SoloCoordinator(), "x", lambda: 7) == [7]
    with pytest.raises(ZeroDivisionError):
        on_first(SoloCoordinator(), "x", lambda: 1 // 0)
