"""DDP on two processes against one process that has the whole batch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xaccel.testing.ranks import load_module

runs = load_module(Path(__file__).parents[1] / "torch_runs.py")


@pytest.fixture(scope="module", autouse=True)
def fresh_ranks_for_others(ranks: Any) -> Iterator[None]:
    yield
    # A process group made anew in the same processes would find the old one's addresses in the store.
    ranks("torch", 2).restart()


def assert_equal(found: dict[str, Any], expected: dict[str, Any], tolerance: float = 1e-9) -> None:
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_allclose(found[name], expected[name], rtol=0, atol=tolerance, err_msg=name)


def alone(parts: list[list[int]], **options: Any) -> dict[str, Any]:
    """One process with the rows of all ranks."""
    return runs.train([[sum(sizes)] for sizes in parts], options.pop("steps", 10), len(parts), **{"options": {}, **options})


@pytest.mark.parametrize("micro_steps", [1, 2])
def test_two_processes_equal_one_with_the_whole_batch(ranks: Any, micro_steps: int) -> None:
    parts = [[4, 4]] * micro_steps
    found = ranks("torch", 2).run(runs.train, parts, 10, micro_steps, False, {})
    assert found[0] == found[1]
    assert_equal(found[0], alone(parts, with_items=False))


def test_items_weigh_uneven_ranks_and_micro_batches_exactly(ranks: Any) -> None:
    parts = [[2, 5], [6, 0], [1, 3]]
    found = ranks("torch", 2).run(runs.train, parts, 5, 3, True, {})
    assert found[0] == found[1]
    assert_equal(found[0], runs.train([[17]], 5, 1, True, {}))


@pytest.mark.parametrize(("with_items", "gradient"), [(True, 2.5625), (False, 2.5)])
def test_token_weighting(ranks: Any, with_items: bool, gradient: float) -> None:
    assert ranks("torch", 2).run(runs.weighted, with_items) == [pytest.approx(gradient)] * 2


def test_gradients_are_reduced_once_a_window(ranks: Any) -> None:
    assert ranks("torch", 2).run(runs.count_reductions) == [2, 2]


@pytest.mark.parametrize(("kind", "expected"), [("sync", [1.5, 1.5]), ("no_sync", [1.0, 2.0]), ("trigger", [3.0, 3.0])])
def test_when_gradients_are_reduced(ranks: Any, kind: str, expected: list[float]) -> None:
    assert [found[0] for found in ranks("torch", 2).run(runs.gradients_after, kind)] == expected


def test_uneven_inputs(ranks: Any) -> None:
    # Gradients 1, then twice 1/2: torch's join keeps dividing by the number of processes at the start.
    assert ranks("torch", 2).run(runs.uneven_inputs) == [[-0.0], [-0.0]]


def test_what_is_wrapped(ranks: Any) -> None:
    for found in ranks("torch", 2).run(runs.wrapping):
        assert found == {
            "type": "MULTI_CPU",
            "wrapped": True,
            "twice": True,
            "inner": True,
            "options": (3 * 2**20, True, True),
            "frozen": False,
            "evaluation": False,
            "names": ["bias", "weight"],
        }


@pytest.mark.parametrize(("hook", "wrapper"), [("fp16", "no"), ("power_sgd", "no"), ("batched_power_sgd", "fp16")])
def test_compression_hooks(ranks: Any, hook: str, wrapper: str) -> None:
    for found in ranks("torch", 2).run(runs.compressed, hook, wrapper):
        np.testing.assert_allclose(found, [1.5, 1.5], atol=1e-3)


@pytest.mark.parametrize(
    ("hook", "wrapper", "message"),
    [("bf16", "no", "needs nccl"), ("no", "fp16", "none is given"), ("fp16", "power_sgd", "expected fp16 or bf16")],
)
def test_hooks_that_cannot_be(ranks: Any, hook: str, wrapper: str, message: str) -> None:
    for found in ranks("torch", 2).run(runs.refused, hook, wrapper):
        assert message in found


@pytest.mark.parametrize(("split_batches", "rates"), [(False, [1.0, 0.25, 0.25, 0.0625]), (True, [1.0, 0.5, 0.5, 0.25])])
def test_schedulers_follow_the_optimizer(ranks: Any, split_batches: bool, rates: list[float]) -> None:
    assert ranks("torch", 2).run(runs.scheduler_moves, split_batches) == [rates] * 2


def test_an_overflow_on_one_rank_skips_on_all(ranks: Any) -> None:
    assert ranks("torch", 2).run(runs.fp16_overflow_on_one_rank) == [(True, 1.0, 32768.0)] * 2
