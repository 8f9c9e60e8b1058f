"""Same seed, same weights, same data: one loss sequence, whatever the framework and the number of processes and devices.

Rounding is the only difference allowed: 1e-5 relative over 50 steps in float32, 1e-10 in float64.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("jax")

from xaccel.testing.ranks import load_module

runs: Any = load_module(Path(__file__).with_name("agreement_runs.py"))

WORLDS = [("torch", 1, 1), ("torch", 2, 1), ("torch", 4, 1), ("jax", 1, 1), ("jax", 1, 8), ("jax", 2, 4)]
CONFIGURATIONS = [
    runs.Run(optimizer=optimizer, accumulation=accumulation, steps=50) for optimizer in ("sgd", "adamw") for accumulation in (1, 4)
]


def losses(ranks: Any, world: tuple[str, int, int], run: Any) -> np.ndarray:
    function = runs.torch_losses if world[0] == "torch" else runs.jax_losses
    results = ranks(*world).run(function, run, timeout_seconds=120)
    assert all(result == results[0] for result in results), "every process reports the same global loss"
    return np.asarray(results[0])


def compare(ranks: Any, run: Any, worlds: list[tuple[str, int, int]], tolerance: float) -> None:
    reference = losses(ranks, worlds[0], run)
    assert len(reference) == run.steps
    assert reference[-4:].mean() < 0.6 * reference[:4].mean(), "it learns"
    for world in worlds[1:]:
        found = losses(ranks, world, run)
        worst = float(np.max(np.abs(found - reference) / np.abs(reference)))
        assert worst <= tolerance, f"{world} departs from {worlds[0]} by {worst:.2e} (step {int(np.argmax(np.abs(found - reference)))})"


@pytest.mark.parametrize("run", CONFIGURATIONS, ids=lambda run: f"{run.optimizer}-accumulate{run.accumulation}")
def test_one_loss_sequence(ranks: Any, run: Any) -> None:
    compare(ranks, run, WORLDS, 1e-5)


@pytest.mark.parametrize("statistics", ["replica", "global"])
def test_batch_statistics_agree_at_two_replicas(ranks: Any, statistics: str) -> None:
    run = runs.Run(optimizer="sgd", norm=True, batch_statistics=statistics, steps=20)
    compare(ranks, run, [("torch", 2, 1), ("jax", 1, 2)], 1e-5)


def test_global_statistics_do_not_depend_on_the_replicas(ranks: Any) -> None:
    run = runs.Run(optimizer="sgd", norm=True, batch_statistics="global", steps=20)
    compare(ranks, run, [("torch", 1, 1), ("torch", 2, 1), ("jax", 1, 8)], 1e-5)
