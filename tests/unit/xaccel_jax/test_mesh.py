"""The slices of `jax.sharding` are those of our arithmetic."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from jax.sharding import AxisType, NamedSharding

from xaccel.errors import ConfigurationError
from xaccel.mesh.mesh import Mesh
from xaccel.mesh.spec import Spec, shard_bounds
from xaccel_jax.mesh import to_native_mesh, to_native_spec

MESH = Mesh({"a": 2, "b": 4})


@pytest.mark.parametrize(
    ("spec", "shape"),
    [
        (Spec(), (3, 5)),
        (Spec(), ()),
        (Spec("a"), (6, 3)),
        (Spec(None, "b"), (3, 8)),
        (Spec("b", "a"), (8, 4)),
        (Spec(("a", "b")), (16, 2)),
        (Spec(("b", "a")), (16, 2)),
        (Spec(None, ("b", "a"), None), (2, 8, 3)),
    ],
)
def test_slices_of_every_device(spec: Spec, shape: tuple[int, ...]) -> None:
    native = to_native_mesh(MESH)
    value = np.arange(int(np.prod(shape))).reshape(shape)
    array = jax.device_put(value, NamedSharding(native, to_native_spec(MESH, spec)))
    held = {shard.device: shard for shard in array.addressable_shards}
    for index, coordinate in enumerate(MESH.coordinates()):
        shard = held[native.devices.flat[index]]
        found = tuple(part.indices(size)[:2] for part, size in zip(shard.index, shape, strict=True))
        bounds = shard_bounds(MESH, spec, shape, coordinate)
        assert found == bounds
        np.testing.assert_array_equal(np.asarray(shard.data), value[tuple(slice(*pair) for pair in bounds)])


def test_axes_are_auto_and_named() -> None:
    native = to_native_mesh(MESH)
    assert native.axis_names == ("a", "b")
    assert native.shape == {"a": 2, "b": 4}
    assert set(native.axis_types) == {AxisType.Auto}


def test_some_devices_only() -> None:
    devices = jax.devices()[2:4]
    assert to_native_mesh(Mesh({"a": 2}), devices).devices.tolist() == devices


def test_an_axis_that_the_mesh_lacks() -> None:
    with pytest.raises(ConfigurationError, match="'z'"):
        to_native_spec(MESH, Spec("z"))
