"""One process, through the `Accelerator`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from xaccel import ParallelismConfig
from xaccel.errors import ConfigurationError, UnsupportedError
from xaccel.testing.ranks import load_module

runs = load_module(Path(__file__).parents[1] / "torch_runs.py")


def test_a_plain_loop_and_this_one_agree() -> None:
    found = runs.train([[8]], 10, 1, False, {})
    model = runs.network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    x, y = runs.rows(8)
    for _ in range(10):
        torch.nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert found == {name: tensor.tolist() for name, tensor in model.state_dict().items()}


def test_models_are_not_wrapped() -> None:
    accelerator = runs.accelerator_of()
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    prepared, stepped = accelerator.prepare(model, optimizer)
    assert prepared is model
    assert stepped.optimizer is optimizer
    assert accelerator.prepare(stepped) is stepped
    assert accelerator.unwrap_model(prepared) is model
    assert str(accelerator.distributed_type) == "NO"


def test_bf16_and_its_unwrapping() -> None:
    accelerator = runs.accelerator_of(mixed_precision="bf16")
    model = accelerator.prepare(torch.nn.Linear(2, 2))
    assert model(torch.ones(1, 2)).dtype is torch.float32
    assert "forward" in accelerator.unwrap_model(model).__dict__
    assert "forward" not in accelerator.unwrap_model(model, keep_fp32_wrapper=False).__dict__


def test_fp16_trains() -> None:
    accelerator = runs.accelerator_of(mixed_precision="fp16", gradient_accumulation_steps=2)
    model = torch.nn.Linear(4, 1)
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    x, losses = torch.randn(8, 4), []
    for _ in range(20):
        with accelerator.accumulate(model):
            loss = model(x).square().mean()
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] / 2


def test_what_this_version_lacks_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="fp8"):
        runs.accelerator_of(mixed_precision="fp8")
    with pytest.raises((UnsupportedError, ConfigurationError)):
        runs.accelerator_of(parallelism_config=ParallelismConfig(tp_size=2))


def test_free_memory_lets_everything_go() -> None:
    import gc
    import weakref

    accelerator = runs.accelerator_of()
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model, optimizer = accelerator.prepare(model, optimizer)
    gone = weakref.ref(model)
    model, optimizer = accelerator.free_memory(model, optimizer)
    gc.collect()
    assert gone() is None
