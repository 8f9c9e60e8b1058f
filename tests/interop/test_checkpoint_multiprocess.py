"""A checkpoint of any number of processes of either framework loads in any other, bit for bit, and training goes on as if nothing had happened."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("jax")

from xaccel.testing.ranks import load_module

runs: Any = load_module(Path(__file__).with_name("checkpoint_runs.py"))

World = tuple[str, int, int]
STEPS_BEFORE = 7  # in the middle of the second epoch of five batches
STEPS_AFTER = 6


def run(ranks: Any, world: World, folder: Path, load: str | None, steps: int, save: str | None) -> Any:
    function = runs.torch_run if world[0] == "torch" else runs.jax_run
    results = ranks(*world).run(function, str(folder), load, steps, save, timeout_seconds=120)
    assert all(result[0] == results[0][0] for result in results), "every process holds the same model"
    return results[0]


def check_resume(ranks: Any, folder: Path, writer: World, readers: list[World]) -> None:
    run(ranks, writer, folder, None, STEPS_BEFORE, "middle")
    written = run(ranks, writer, folder, "middle", 0, None)[0]
    _, losses, labels = run(ranks, writer, folder, "middle", STEPS_AFTER, None)
    for reader in readers:
        back = f"back-{'-'.join(map(str, reader))}"
        read = run(ranks, reader, folder, "middle", 0, back)[0]
        assert read == written, f"{reader} holds the bytes that {writer} wrote"
        _, their_losses, their_labels = run(ranks, reader, folder, "middle", STEPS_AFTER, None)
        assert their_labels == labels, f"{reader} goes on with the very next samples"
        assert np.allclose(their_losses, losses, rtol=1e-5), f"{reader} goes on with the loss curve: {their_losses} {losses}"
    for reader in readers:
        back = f"back-{'-'.join(map(str, reader))}"
        assert run(ranks, writer, folder, back, 0, None)[0] == written, f"what {reader} saved is what it loaded"


def test_written_by_four_torch_processes(ranks: Any, tmp_path: Path) -> None:
    check_resume(ranks, tmp_path, ("torch", 4, 1), [("torch", 1, 1), ("torch", 2, 1), ("jax", 1, 8)])


def test_written_by_eight_jax_devices(ranks: Any, tmp_path: Path) -> None:
    check_resume(ranks, tmp_path, ("jax", 1, 8), [("torch", 2, 1), ("jax", 1, 1), ("jax", 2, 4)])
