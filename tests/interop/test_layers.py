"""The same input through both frameworks' own layers, with the weights that our rules carry: equal outputs, in both directions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")
pytest.importorskip("jax")

import flax.linen as nn
import jax
import jax.numpy as jnp
import torch
from flax import nnx
from flax.traverse_util import flatten_dict, unflatten_dict
from hypothesis import given, settings
from hypothesis import strategies as st

from xaccel.checkpoint.chunks import full_bounds
from xaccel_jax.names import rules

SIZES = st.integers(1, 5)


def canonical(module: nnx.Module) -> dict[str, np.ndarray]:
    """A Flax module's tensors as they stand on disk."""
    found = {}
    by_path = {path: variable[...] for path, variable in nnx.to_flat_state(nnx.state(module))}
    for path, each in rules(module, {path: leaf.shape for path, leaf in by_path.items()}).items():
        leaf = by_path[path]
        assert not each.guessed
        stored = each.read(np.asarray(leaf), full_bounds(each.canonical_shape))
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


def carry_back(target: Any, layer: Any) -> None:
    """torch's weights, drawn anew, into the Flax layer."""
    draw = torch.Generator().manual_seed(1)
    for value in target.state_dict().values():
        if value.is_floating_point():
            value.copy_(torch.rand(value.shape, generator=draw) + 0.5)
    holder, stored = Holder(layer), target.state_dict()
    variables = dict(nnx.to_flat_state(nnx.state(holder)))
    for path, each in rules(holder, {path: variable.shape for path, variable in variables.items()}).items():
        variables[path][...] = jnp.asarray(each.restore(stored[each.name.removeprefix("layer.")].numpy()))
    nnx.update(holder, nnx.from_flat_state(variables))


def both_ways(layer: Any, target: Any, theirs: Callable[[], Any], ours: Callable[[], Any]) -> None:
    carry(layer, target)
    agree(theirs(), ours())
    carry_back(target, layer)
    agree(theirs(), ours())


def agree(theirs: Any, ours: Any) -> None:
    assert np.allclose(theirs.detach().numpy(), np.asarray(ours), atol=1e-5, rtol=1e-5)


def channels_last(x: np.ndarray) -> np.ndarray:
    return np.moveaxis(x, 1, -1)


@settings(max_examples=8, deadline=None)
@given(SIZES, SIZES)
def test_linear(inputs: int, outputs: int) -> None:
    layer, target = nnx.Linear(inputs, outputs, rngs=nnx.Rngs(0)), torch.nn.Linear(inputs, outputs)
    x = np.random.default_rng(1).standard_normal((3, inputs)).astype(np.float32)
    both_ways(layer, target, lambda: target(torch.from_numpy(x)), lambda: layer(x))


@pytest.mark.parametrize("spatial", [1, 2, 3])
@settings(max_examples=4, deadline=None)
@given(inputs=SIZES, outputs=SIZES, kernel=st.integers(1, 3), stride=st.integers(1, 2))
def test_convolutions(spatial: int, inputs: int, outputs: int, kernel: int, stride: int) -> None:
    layer = nnx.Conv(inputs, outputs, (kernel,) * spatial, strides=stride, padding="VALID", rngs=nnx.Rngs(0))
    target = getattr(torch.nn, f"Conv{spatial}d")(inputs, outputs, kernel, stride=stride)
    x = np.random.default_rng(1).standard_normal((2, inputs, *(5,) * spatial)).astype(np.float32)
    both_ways(layer, target, lambda: torch.movedim(target(torch.from_numpy(x)), 1, -1), lambda: layer(channels_last(x)))


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
    x = np.random.default_rng(1).standard_normal((2, inputs, *(5,) * spatial)).astype(np.float32)
    both_ways(layer, target, lambda: torch.movedim(target(torch.from_numpy(x)), 1, -1), lambda: layer(channels_last(x)))


def test_embedding() -> None:
    layer, target = nnx.Embed(7, 3, rngs=nnx.Rngs(0)), torch.nn.Embedding(7, 3)
    ids = np.array([[0, 6], [2, 2]])
    both_ways(layer, target, lambda: target(torch.from_numpy(ids)), lambda: layer(ids))


def test_layer_norm() -> None:
    layer, target = nnx.LayerNorm(6, epsilon=1e-5, rngs=nnx.Rngs(0)), torch.nn.LayerNorm(6)
    x = np.random.default_rng(1).standard_normal((3, 6)).astype(np.float32)
    both_ways(layer, target, lambda: target(torch.from_numpy(x)), lambda: layer(x))


def test_rms_norm() -> None:
    layer, target = nnx.RMSNorm(6, epsilon=1e-5, rngs=nnx.Rngs(0)), torch.nn.RMSNorm(6, eps=1e-5)
    x = np.random.default_rng(1).standard_normal((3, 6)).astype(np.float32)
    both_ways(layer, target, lambda: target(torch.from_numpy(x)), lambda: layer(x))


def test_group_norm() -> None:
    layer, target = nnx.GroupNorm(6, num_groups=2, epsilon=1e-5, rngs=nnx.Rngs(0)), torch.nn.GroupNorm(2, 6)
    x = np.random.default_rng(1).standard_normal((3, 6, 4, 4)).astype(np.float32)
    both_ways(layer, target, lambda: torch.movedim(target(torch.from_numpy(x)), 1, -1), lambda: layer(channels_last(x)))


def test_batch_norm_with_its_statistics() -> None:
    layer, target = nnx.BatchNorm(6, epsilon=1e-5, use_running_average=True, rngs=nnx.Rngs(0)), torch.nn.BatchNorm1d(6)
    x = np.random.default_rng(1).standard_normal((3, 6)).astype(np.float32)
    both_ways(layer, target, lambda: target(torch.from_numpy(x)), lambda: layer(x))


def test_slices_are_permuted_before_they_are_read() -> None:
    layer = nnx.ConvTranspose(3, 4, (3, 2), rngs=nnx.Rngs(0))
    leaf = np.asarray(layer.kernel[...])
    path = ("layer", "kernel")
    each = rules(Holder(layer), {path: leaf.shape})[path]
    whole = each.read(leaf, full_bounds(each.canonical_shape))
    for bounds in (((0, 2), (1, 3), (0, 1), (0, 2)), ((2, 3), (0, 4), (1, 3), (1, 1)), ((0, 0), (0, 4), (0, 3), (0, 2))):
        assert np.array_equal(each.read(leaf, bounds), whole[tuple(slice(*pair) for pair in bounds)])


def test_general_linear_layers() -> None:
    layer = nnx.LinearGeneral((2, 3), (4, 5), axis=(-2, -1), rngs=nnx.Rngs(0))
    target = torch.nn.Linear(6, 20)
    x = np.random.default_rng(1).standard_normal((3, 2, 3)).astype(np.float32)
    both_ways(layer, target, lambda: target(torch.from_numpy(x.reshape(3, 6))).reshape(3, 4, 5), lambda: layer(x))


@pytest.mark.parametrize(("equation", "kernel"), [("bti,ihd->bthd", (6, 2, 4)), ("bti,hdi->bthd", (2, 4, 6))])
def test_einsum(equation: str, kernel: tuple[int, ...]) -> None:
    layer, target = nnx.Einsum(equation, kernel, rngs=nnx.Rngs(0)), torch.nn.Linear(6, 8, bias=False)
    each = rules(Holder(layer), {("layer", "kernel"): kernel})["layer", "kernel"]
    assert each.guessed
    leaf = np.asarray(layer.kernel[...])
    with torch.no_grad():
        target.weight.copy_(torch.from_numpy(each.read(leaf, full_bounds(each.canonical_shape)).copy()))
    x = np.random.default_rng(1).standard_normal((3, 5, 6)).astype(np.float32)
    agree(target(torch.from_numpy(x)).reshape(3, 5, 2, 4), layer(x))


class Attention(torch.nn.Module):
    """Two heads, with a projection for each of query, key, value and result."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (torch.nn.Linear(6, 8) for _ in range(3))
        self.out = torch.nn.Linear(8, 6)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        heads = [part(x).unflatten(-1, (2, 4)).transpose(1, 2) for part in (self.query, self.key, self.value)]
        return self.out(torch.nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(-2))


def test_attention() -> None:
    layer = nnx.MultiHeadAttention(num_heads=2, in_features=6, qkv_features=8, decode=False, rngs=nnx.Rngs(0))
    target = Attention()
    x = np.random.default_rng(1).standard_normal((3, 5, 6)).astype(np.float32)
    both_ways(layer, target, lambda: target(torch.from_numpy(x)), lambda: layer(x))


LINEN: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.nn.Module], tuple[int, ...]]] = {
    "dense": (lambda: nn.Dense(3), lambda: torch.nn.Linear(4, 3), (2, 4)),
    "conv1": (lambda: nn.Conv(3, (2,), padding="VALID"), lambda: torch.nn.Conv1d(4, 3, 2), (2, 4, 5)),
    "conv2": (lambda: nn.Conv(3, (2, 3), padding="VALID"), lambda: torch.nn.Conv2d(4, 3, (2, 3)), (2, 4, 5, 5)),
    "conv3": (lambda: nn.Conv(3, (2, 3, 1), padding="VALID"), lambda: torch.nn.Conv3d(4, 3, (2, 3, 1)), (2, 4, 5, 5, 5)),
    "up": (
        lambda: nn.ConvTranspose(3, (2, 3), strides=(2, 2), padding="VALID"),
        lambda: torch.nn.ConvTranspose2d(4, 3, (2, 3), stride=2),
        (2, 4, 5, 5),
    ),
    "up_as_gradient": (
        lambda: nn.ConvTranspose(3, (2, 3), strides=(2, 2), padding="VALID", transpose_kernel=True),
        lambda: torch.nn.ConvTranspose2d(4, 3, (2, 3), stride=2),
        (2, 4, 5, 5),
    ),
    "layer_norm": (lambda: nn.LayerNorm(epsilon=1e-5), lambda: torch.nn.LayerNorm(4), (2, 4)),
    "rms_norm": (lambda: nn.RMSNorm(epsilon=1e-5), lambda: torch.nn.RMSNorm(4, eps=1e-5), (2, 4)),
    "group_norm": (lambda: nn.GroupNorm(2, epsilon=1e-5), lambda: torch.nn.GroupNorm(2, 4), (2, 4, 5)),
    "batch_norm": (lambda: nn.BatchNorm(True, epsilon=1e-5), lambda: torch.nn.BatchNorm1d(4), (2, 4)),
    "attention": (lambda: nn.MultiHeadDotProductAttention(2, qkv_features=8), Attention, (3, 5, 6)),
}


class InSetup(nn.Module):
    """A layer that is known by its type."""

    layer: nn.Module

    def __call__(self, x: Any) -> Any:
        return self.layer(x)


@pytest.mark.parametrize("name", LINEN)
def test_linen(name: str) -> None:
    make, make_target, shape = LINEN[name]
    module, target = InSetup(make()), make_target()
    draw = np.random.default_rng(0)
    x = draw.standard_normal(shape).astype(np.float32)
    spatial = len(shape) > 2 and name != "attention"
    ours = jnp.asarray(channels_last(x) if spatial else x)
    shapes = {path: leaf.shape for path, leaf in flatten_dict(module.init(jax.random.key(0), ours)).items()}
    by_path = rules(module, shapes)
    leaves = {path: draw.uniform(0.5, 1.5, each).astype(np.float32) for path, each in shapes.items()}
    stored = {
        each.name.removeprefix("layer."): each.read(leaves[path], full_bounds(each.canonical_shape)) for path, each in by_path.items()
    }
    missing, unexpected = target.load_state_dict({key: torch.from_numpy(value) for key, value in stored.items()}, strict=False)
    assert not unexpected
    assert all(key.endswith("num_batches_tracked") for key in missing)
    theirs = target.eval()(torch.from_numpy(x))
    agree(torch.movedim(theirs, 1, -1) if spatial else theirs, module.apply(unflatten_dict(leaves), ours))
    back = {path: each.restore(target.state_dict()[each.name.removeprefix("layer.")].numpy()) for path, each in by_path.items()}
    assert all(np.array_equal(back[path], leaves[path]) for path in leaves)


def test_linen_embedding() -> None:
    module, ids = InSetup(nn.Embed(7, 3)), np.array([[0, 6], [2, 2]])
    variables = module.init(jax.random.key(0), ids)
    ((path, leaf),) = flatten_dict(variables).items()
    each = rules(module, {path: leaf.shape})[path]
    assert each.name == "layer.weight"
    target = torch.nn.Embedding(7, 3, _weight=torch.from_numpy(each.read(np.asarray(leaf), full_bounds(each.canonical_shape)).copy()))
    agree(target(torch.from_numpy(ids)), module.apply(variables, ids))
