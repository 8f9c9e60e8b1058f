"""Same seed, same weights, same data: one loss sequence, whatever the framework and the number of processes and devices.

Rounding is the only difference allowed: 1e-5 relative over 50 optimizer steps in float32. Where rounding alone may exceed it, the same in float64
agrees to 1e-10.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("jax")

from xaccel.testing.ranks import load_module

runs: Any = load_module(Path(__file__).with_name("agreement_runs.py"))

World = tuple[str, int, int]

ONE: World = ("torch", 1, 1)
WORLDS: list[World] = [ONE, ("torch", 2, 1), ("torch", 4, 1), ("jax", 1, 1), ("jax", 1, 8), ("jax", 2, 4)]
PLAIN = [runs.Run(optimizer=name, accumulation=steps, steps=50) for name in ("sgd", "adamw") for steps in (1, 4)]
DOUBLE = [dataclasses.replace(run, dtype="float64") for run in PLAIN]
# AdamW divides by the root of tiny second moments, and small micro-batches have few terms to add: by the last steps rounding alone exceeds 1e-5 here.
ROUNDING = {("adamw", 4): 1e-4}
REPLICA = runs.Run(norm=True, batch_statistics="replica", steps=20)
GLOBAL = runs.Run(norm=True, batch_statistics="global", steps=20)

# What each world runs: its processes are started once.
TABLE: dict[World, list[Any]] = {world: [*PLAIN, GLOBAL] for world in WORLDS}
DOUBLE_WORLDS: list[World] = [ONE, ("torch", 2, 1), ("jax", 1, 8)]
TABLE[("torch", 2, 1)].append(REPLICA)
TABLE[("jax", 1, 2)] = [REPLICA, GLOBAL]


@pytest.fixture(scope="module")
def losses(ranks: Any) -> dict[tuple[World, Any], np.ndarray]:
    """(world, run) -> loss sequence, equal on every process of the world."""
    return {(world, run): sequence for world, wanted in TABLE.items() for run, sequence in _sequences(ranks(*world), world, wanted)}


@pytest.fixture(scope="module")
def double_losses(ranks: Any) -> dict[tuple[World, Any], np.ndarray]:
    """The same in float64."""
    return {
        (world, run): sequence for world in DOUBLE_WORLDS for run, sequence in _sequences(ranks(*world, JAX_ENABLE_X64="1"), world, DOUBLE)
    }


def _sequences(pool: Any, world: World, wanted: list[Any]) -> list[tuple[Any, np.ndarray]]:
    function = runs.torch_losses if world[0] == "torch" else runs.jax_losses
    found = []
    for run in wanted:
        results = pool.run(function, run, timeout_seconds=180)
        assert all(result == results[0] for result in results), "every process reports the same global loss"
        found.append((run, np.asarray(results[0])))
    return found


def compare(losses: dict[tuple[World, Any], np.ndarray], run: Any, worlds: list[World], tolerance: float) -> None:
    reference = losses[worlds[0], run]
    assert len(reference) == run.steps * run.accumulation
    assert reference[-4:].mean() < 0.6 * reference[:4].mean(), "it learns"
    for world in worlds[1:]:
        relative = np.abs(losses[world, run] - reference) / np.abs(reference)
        assert relative.max() <= tolerance, f"{world} departs from {worlds[0]} by {relative.max():.2e} at step {int(relative.argmax())}"


@pytest.mark.parametrize("run", PLAIN, ids=lambda run: f"{run.optimizer}-accumulate{run.accumulation}")
def test_one_loss_sequence(losses: Any, run: Any) -> None:
    compare(losses, run, WORLDS, ROUNDING.get((run.optimizer, run.accumulation), 1e-5))


@pytest.mark.parametrize("run", DOUBLE, ids=lambda run: f"{run.optimizer}-accumulate{run.accumulation}")
def test_what_is_left_is_rounding(double_losses: Any, run: Any) -> None:
    compare(double_losses, run, DOUBLE_WORLDS, 1e-10)


@pytest.mark.parametrize("run", [REPLICA, GLOBAL], ids=lambda run: run.batch_statistics)
def test_batch_statistics_agree_at_two_replicas(losses: Any, run: Any) -> None:
    compare(losses, run, [("torch", 2, 1), ("jax", 1, 2)], 1e-5)


def test_global_statistics_do_not_depend_on_the_replicas(losses: Any) -> None:
    compare(losses, GLOBAL, WORLDS, 1e-5)


def test_statistics_of_a_replica_are_not_those_of_the_batch(losses: Any) -> None:
    world: World = ("torch", 2, 1)
    assert not np.allclose(losses[world, REPLICA], losses[world, GLOBAL], rtol=1e-3)
