"""One small model in both frameworks, saved and loaded on however many processes the caller is one of."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import numpy as np

FEATURES, HIDDEN, CLASSES, GLOBAL_BATCH = 6, 9, 3, 8
CONV = 4


def data() -> dict[str, np.ndarray]:
    draw = np.random.default_rng(5)
    return {"x": draw.standard_normal((40, 6, 6)).astype(np.float32), "y": draw.integers(0, CLASSES, 40).astype(np.int64)}


def digest(state: dict[str, Any]) -> dict[str, bytes]:
    """Canonical name -> the exact bytes."""
    return {
        name: np.ascontiguousarray(np.asarray(value)).tobytes()
        for name, value in sorted(state.items())
        if not name.endswith("num_batches_tracked")
    }


def torch_run(folder: str, load: str | None, steps: int, save: str | None) -> tuple[dict[str, bytes], list[float], list[int]]:
    """Load, take some steps, save; returns the model's bytes, the losses, and the labels of the batches seen."""
    import torch
    from torch.nn import functional

    from xaccel import Accelerator, ArrayLoader, DataLoaderConfiguration

    accelerator = Accelerator(
        backend="torch", cpu=True, batch_statistics="global", dataloader_config=DataLoaderConfiguration(split_batches=True, data_seed=3)
    )
    torch.manual_seed(1)
    model: Any = torch.nn.Sequential(
        OrderedDict(conv=torch.nn.Conv2d(1, CONV, 3, padding=1), norm=torch.nn.BatchNorm2d(CONV), head=torch.nn.Linear(CONV, CLASSES))
    )

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm, self.head = model.conv, model.norm, model.head

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(functional.relu(self.norm(self.conv(x[:, None]))).mean((2, 3)))

    net: Any = Net()
    optimizer: Any = torch.optim.AdamW(net.parameters(), lr=1e-2, weight_decay=1e-2)
    net, optimizer, loader = accelerator.prepare(net, optimizer, ArrayLoader(data(), batch_size=GLOBAL_BATCH, shuffle=True))

    def loss_fn(model: Any, batch: Any) -> Any:
        return functional.cross_entropy(model(batch["x"]), batch["y"])

    return _run(accelerator, net, optimizer, loader, loss_fn, folder, load, steps, save)


def jax_run(folder: str, load: str | None, steps: int, save: str | None) -> tuple[dict[str, bytes], list[float], list[int]]:
    """The same with JAX."""
    import jax.numpy as jnp
    import optax
    from flax import nnx

    from xaccel import Accelerator, ArrayLoader, DataLoaderConfiguration

    accelerator = Accelerator(
        backend="jax", cpu=True, batch_statistics="global", dataloader_config=DataLoaderConfiguration(split_batches=True, data_seed=3)
    )

    class Net(nnx.Module):
        def __init__(self, rngs: nnx.Rngs):
            self.conv = nnx.Conv(1, CONV, (3, 3), padding=1, rngs=rngs)
            self.norm = nnx.BatchNorm(CONV, momentum=0.9, epsilon=1e-5, rngs=rngs)
            self.head = nnx.Linear(CONV, CLASSES, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.head(nnx.relu(self.norm(self.conv(x[..., None]))).mean((1, 2)))

    net, optimizer, loader = accelerator.prepare(
        Net(nnx.Rngs(0)), optax.adamw(1e-2, weight_decay=1e-2), ArrayLoader(data(), batch_size=GLOBAL_BATCH, shuffle=True)
    )

    def loss_fn(model: Any, batch: Any) -> Any:
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(model(batch["x"]), batch["y"]))

    return _run(accelerator, net, optimizer, loader, loss_fn, folder, load, steps, save)


def _run(
    accelerator: Any, model: Any, optimizer: Any, loader: Any, loss_fn: Any, folder: str, load: str | None, steps: int, save: str | None
) -> tuple[dict[str, bytes], list[float], list[int]]:
    import warnings

    if load is not None:
        with warnings.catch_warnings():
            # Random states do not cross between frameworks or numbers of processes, and it says so.
            warnings.filterwarnings("ignore", message=".*not carried over")
            accelerator.load_state(f"{folder}/{load}")
    losses: list[float] = []
    labels: list[int] = []
    while len(losses) < steps:
        for batch in loader:
            loss = accelerator.backward(loss_fn, batch)
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(accelerator.reduce(loss, "mean")))
            labels += np.asarray(accelerator.gather(batch["y"])).tolist()
            if len(losses) == steps:
                break
    if save is not None:
        accelerator.save_state(f"{folder}/{save}")
    state = digest(accelerator.get_state_dict(model))
    accelerator.free_memory()
    return state, losses, labels
