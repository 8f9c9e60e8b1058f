"""The same 50 steps on the digits set, in either framework, on however many processes and devices the caller is one of."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

GLOBAL_BATCH = 64
HIDDEN = 32
FEATURES = 64
CLASSES = 10


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """One configuration.

    Attributes:
        optimizer: "sgd" or "adamw".
        accumulation: micro-steps a window, which together have `GLOBAL_BATCH` rows over all replicas.
        steps: optimizer steps.
        dtype: "float32", or "float64" to tell rounding from a mistake.
        norm: whether there is a batch normalisation between the layers.
        batch_statistics: as the `Accelerator`'s argument.
    """

    optimizer: str = "sgd"
    accumulation: int = 1
    steps: int = 50
    dtype: str = "float32"
    norm: bool = False
    batch_statistics: str = "replica"


def initial_weights(dtype: str) -> dict[str, np.ndarray]:
    """The same weights for every run, in PyTorch's layout."""
    draw = np.random.default_rng(7)
    return {
        "fc1.weight": (draw.standard_normal((HIDDEN, FEATURES)) / 8).astype(dtype),
        "fc1.bias": np.zeros(HIDDEN, dtype),
        "fc2.weight": (draw.standard_normal((CLASSES, HIDDEN)) / 6).astype(dtype),
        "fc2.bias": np.zeros(CLASSES, dtype),
    }


def digits(dtype: str) -> dict[str, np.ndarray]:
    """scikit-learn's digits, `(1797, 64)` in [0, 1]."""
    from sklearn.datasets import load_digits

    data = load_digits()
    return {"x": (data.data / 16.0).astype(dtype), "y": data.target.astype(np.int32)}


def accelerate(backend: str, run: Run) -> tuple[Any, Any]:
    """An `Accelerator`, and a prepared loader over the digits whose global batch does not depend on the number of replicas."""
    from xaccel import Accelerator, ArrayLoader, DataLoaderConfiguration

    config = DataLoaderConfiguration(split_batches=True, data_seed=11)
    accelerator = Accelerator(
        backend=backend,
        cpu=True,
        dataloader_config=config,
        gradient_accumulation_steps=run.accumulation,
        batch_statistics=run.batch_statistics,
    )
    return accelerator, accelerator.prepare(
        ArrayLoader(digits(run.dtype), batch_size=GLOBAL_BATCH // run.accumulation, shuffle=True, drop_last=True)
    )


def loop(accelerator: Any, model: Any, optimizer: Any, loader: Any, loss_fn: Any, run: Run) -> list[float]:
    """Train, and return the global mean loss of every micro-step."""
    losses: list[Any] = []
    count = run.steps * run.accumulation
    while len(losses) < count:
        for batch in loader:
            with accelerator.accumulate(model):
                loss = accelerator.backward(loss_fn, batch)
                optimizer.step()
                optimizer.zero_grad()
            losses.append(loss)
            if len(losses) == count:
                break
    return [float(accelerator.reduce(loss, "mean")) for loss in losses]


def torch_losses(run: Run) -> list[float]:
    """On this process, with PyTorch."""
    import torch
    from torch.nn import functional

    torch.manual_seed(0)
    layers: dict[str, Any] = {"fc1": torch.nn.Linear(FEATURES, HIDDEN), "act": torch.nn.ReLU(), "fc2": torch.nn.Linear(HIDDEN, CLASSES)}
    if run.norm:
        layers = {"fc1": layers["fc1"], "norm": torch.nn.BatchNorm1d(HIDDEN), "act": layers["act"], "fc2": layers["fc2"]}
    from collections import OrderedDict

    model = torch.nn.Sequential(OrderedDict(layers)).to(getattr(torch, run.dtype))
    model.load_state_dict({name: torch.from_numpy(value) for name, value in initial_weights(run.dtype).items()}, strict=False)
    if run.optimizer == "sgd":
        optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    else:
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=1e-2)

    def loss_fn(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        return functional.cross_entropy(model(batch["x"]), batch["y"].long())

    accelerator, loader = accelerate("torch", run)
    model, optimizer = accelerator.prepare(model, optimizer)
    result = loop(accelerator, model, optimizer, loader, loss_fn, run)
    accelerator.free_memory()
    return result


def jax_losses(run: Run) -> list[float]:
    """On this process's devices, with JAX."""
    import jax.numpy as jnp
    import optax
    from flax import nnx

    # First of all: in a run of several processes no device may be touched before it is joined.
    accelerator, loader = accelerate("jax", run)
    dtype = jnp.dtype(run.dtype)

    class Net(nnx.Module):
        def __init__(self, rngs: nnx.Rngs):
            self.fc1 = nnx.Linear(FEATURES, HIDDEN, param_dtype=dtype, rngs=rngs)
            if run.norm:
                self.norm = nnx.BatchNorm(HIDDEN, momentum=0.9, epsilon=1e-5, param_dtype=dtype, rngs=rngs)
            self.fc2 = nnx.Linear(HIDDEN, CLASSES, param_dtype=dtype, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            hidden = self.fc1(x)
            if run.norm:
                hidden = self.norm(hidden)
            return self.fc2(nnx.relu(hidden))

    model: Any = Net(nnx.Rngs(0))
    weights = initial_weights(run.dtype)
    for name in ("fc1", "fc2"):
        layer = getattr(model, name)
        layer.kernel[...] = jnp.asarray(weights[f"{name}.weight"].T)
        layer.bias[...] = jnp.asarray(weights[f"{name}.bias"])
    optimizer: Any = optax.sgd(0.1, momentum=0.9) if run.optimizer == "sgd" else optax.adamw(3e-3, weight_decay=1e-2)

    def loss_fn(model: Any, batch: dict[str, Any]) -> Any:
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(model(batch["x"]), batch["y"]))

    model, optimizer = accelerator.prepare(model, optimizer)
    result = loop(accelerator, model, optimizer, loader, loss_fn, run)
    accelerator.free_memory()
    return result
