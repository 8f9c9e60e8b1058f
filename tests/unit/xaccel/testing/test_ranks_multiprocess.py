"""The harness itself: results, failures, deaths and time limits."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

from xaccel.testing.ranks import RankError


def rank_and(value: int) -> tuple[int, int]:
    return int(os.environ.get("RANK", "0")), value


def fail_on_one() -> None:
    if os.environ["RANK"] == "1":
        raise ValueError("on purpose")


def die_on_one() -> None:
    if os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)


def sleep_on_one() -> None:
    if os.environ["RANK"] == "1":
        time.sleep(60)


@pytest.fixture
def pool(ranks: Any) -> Any:
    return ranks("torch", 2)


def test_results_in_rank_order(pool: Any) -> None:
    assert pool.run(rank_and, 5) == [(0, 5), (1, 5)]


def test_a_failing_rank_shows_its_traceback_and_the_next_case_runs(pool: Any) -> None:
    with pytest.raises(RankError, match=r"rank\(s\) 1:(.|\n)*fail_on_one(.|\n)*on purpose"):
        pool.run(fail_on_one)
    assert pool.run(rank_and, 6) == [(0, 6), (1, 6)]


def test_a_dead_rank_is_named(pool: Any) -> None:
    with pytest.raises(RankError, match="rank 1 died with status -9"):
        pool.run(die_on_one)


def test_a_rank_past_the_limit_is_named_with_its_stack(pool: Any) -> None:
    with pytest.raises(RankError, match=r"within 1 s from rank\(s\) \[1\](.|\n)*sleep_on_one"):
        pool.run(sleep_on_one, timeout_seconds=1)
