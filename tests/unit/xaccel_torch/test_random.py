"""Seeding and generator states."""

from __future__ import annotations

import torch

from xaccel_torch import random


def test_a_seed_repeats_and_is_read_back() -> None:
    random.set_seed(2**32 + 7)
    first = torch.rand(2)
    assert random.initial_seed() == 7
    random.set_seed(2**32 + 7)
    assert torch.equal(torch.rand(2), first)


def test_deterministic_algorithms_are_asked_for() -> None:
    try:
        random.set_seed(0, deterministic=True)
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)


def test_states_return_and_a_missing_device_is_told() -> None:
    state = random.generator_states()["torch_cpu"].copy()
    first = torch.rand(2)
    assert random.restore_generator_state("torch_cpu", state)
    assert torch.equal(torch.rand(2), first)
    assert not random.restore_generator_state("torch_cuda_99", state)
