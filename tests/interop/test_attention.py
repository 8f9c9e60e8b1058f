"""An attention's projection is called `value`, as a Variable's content is: it must keep its name, and the model must train and come back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("jax")

import flax.linen as nn
import jax
import jax.numpy as jnp
import optax
from flax import nnx

from xaccel import Accelerator

X = np.random.default_rng(0).standard_normal((8, 5, 6)).astype(np.float32)
PROJECTIONS = {f"{owner}.{leaf}" for owner in ("query", "key", "value", "out") for leaf in ("weight", "bias")}


def nnx_attention() -> Any:
    return nnx.MultiHeadAttention(num_heads=2, in_features=6, decode=False, rngs=nnx.Rngs(0))


def linen_attention() -> Any:
    module = nn.MultiHeadDotProductAttention(num_heads=2)
    return module.bind(module.init(jax.random.key(0), X))


@pytest.mark.parametrize("make", [nnx_attention, linen_attention])
def test_trains_saves_and_comes_back(make: Any, tmp_path: Path) -> None:
    accelerator = Accelerator(backend="jax", cpu=True)
    model, optimizer = accelerator.prepare(make(), optax.adam(1e-2))
    losses = []
    for _ in range(5):
        losses.append(accelerator.backward(lambda model, x: jnp.mean((model(x) - 1) ** 2), X))
        optimizer.step()
    assert float(losses[-1]) < float(losses[0])
    saved = accelerator.get_state_dict(model)
    assert set(saved) == PROJECTIONS
    accelerator.save_state(tmp_path / "saved")
    again = Accelerator(backend="jax", cpu=True)
    fresh, _ = again.prepare(make(), optax.adam(1e-2))
    again.load_state(tmp_path / "saved")
    loaded = again.get_state_dict(fresh)
    assert all(np.array_equal(loaded[name], saved[name]) for name in PROJECTIONS)


def test_weights_are_plain_linear_layers() -> None:
    """The projections as torch's `Linear`s, attention by torch's own kernel: equal outputs."""
    import torch
    from torch.nn import functional

    accelerator = Accelerator(backend="jax", cpu=True)
    model = accelerator.prepare(nnx_attention())
    weights = {name: torch.from_numpy(np.array(value)) for name, value in accelerator.get_state_dict(model).items()}

    def project(name: str, value: torch.Tensor) -> torch.Tensor:
        return functional.linear(value, weights[f"{name}.weight"], weights[f"{name}.bias"])

    def heads(value: torch.Tensor) -> torch.Tensor:
        return value.unflatten(-1, (2, 3)).transpose(1, 2)

    x = torch.from_numpy(X)
    mixed = functional.scaled_dot_product_attention(*(heads(project(name, x)) for name in ("query", "key", "value")))
    ours = project("out", mixed.transpose(1, 2).flatten(2))
    model.eval()
    assert np.allclose(ours.numpy(), np.asarray(model(X)), atol=1e-5)


def test_amsgrad_from_jax_says_that_its_maximum_is_another(tmp_path: Path) -> None:
    import torch

    from xaccel.process.topology import set_current_topology

    jax_side = Accelerator(backend="jax", cpu=True)
    _, optimizer = jax_side.prepare(nnx.Linear(3, 1, rngs=nnx.Rngs(0)), optax.amsgrad(1e-2))
    jax_side.backward(lambda model, x: jnp.mean(model(x)), np.ones((8, 3), np.float32))
    optimizer.step()
    jax_side.save_state(tmp_path / "amsgrad")
    set_current_topology(None)
    torch_side = Accelerator(backend="torch", cpu=True)
    target = torch.nn.Linear(3, 1)
    torch_side.prepare(target, torch.optim.Adam(target.parameters(), lr=1e-2, amsgrad=True))
    with pytest.warns(UserWarning, match="max_exp_avg_sq: optax's is the maximum of bias-corrected values"):
        torch_side.load_state(tmp_path / "amsgrad")
