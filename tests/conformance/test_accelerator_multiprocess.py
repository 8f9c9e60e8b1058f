"""Each rule of training once, on every backend: torch with 1, 2 and 4 processes, JAX with 8 devices and with 2 processes of 4."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from xaccel.testing.ranks import load_module

cases: Any = load_module(Path(__file__).with_name("accelerator_cases.py"))

WORLDS = [("torch", 1, 1), ("torch", 2, 1), ("torch", 4, 1), ("jax", 1, 8), ("jax", 2, 4)]

# The right value of each case, equal on every process of every world.
EXPECTED: dict[str, Any] = {
    "counts_are_consistent": {"mixed_precision": "no", "sync": True},
    "metrics_are_exactly_the_dataset": [list(range(kept)) for count in (9, 11, 16, 3) for kept in (count, count - count % 8)],
    "a_validation_loop_left_by_break_loses_no_window": [4, 8, 10],
    "carrying_over_when_the_loader_does_not_close_windows": [4, 8],
    "token_weights_are_exact": pytest.approx(-sum(i for i in range(16) if i % 3) / sum(1 for i in range(16) if i % 3), rel=1e-6),
    "clipping_sees_the_whole_gradient": pytest.approx([3.5, -1.0], rel=1e-5),
    "resume_in_the_middle_is_the_uninterrupted_run": True,
    "a_trigger_of_one_process_is_seen_by_all": [False, True, False],
    "the_scheduler_follows_real_steps": [1.0, 0.5, 0.5, 0.333333, 0.333333, 0.25],
    "registered_objects_come_back": True,
    "a_checkpoint_that_does_not_fit_changes_nothing": True,
}


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: "-".join(map(str, world)), scope="module")
@pytest.mark.parametrize("case", EXPECTED)
def test_case(ranks: Any, world: tuple[str, int, int], case: str) -> None:
    for result in ranks(*world).run(getattr(cases, case), world[0], timeout_seconds=90):
        assert result == EXPECTED[case]


@pytest.mark.parametrize("world", WORLDS, ids=lambda world: "-".join(map(str, world)), scope="module")
def test_accumulation_equals_the_large_batch(ranks: Any, world: tuple[str, int, int]) -> None:
    for small, large in ranks(*world).run(cases.accumulation_equals_the_large_batch, world[0], timeout_seconds=90):
        assert np.isclose(small, large, rtol=1e-5)
