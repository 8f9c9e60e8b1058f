"""The same input through both frameworks' own layers, with the weights that our rules carry: equal outputs, in both directions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("jax")

import jax
import jax.numpy as jnp
import torch
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st

from xaccel.checkpoint.chunks import full_bounds
from xaccel_jax.definitions import define
from xaccel_jax.names import rule

SIZES = st.integers(1, 5)


def canonical(module: nnx.Module) -> dict[str, np.ndarray]:
    """A Flax module's tensors as they stand on disk."""
    definition = define(module)
    assert definition is not None
    paths, leaves = (*definition.param_paths, *definition.rest_paths), [leaf for group in definition.initial for leaf in group]
    found = {}
    for path, leaf in zip(paths, leaves, strict=True):
        each = rule(module, path, leaf.shape)
        assert not each.guessed
        stored = each.read(np.asarray(leaf), full_bounds(each.canonical_shape(leaf.shape)))
        assert np.array_equal(each.restore(stored), leaf), "a round trip is bit-exact"
        found[each.name] = stored
    return found


class Holder(nnx.Module):
    def __init__(self, layer: Any):
        self.layer = layer


def carry(layer: Any, target: Any) -> None:
    """Flax's weights, drawn anew so that biases and statistics are not trivial, into the torch layer."""
    draw = np.random.default_rng(0)
    for variable in jax.tree.leaves(nnx.state(layer), is_leaf=lambda leaf: isinstance(leaf, nnx.Variable)):
        variable[...] = jnp.asarray(draw.uniform(0.5, 1.5, variable.shape), jnp.float32)
    nnx.update(layer, nnx.state(layer))
    state = {name.removeprefix("layer."): torch.from_numpy(value.copy()) for name, value in canonical(Holder(layer)).items()}
    missing, unexpected = target.load_state_dict(state, strict=False)
    assert not unexpected
    assert all(name.endswith("num_batches_tracked") for name in missing)
    target.eval()


def agree(theirs: Any, ours: Any) -> None:
    assert np.allclose(theirs.detach().numpy(), np.asarray(ours), atol=1e-5, rtol=1e-5)


def channels_last(x: np.ndarray) -> np.ndarray:
    return np.moveaxis(x, 1, -1)


@settings(max_examples=8, deadline=None)
@given(SIZES, SIZES)
def test_linear(inputs: int, outputs: int) -> None:
    layer, target = nnx.Linear(inputs, outputs, rngs=nnx.Rngs(0)), torch.nn.Linear(inputs, outputs)
    carry(layer, target)
    x = np.random.default_rng(1).standard_normal((3, inputs)).astype(np.float32)
    agree(target(torch.from_numpy(x)), layer(x))


@pytest.mark.parametrize("spatial", [1, 2, 3])
@settings(max_examples=4, deadline=None)
@given(inputs=SIZES, outputs=SIZES, kernel=st.integers(1, 3), stride=st.integers(1, 2))
def test_convolutions(spatial: int, inputs: int, outputs: int, kernel: int, stride: int) -> None:
    layer = nnx.Conv(inputs, outputs, (kernel,) * spatial, strides=stride, padding="VALID", rngs=nnx.Rngs(0))
    target = getattr(torch.nn, f"Conv{spatial}d")(inputs, outputs, kernel, stride=stride)
    carry(layer, target)
    x = np.random.default_rng(1).standard_normal((2, inputs, *(5,) * spatial)).astype(np.float32)
    agree(torch.movedim(target(torch.from_numpy(x)), 1, -1), layer(channels_last(x)))


@pytest.mark.parametrize("transpose_kernel", [False, True])
@pytest.mark.parametrize("spatial", [1, 2])
def test_transposed_convolutions(spatial: int, transpose_kernel: bool) -> None:
    """Case 25."""
    inputs, outputs, kernel, stride = 3, 4, 3, 2
    layer = nnx.ConvTranspose(
        inputs,
        outputs,
        (kernel,) * spatial,
        strides=(stride,) * spatial,
        padding="VALID",
        transpose_kernel=transpose_kernel,
        rngs=nnx.Rngs(0),
    )
    target = getattr(torch.nn, f"ConvTranspose{spatial}d")(inputs, outputs, kernel, stride=stride)
    carry(layer, target)
    x = np.random.default_rng(1).standard_normal((2, inputs, *(5,) * spatial)).astype(np.float32)
    agree(torch.movedim(target(torch.from_numpy(x)), 1, -1), layer(channels_last(x)))


def test_embedding() -> None:
    layer, target = nnx.Embed(7, 3, rngs=nnx.Rngs(0)), torch.nn.Embedding(7, 3)
    carry(layer, target)
    ids = np.array([[0, 6], [2, 2]])
    agree(target(torch.from_numpy(ids)), layer(ids))


def test_layer_norm() -> None:
    layer, target = nnx.LayerNorm(6, epsilon=1e-5, rngs=nnx.Rngs(0)), torch.nn.LayerNorm(6)
    carry(layer, target)
    x = np.random.default_rng(1).standard_normal((3, 6)).astype(np.float32)
    agree(target(torch.from_numpy(x)), layer(x))


def test_rms_norm() -> None:
    layer, target = nnx.RMSNorm(6, epsilon=1e-5, rngs=nnx.Rngs(0)), torch.nn.RMSNorm(6, eps=1e-5)
    carry(layer, target)
    x = np.random.default_rng(1).standard_normal((3, 6)).astype(np.float32)
    agree(target(torch.from_numpy(x)), layer(x))


def test_group_norm() -> None:
    layer, target = nnx.GroupNorm(6, num_groups=2, epsilon=1e-5, rngs=nnx.Rngs(0)), torch.nn.GroupNorm(2, 6)
    carry(layer, target)
    x = np.random.default_rng(1).standard_normal((3, 6, 4, 4)).astype(np.float32)
    agree(torch.movedim(target(torch.from_numpy(x)), 1, -1), layer(channels_last(x)))


def test_batch_norm_with_its_statistics() -> None:
    layer, target = nnx.BatchNorm(6, epsilon=1e-5, use_running_average=True, rngs=nnx.Rngs(0)), torch.nn.BatchNorm1d(6)
    carry(layer, target)
    x = np.random.default_rng(1).standard_normal((3, 6)).astype(np.float32)
    agree(target(torch.from_numpy(x)), layer(x))


def test_slices_are_permuted_before_they_are_read() -> None:
    layer = nnx.ConvTranspose(3, 4, (3, 2), rngs=nnx.Rngs(0))
    leaf = np.asarray(layer.kernel[...])
    each = rule(Holder(layer), ("layer", "kernel"), leaf.shape)
    whole = each.read(leaf, full_bounds(each.canonical_shape(leaf.shape)))
    for bounds in (((0, 2), (1, 3), (0, 1), (0, 2)), ((2, 3), (0, 4), (1, 3), (1, 1)), ((0, 0), (0, 4), (0, 3), (0, 2))):
        assert np.array_equal(each.read(leaf, bounds), whole[tuple(slice(*pair) for pair in bounds)])
