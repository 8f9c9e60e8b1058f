"""`Mesh` and `Spec` in JAX's terms: `jax.sharding.Mesh` and `PartitionSpec`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, PartitionSpec

from xaccel.mesh.mesh import Mesh
from xaccel.mesh.spec import Spec


def to_native_mesh(mesh: Mesh, devices: Sequence[Any] | None = None) -> jax.sharding.Mesh:
    """The mesh over the given devices (all of the run by default), with the same axis names.

    The axes are `Auto`: under `Explicit` ones, JAX's default, an ordinary loss over a sharded batch fails with `ShardingTypeError`.
    """
    grid = np.asarray(jax.devices() if devices is None else list(devices)).reshape(mesh.shape)
    return jax.sharding.Mesh(grid, mesh.axis_names, axis_types=(AxisType.Auto,) * len(mesh.axis_names))


def to_native_spec(mesh: Mesh, spec: Spec) -> PartitionSpec:
    """The partition of each dim; axes that the mesh lacks are an error, as in `Mesh.size`."""
    for axis in spec.used_axes:
        mesh.size(axis)
    return PartitionSpec(*spec.dims)
