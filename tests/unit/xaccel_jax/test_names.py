"""Canonical names and layouts of Flax's leaves."""

from __future__ import annotations

from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from flax.traverse_util import flatten_dict
from hypothesis import given, settings
from hypothesis import strategies as st

from xaccel.checkpoint.chunks import full_bounds
from xaccel_jax.names import Rule, kept, rules


def leaves(model: Any) -> tuple[Any, dict[tuple[str | int, ...], np.ndarray]]:
    """The module that rules are asked about, and its leaves by path, as Flax itself says; without random streams."""
    if isinstance(model, nnx.Module):
        variables = dict(nnx.to_flat_state(nnx.state(model)))
        return model, {path: np.asarray(leaf[...]) for path, leaf in variables.items() if not isinstance(leaf, nnx.RngState)}
    module, nested = model.unbind()
    return module, {path: np.asarray(leaf) for path, leaf in flatten_dict(dict(nested)).items()}


def found(model: Any) -> dict[str, Rule]:
    """Rules by canonical name, checked to be exact round trips."""
    module, values = leaves(model)
    by_path = rules(module, {path: leaf.shape for path, leaf in values.items()})
    for path, rule in by_path.items():
        stored = rule.read(values[path], full_bounds(rule.canonical_shape))
        assert stored.shape == rule.canonical_shape
        assert np.array_equal(rule.restore(stored), values[path])
    assert len({rule.name for rule in by_path.values()}) == len(by_path)
    return {rule.name: rule for rule in by_path.values()}


def shapes(model: Any) -> dict[str, tuple[int, ...]]:
    return {name: rule.canonical_shape for name, rule in found(model).items()}


def holder(**parts: Any) -> nnx.Module:
    class Holder(nnx.Module):
        def __init__(self) -> None:
            for name, part in parts.items():
                setattr(self, name, part)

    return Holder()


RNGS = nnx.Rngs(0)


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (nnx.Linear(2, 3, rngs=RNGS), {"bias": (3,), "weight": (3, 2)}),
        (nnx.Conv(2, 3, (5,), rngs=RNGS), {"bias": (3,), "weight": (3, 2, 5)}),
        (nnx.Conv(4, 6, (5, 7), feature_group_count=2, rngs=RNGS), {"bias": (6,), "weight": (6, 2, 5, 7)}),
        (nnx.Conv(2, 3, (1, 5, 7), use_bias=False, rngs=RNGS), {"weight": (3, 2, 1, 5, 7)}),
        (nnx.ConvTranspose(2, 3, (5, 7), rngs=RNGS), {"bias": (3,), "weight": (2, 3, 5, 7)}),
        (nnx.ConvTranspose(2, 3, (5, 7), transpose_kernel=True, rngs=RNGS), {"bias": (3,), "weight": (2, 3, 5, 7)}),
        (nnx.Embed(7, 3, rngs=RNGS), {"weight": (7, 3)}),
        (nnx.LayerNorm(3, rngs=RNGS), {"bias": (3,), "weight": (3,)}),
        (nnx.RMSNorm(3, rngs=RNGS), {"weight": (3,)}),
        (nnx.BatchNorm(3, rngs=RNGS), {"bias": (3,), "weight": (3,), "running_mean": (3,), "running_var": (3,)}),
        (nnx.LinearGeneral(2, (4, 5), rngs=RNGS), {"bias": (20,), "weight": (20, 2)}),
        (nnx.LinearGeneral((2, 3), 5, axis=(-2, -1), rngs=RNGS), {"bias": (5,), "weight": (5, 6)}),
        (nnx.LinearGeneral(2, 5, axis=-1, batch_axis={0: 3}, rngs=RNGS), {"bias": (3, 5), "kernel": (3, 2, 5)}),
        (nnx.Einsum("...d,dhk->...hk", (2, 3, 4), (3, 4), rngs=RNGS), {"bias": (12,), "weight": (12, 2)}),
        (nnx.Einsum("...d,hkd->...hk", (3, 4, 2), rngs=RNGS), {"weight": (12, 2)}),
        (nnx.Einsum("bd,bde->be", (3, 4, 2), rngs=RNGS), {"kernel": (3, 4, 2)}),
    ],
)
def test_layers_of_nnx(layer: Any, expected: dict[str, tuple[int, ...]]) -> None:
    assert shapes(holder(layer=layer)) == {f"layer.{name}": shape for name, shape in expected.items()}


def test_attention_has_plain_projections() -> None:
    attention = nnx.MultiHeadAttention(num_heads=2, in_features=6, qkv_features=8, rngs=RNGS, decode=False)
    expected = {f"attention.{part}.{leaf}" for part in ("query", "key", "value", "out") for leaf in ("weight", "bias")}
    sizes = shapes(holder(attention=attention))
    assert set(sizes) == expected
    assert sizes["attention.query.weight"] == (8, 6)
    assert sizes["attention.query.bias"] == (8,)
    assert sizes["attention.out.weight"] == (6, 8)


def test_containers_are_named_as_in_torch() -> None:
    model = holder(
        listed=nnx.List([nnx.Embed(2, 2, rngs=RNGS) for _ in range(11)]),
        named=nnx.Dict({"a": nnx.Embed(2, 2, rngs=RNGS)}),
        row=nnx.Sequential(nnx.Linear(2, 2, use_bias=False, rngs=RNGS), nnx.relu, nnx.Linear(2, 2, use_bias=False, rngs=RNGS)),
        params=nnx.Embed(2, 2, rngs=RNGS),
    )
    expected = {*(f"listed.{index}.weight" for index in range(11)), "named.a.weight", "row.0.weight", "row.2.weight", "params.weight"}
    assert set(found(model)) == expected


def test_a_layer_of_the_users_own_is_kept() -> None:
    class Own(nnx.Module):
        def __init__(self) -> None:
            self.kernel = nnx.Param(jnp.ones((2, 3)))

    rule = found(holder(own=Own()))["own.kernel"]
    assert (rule.role, rule.guessed, rule.canonical_shape) == ("kept", False, (2, 3))


def test_tied_variables_are_one_tensor_under_the_name_made_first() -> None:
    """As in torch, whatever the order of the alphabet."""
    encoder = nnx.Linear(3, 3, rngs=RNGS)
    decoder = nnx.Linear(3, 3, rngs=RNGS)
    decoder.kernel = encoder.kernel
    by_name = found(holder(encoder=encoder, decoder=decoder, again=encoder))
    assert set(by_name) == {"encoder.weight", "encoder.bias", "decoder.bias"}
    assert by_name["encoder.weight"].aliases == ("decoder.weight", "again.weight")
    assert by_name["encoder.bias"].aliases == ("again.bias",)


def test_a_tie_between_layouts_that_differ_is_no_alias() -> None:
    """An embedding (3, 3) used as a kernel (3, 3) is its transpose on disk, under either name."""
    embed, head = nnx.Embed(3, 3, rngs=RNGS), nnx.Linear(3, 3, use_bias=False, rngs=RNGS)
    head.kernel = embed.embedding
    by_name = found(holder(embed=embed, head=head))
    assert list(by_name) == ["embed.weight"]
    assert by_name["embed.weight"].aliases == ()


def test_two_leaves_never_share_a_name() -> None:
    class Both(nnx.LayerNorm):
        def __init__(self) -> None:
            super().__init__(3, rngs=RNGS)
            self.weight = nnx.Param(jnp.zeros((2, 3)))

    assert shapes(holder(norm=Both())) == {"norm.weight": (2, 3), "norm.bias": (3,), "norm.scale": (3,)}


class Inner(nn.Module):
    def setup(self) -> None:
        self.up = nn.ConvTranspose(2, (3,), transpose_kernel=True)
        self.scale = nn.LayerNorm()

    def __call__(self, x: Any) -> Any:
        return self.scale(self.up(x))


class Setup(nn.Module):
    """Linen layers that exist without a call."""

    def setup(self) -> None:
        self.inner = Inner()
        self.blocks = [nn.Dense(4), nn.DenseGeneral((2, 3))]
        self.attend = nn.MultiHeadDotProductAttention(num_heads=3)

    def __call__(self, x: Any) -> Any:
        x = self.blocks[1](self.blocks[0](self.inner(x)))
        return self.attend(x.reshape(*x.shape[:-2], 6))


class Compact(nn.Module):
    """Linen layers that exist only inside a call."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        x = nn.BatchNorm(use_running_average=True)(nn.Conv(4, (3, 3))(x))
        x = nn.Conv(4, (3, 3), name="mine")(x).reshape(x.shape[0], -1, 4)
        x = nn.MultiHeadDotProductAttention(num_heads=2)(x)
        x = nn.DenseGeneral((2, 3))(x)
        return nn.Dense(2, name="head")(x.reshape(*x.shape[:-2], -1))


def bound(module: nn.Module, *shape: int) -> nn.Module:
    x = jnp.ones(shape)
    return module.bind(module.init(jax.random.key(0), x))


def test_linen_layers_made_in_setup_are_known_by_type() -> None:
    by_name = found(bound(Setup(), 2, 5, 2))
    assert not any(rule.guessed for rule in by_name.values())
    sizes = {name: rule.canonical_shape for name, rule in by_name.items()}
    assert {name: size for name, size in sizes.items() if not name.startswith("attend")} == {
        "inner.up.weight": (2, 2, 3),
        "inner.up.bias": (2,),
        "inner.scale.weight": (2,),
        "inner.scale.bias": (2,),
        "blocks_0.weight": (4, 2),
        "blocks_0.bias": (4,),
        "blocks_1.weight": (6, 4),
        "blocks_1.bias": (6,),
    }
    assert by_name["inner.up.weight"].flipped == ()
    assert (sizes["attend.key.weight"], sizes["attend.key.bias"], sizes["attend.out.weight"]) == ((6, 6), (6,), (6, 6))


def test_linen_layers_of_a_compact_method_are_known_by_name_or_guessed() -> None:
    by_name = found(bound(Compact(), 2, 3, 3, 2))
    attention = "MultiHeadDotProductAttention_0"
    assert {name: rule.canonical_shape for name, rule in by_name.items() if name.endswith(("weight", "running_var"))} == {
        "BatchNorm_0.weight": (4,),
        "BatchNorm_0.running_var": (4,),
        "Conv_0.weight": (4, 2, 3, 3),
        "mine.weight": (4, 4, 3, 3),
        **{f"{attention}.{part}.weight": (4, 4) for part in ("query", "key", "value", "out")},
        "DenseGeneral_0.weight": (6, 4),
        "head.weight": (2, 6),
    }
    assert not by_name["Conv_0.weight"].guessed
    assert by_name["mine.weight"].guessed
    assert by_name["head.weight"].guessed


def test_linen_whose_setup_needs_values_is_guessed() -> None:
    class Own(nn.Module):
        def setup(self) -> None:
            self.gain = self.param("gain", nn.initializers.ones, (2,))
            self.head = nn.Dense(3)

        def __call__(self, x: Any) -> Any:
            return self.head(x * self.gain)

    by_name = found(bound(Own(), 1, 2))
    assert {name: rule.canonical_shape for name, rule in by_name.items()} == {"gain": (2,), "head.weight": (3, 2), "head.bias": (3,)}


def test_collections_of_linen_do_not_collide() -> None:
    class Own(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            self.variable("batch_stats", "w", lambda: jnp.zeros(3))
            self.variable("cache", "w", lambda: jnp.zeros(2))
            return x * self.param("w", nn.initializers.ones, (1,))

    assert shapes(bound(Own(), 1, 2)) == {"w": (1,), "batch_stats.w": (3,), "cache.w": (2,)}


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_slices_are_slices_of_the_whole(data: Any) -> None:
    shape = tuple(data.draw(st.lists(st.integers(0, 4), min_size=2, max_size=4)))
    merge_at = data.draw(st.integers(1, len(shape) - 1))
    merged = data.draw(st.sampled_from([shape, (int(np.prod(shape[:merge_at])), int(np.prod(shape[merge_at:])))]))
    permutation = tuple(data.draw(st.permutations(range(len(merged)))))
    flipped = tuple(dim for dim in range(len(merged)) if data.draw(st.booleans()))
    rule = Rule(path=("w",), name="w", shape=shape, merged=merged, permutation=permutation, flipped=flipped)
    leaf = np.arange(np.prod(shape)).reshape(shape)
    whole = rule.read(leaf, full_bounds(rule.canonical_shape))
    assert np.array_equal(rule.restore(whole), leaf)
    bounds = tuple(tuple(sorted((data.draw(st.integers(0, size)), data.draw(st.integers(0, size))))) for size in whole.shape)
    part = rule.read(leaf, bounds)
    assert part.flags.c_contiguous
    assert np.array_equal(part, whole[tuple(slice(*pair) for pair in bounds)])


def test_a_record_is_followed_where_it_fits() -> None:
    now = kept(("a", "kernel"), "a.kernel", (2, 3, 4))
    before = Rule(path=now.path, name="a.kernel", shape=now.shape, merged=(2, 12), permutation=(1, 0), flipped=(0,), role="linear")
    followed = now.as_recorded(before.record())
    assert followed.layout == before.layout
    for wrong in (
        {},
        before.record() | {"path": ["b", "kernel"]},
        before.record() | {"reshape": [2, 11]},
        before.record() | {"permute": [0, 0]},
        before.record() | {"permute": [0, 1, 2]},
        before.record() | {"flip": [7]},
    ):
        assert now.as_recorded(wrong) is now
