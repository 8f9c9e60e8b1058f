"""Slices cover, and owners cover exactly once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from xaccel.errors import ConfigurationError
from xaccel.mesh.mesh import Mesh
from xaccel.mesh.rules import PathRules, fully_sharded
from xaccel.mesh.spec import REPLICATED, Spec, is_owner, shard_bounds, split_dim

AXES = ("a", "b", "c")


@st.composite
def cases(draw: st.DrawFn) -> tuple[Mesh, Spec, tuple[int, ...]]:
    names = AXES[: draw(st.integers(1, 3))]
    mesh = Mesh({name: draw(st.integers(1, 4)) for name in names})
    shape = tuple(draw(st.lists(st.integers(0, 7), max_size=3)))
    homes = {name: draw(st.integers(-1, len(shape) - 1)) for name in draw(st.permutations(names))}
    dims = [tuple(name for name, home in homes.items() if home == dim) or None for dim in range(len(shape))]
    return mesh, Spec(*dims), shape


@settings(max_examples=100, deadline=None)
@given(cases())
def test_owners_tile_the_tensor_exactly_once_and_all_devices_cover_it(case: tuple[Mesh, Spec, tuple[int, ...]]) -> None:
    mesh, spec, shape = case
    owned, held = np.zeros(shape, int), np.zeros(shape, int)
    for coordinate in mesh.coordinates():
        index = tuple(slice(*pair) for pair in shard_bounds(mesh, spec, shape, coordinate))
        held[index] += 1
        owned[index] += is_owner(mesh, spec, coordinate)
    assert (owned == 1).all()
    replicas = mesh.num_devices // int(np.prod([mesh.size(axis) for axis in spec.used_axes] or [1]))
    assert (held == replicas).all()


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 20), st.integers(1, 8))
def test_parts_of_a_dim_are_those_of_torch_chunk(size: int, parts: int) -> None:
    each = -(-size // parts)
    plain = [list(range(size))[start : start + each] for start in range(0, each * parts, each)] if each else [[]] * parts
    assert [list(range(*split_dim(size, parts, position))) for position in range(parts)] == plain


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=3))
def test_coordinates_enumerate_devices(sizes: list[int]) -> None:
    mesh = Mesh(dict(zip(AXES, sizes, strict=False)))
    assert [mesh.device_index(coordinate) for coordinate in mesh.coordinates()] == list(range(mesh.num_devices))


def test_several_axes_on_one_dim_the_first_slowest() -> None:
    mesh = Mesh({"a": 2, "b": 3})
    bounds = [shard_bounds(mesh, Spec(("b", "a")), (12,), coordinate)[0] for coordinate in mesh.coordinates()]
    assert bounds == [(0, 2), (4, 6), (8, 10), (2, 4), (6, 8), (10, 12)]


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: Spec("a", "a"), "axis a"),
        (lambda: Mesh({}), "at least one axis"),
        (lambda: Mesh({"a": 0}), "'a': 0"),
        (lambda: shard_bounds(Mesh({"a": 2}), Spec("z"), (4,), {"a": 0}), "'z'"),
        (lambda: shard_bounds(Mesh({"a": 2}), Spec(None, "a"), (4,), {"a": 0}), "2 dims"),
        (lambda: Mesh({"a": 2}).coordinate(2), "device 2"),
    ],
)
def test_errors_name_the_values(make: object, named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        make()  # type: ignore[operator]


def test_two_matching_patterns_are_an_error_naming_both() -> None:
    rules = PathRules({r".*kernel": Spec("a"), r"fc1\..*": Spec(None, "a")})
    assert rules.spec("fc2.kernel") == Spec("a")
    assert rules.spec("fc2.bias") == REPLICATED
    with pytest.raises(ConfigurationError, match=r"kernel.*fc1"):
        rules.spec("fc1.kernel")


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((3, 8, 4), Spec(None, "s")), ((8, 8), Spec("s")), ((3, 5), REPLICATED), ((), REPLICATED), ((0, 4), Spec(None, "s"))],
)
def test_fully_sharded(shape: tuple[int, ...], expected: Spec) -> None:
    assert fully_sharded(shape, "s", 4) == expected


def test_small_tensors_stay_whole() -> None:
    assert fully_sharded((8, 8), "s", 4, min_num_elements=65) == REPLICATED
