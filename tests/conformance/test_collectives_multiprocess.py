"""The conformance suite on real processes: torch with gloo, JAX with one and with two processes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from xaccel.testing.conformance import CASES
from xaccel.testing.ranks import load_module

WORLDS = [("torch", 1, 1), ("torch", 2, 1), ("torch", 4, 1), ("jax", 1, 8), ("jax", 2, 4)]

benches = load_module(Path(__file__).parent / "benches.py")


# The last one varies slowest: all cases of one world, then the next, so that no pool is started twice.
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("world", WORLDS, ids=lambda world: f"{world[0]}-{world[1]}x{world[2]}")
def test_case(ranks: Any, world: tuple[str, int, int], name: str) -> None:
    ranks(*world).run(benches.run_case, world[0], name)
