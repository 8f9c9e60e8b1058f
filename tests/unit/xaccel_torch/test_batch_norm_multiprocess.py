"""Global batch normalisation on two processes against torch's own on one process with all rows."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from xaccel.testing.ranks import load_module
from xaccel_torch.batch_norm import GlobalBatchNorm, use_global_statistics

runs = load_module(Path(__file__).parent / "torch_runs.py")


@pytest.fixture(scope="module", autouse=True)
def fresh_ranks_for_others(ranks: Any) -> Iterator[None]:
    yield
    # A process group made anew in the same processes would find the old one's addresses in the store.
    ranks("torch", 2).restart()


@pytest.mark.parametrize("sizes", [[3, 3], [1, 5]], ids=["even", "uneven"])
@pytest.mark.parametrize(("module", "shape"), [("BatchNorm1d", (6, 4)), ("BatchNorm2d", (6, 3, 2, 2))])
def test_equal_to_one_process(ranks: Any, sizes: list[int], module: str, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).normal(2.0, 3.0, shape)
    whole = runs.normalised(module, [6], x)
    parts = ranks("torch", 2).run(runs.normalised, module, sizes, x)
    for name in ("y", "dx"):
        np.testing.assert_allclose(np.concatenate([part[name] for part in parts]), whole[name], atol=1e-9, err_msg=name)
    for name in ("dw", "db"):
        np.testing.assert_allclose(sum(part[name] for part in parts), whole[name], atol=1e-9, err_msg=name)
    for part in parts:
        assert part["count"] == whole["count"] == 1
        for name in ("mean", "var", "eval"):
            np.testing.assert_allclose(part[name], whole[name], atol=1e-9, err_msg=name)


def test_training_equals_one_process(ranks: Any) -> None:
    found = ranks("torch", 2).run(runs.train, [[4, 4]], 10, 1, False, {"batch_statistics": "global"}, True)
    whole = runs.train([[8]], 10, 1, False, {"batch_statistics": "global"}, True)
    assert found[0] == found[1]
    for name, value in whole.items():
        np.testing.assert_allclose(found[0][name], value, atol=1e-9, err_msg=name)


def test_conversion_keeps_the_parameters_and_the_rest_of_the_model() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Sequential(torch.nn.BatchNorm1d(3)), torch.nn.LayerNorm(3)).eval()
    before = {id(tensor) for tensor in (*model.parameters(), *model.buffers())}
    converted = use_global_statistics(model, "cpu")
    assert converted is model
    assert isinstance(model[1][0], GlobalBatchNorm)
    assert not model[1][0].training
    assert {id(tensor) for tensor in (*model.parameters(), *model.buffers())} == before
    kept = model[1][0]
    assert use_global_statistics(model, "cpu")[1][0] is kept


def test_evaluation_needs_no_other_process() -> None:
    # There is no process group here: a collective would raise.
    x = torch.randn(4, 3)
    for options in ({}, {"track_running_stats": False}, {"affine": False}):
        norm = torch.nn.BatchNorm1d(3, **options).eval()
        assert torch.equal(use_global_statistics(norm, "cpu").eval()(x), norm(x))
