"""JAX: the imperative loop against a hand-written donated jitted step, on one device: a tiny MLP and one of about a millisecond."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.runner import measure_pairs, record

STEPS = 50
SIZES = {"tiny": (64, 32, 16), "one millisecond": (256, 512, 256)}
"""inputs, hidden, rows"""


def network(inputs: int, hidden: int) -> Any:
    from flax import nnx

    class Net(nnx.Module):
        def __init__(self, rngs: nnx.Rngs):
            self.first = nnx.Linear(inputs, hidden, rngs=rngs)
            self.second = nnx.Linear(hidden, 10, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            return self.second(nnx.relu(self.first(x)))

    return Net(nnx.Rngs(0))


def by_hand(inputs: int, hidden: int, batch: dict[str, Any]) -> Callable[[], None]:
    """Flat parameters, one donated call a step, clipping by norm."""
    import jax
    import jax.numpy as jnp
    import optax

    first, second = jax.random.split(jax.random.key(0))
    params: Any = {
        "w1": jax.random.normal(first, (inputs, hidden)) / 8,
        "b1": jnp.zeros(hidden),
        "w2": jax.random.normal(second, (hidden, 10)) / 8,
        "b2": jnp.zeros(10),
    }
    transformation = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    state = transformation.init(params)

    def loss(params: Any, batch: Any) -> Any:
        outputs = jax.nn.relu(batch["x"] @ params["w1"] + params["b1"]) @ params["w2"] + params["b2"]
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(outputs, batch["y"]))

    @functools.partial(jax.jit, donate_argnums=(0, 1))
    def step(params: Any, state: Any, batch: Any) -> Any:
        value, gradients = jax.value_and_grad(loss)(params, batch)
        updates, state = transformation.update(gradients, state, params)
        return optax.apply_updates(params, updates), state, value

    def run() -> None:
        nonlocal params, state
        value = None
        for _ in range(STEPS):
            params, state, value = step(params, state, batch)
        jax.block_until_ready(value)

    return run


def imperative(inputs: int, hidden: int, batch: dict[str, Any]) -> Callable[[], None]:
    """The loop of the README."""
    import jax
    import jax.numpy as jnp
    import optax

    from xaccel import Accelerator

    accelerator = Accelerator(backend="jax", cpu=True)
    model, optimizer = accelerator.prepare(network(inputs, hidden), optax.adamw(1e-3))

    def loss_fn(model: Any, batch: Any) -> Any:
        return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(model(batch["x"]), batch["y"]))

    def run() -> None:
        loss: Any = None
        for _ in range(STEPS):
            with accelerator.accumulate(model):
                loss = accelerator.backward(loss_fn, batch)
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                optimizer.zero_grad()
        jax.block_until_ready(loss.value)

    return run


def main() -> None:
    import jax
    import jax.numpy as jnp

    results = []
    for size, (inputs, hidden, rows) in SIZES.items():
        draw = np.random.default_rng(0)
        batch = {"x": jax.device_put(draw.standard_normal((rows, inputs)).astype(np.float32)), "y": jnp.asarray(draw.integers(0, 10, rows))}
        pair = measure_pairs(
            f"JAX step, {size}, {STEPS} steps",
            ("hand-written", by_hand(inputs, hidden, batch)),
            ("imperative", imperative(inputs, hidden, batch)),
        )
        print(f"{pair.name}: {pair.ratio:.3f}x, {pair.difference_seconds / STEPS * 1e6:+.1f} us a step")
        results.append(pair)
    record(results, "step_program")


if __name__ == "__main__":
    main()
