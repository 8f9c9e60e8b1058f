"""The same digit classifier in Flax."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx


class DigitNet(nnx.Module):
    """Two convolutions with batch normalisation and one linear layer: (batch, 8, 8) -> (batch, 10)."""

    def __init__(self, rngs: nnx.Rngs):
        self.conv1 = nnx.Conv(1, 32, (3, 3), padding=1, rngs=rngs)
        self.norm1 = nnx.BatchNorm(32, momentum=0.9, epsilon=1e-5, rngs=rngs)
        self.conv2 = nnx.Conv(32, 64, (3, 3), strides=2, padding=1, rngs=rngs)
        self.norm2 = nnx.BatchNorm(64, momentum=0.9, epsilon=1e-5, rngs=rngs)
        self.head = nnx.Linear(4 * 4 * 64, 10, rngs=rngs)

    def __call__(self, images: jax.Array) -> jax.Array:
        hidden = nnx.relu(self.norm1(self.conv1(images[..., None])))
        hidden = nnx.relu(self.norm2(self.conv2(hidden)))
        return self.head(hidden.reshape(hidden.shape[0], -1))


def build(schedule: Callable[[int], float]) -> tuple[DigitNet, optax.GradientTransformation, Callable[[int], float]]:
    """Model, optimizer and scheduler; `schedule` maps an optimizer step to a learning rate."""
    model = DigitNet(nnx.Rngs(0))
    optimizer = optax.inject_hyperparams(optax.adamw)(learning_rate=schedule(0), weight_decay=1e-4)
    return model, optimizer, schedule


def loss_fn(model: Any, batch: dict[str, jax.Array]) -> jax.Array:
    """Mean cross entropy."""
    return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(model(batch["image"]), batch["label"]))


def predict(model: Any, batch: dict[str, jax.Array]) -> jax.Array:
    """Logits `(batch, 10)`."""
    return model(batch["image"])
