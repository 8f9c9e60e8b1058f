"""Pairs alternate, warm-ups do not count, and the ratio is that of the pairs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.runner import PairResult, measure_pairs, record


class Clock:
    """Time that passes only when told."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_sides_alternate_and_warm_ups_do_not_count() -> None:
    clock, seen = Clock(), ""

    def side(letter: str, seconds: float):
        def run() -> None:
            nonlocal seen
            seen += letter
            clock.now += seconds

        return run

    result = measure_pairs("sleep", ("A", side("a", 2.0)), ("B", side("b", 1.0)), num_pairs=3, num_warmups=1, clock=clock)
    assert seen == "abababab"
    assert (result.baseline_seconds, result.candidate_seconds) == ((2.0,) * 3, (1.0,) * 3)
    assert (result.ratio, result.difference_seconds) == (0.5, -1.0)


def test_the_ratio_is_that_of_pairs_not_of_medians() -> None:
    drifting = PairResult(name="x", baseline="a", candidate="b", baseline_seconds=(1.0, 10.0, 100.0), candidate_seconds=(2.0, 20.0, 200.0))
    assert drifting.ratio == 2.0


def test_the_record_says_what_it_was_measured_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = PairResult(name="x", baseline="a", candidate="b", baseline_seconds=(1.0,), candidate_seconds=(2.0,))
    content = json.loads(record([result], "made", tmp_path / "results").read_text())
    assert content["results"][0]["ratio"] == 2.0
    assert content["provenance"]["versions"]["xaccel"] == "0.1.0"
    assert content["provenance"]["cores"] >= 1
    assert "ratio 2.000" in capsys.readouterr().out
