"""What only a GPU can show. One short file, so that it runs in one go where a GPU is lent: `pytest tests/device`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")


def train(precision: str, steps: int = 20) -> tuple[list[float], Any, Any]:
    from xaccel import Accelerator, ArrayLoader

    accelerator = Accelerator(backend="torch", mixed_precision=precision)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.ReLU(), torch.nn.Linear(64, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    draw = np.random.default_rng(0)
    data = {"x": draw.standard_normal((256, 16)).astype(np.float32), "y": draw.standard_normal((256, 1)).astype(np.float32)}
    model, optimizer, loader = accelerator.prepare(model, optimizer, ArrayLoader(data, batch_size=64, shuffle=True))
    losses: list[float] = []
    while len(losses) < steps:
        for batch in loader:
            assert batch["x"].is_cuda
            losses.append(float(accelerator.backward(lambda model, batch: ((model(batch["x"]) - batch["y"]) ** 2).mean(), batch)))
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    return losses, accelerator, model


@needs_gpu
@pytest.mark.parametrize(("precision", "tolerance"), [("bf16", 2e-2), ("fp16", 2e-2)])
def test_mixed_precision_follows_full_precision(precision: str, tolerance: float) -> None:
    full, mixed = train("no")[0], train(precision)[0]
    assert np.allclose(mixed, full, rtol=tolerance, atol=tolerance)


@needs_gpu
def test_a_checkpoint_of_the_gpu_comes_back(tmp_path: Path) -> None:
    _, accelerator, model = train("no", 4)
    before = {name: value.cpu().clone() for name, value in accelerator.get_state_dict(model).items()}
    accelerator.save_state(tmp_path / "checkpoint")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    accelerator.load_state(tmp_path / "checkpoint")
    after = accelerator.get_state_dict(model)
    assert all(torch.equal(before[name], after[name].cpu()) for name in before)


@needs_gpu
def test_pinned_memory_and_transfers_that_overlap() -> None:
    from xaccel import Accelerator, DataLoaderConfiguration

    accelerator = Accelerator(backend="torch", dataloader_config=DataLoaderConfiguration(non_blocking=True))
    loader = torch.utils.data.DataLoader(torch.arange(64.0), batch_size=8, pin_memory=True)
    assert torch.cat([batch.cpu() for batch in accelerator.prepare(loader)]).tolist() == list(range(64))


@needs_gpu
def test_nccl_with_one_process_for_each_gpu(tmp_path: Path) -> None:
    count = torch.cuda.device_count()
    if count < 2:
        pytest.skip("nccl between processes needs two GPUs")
    script = tmp_path / "gather.py"
    script.write_text(
        "import torch\nfrom xaccel import Accelerator\na = Accelerator(backend='torch')\n"
        "assert a.gather(torch.tensor([a.process_index], device=a.device)).tolist() == list(range(a.num_processes))\na.end_training()\n"
    )
    command = [sys.executable, "-m", "xaccel.cli", "launch", "--backend", "torch", "--num_processes", str(count), str(script)]
    assert subprocess.run(command, check=False).returncode == 0


def test_jax_on_the_gpu() -> None:
    jax = pytest.importorskip("jax")
    try:
        jax.devices("gpu")
    except RuntimeError:
        pytest.skip("JAX has no GPU here")
    import jax.numpy as jnp
    import optax
    from flax import nnx

    from xaccel import Accelerator

    accelerator = Accelerator(backend="jax")
    _, optimizer = accelerator.prepare(nnx.Linear(4, 1, rngs=nnx.Rngs(0)), optax.sgd(0.1))
    x = np.ones((8, 4), np.float32)
    losses = []
    for _ in range(10):
        losses.append(accelerator.backward(lambda model, x: jnp.mean((model(x) - 1) ** 2), x))
        optimizer.step()
    assert float(losses[-1]) < float(losses[0])
