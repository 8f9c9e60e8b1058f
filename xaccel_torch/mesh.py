"""`Mesh` and `Spec` in torch's terms: `DeviceMesh` and DTensor placements."""

from __future__ import annotations

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Placement, Replicate, Shard

from xaccel.errors import UnsupportedError
from xaccel.mesh.mesh import Mesh
from xaccel.mesh.spec import Spec


def to_native_mesh(mesh: Mesh, device_kind: str = "cpu") -> DeviceMesh:
    """The mesh over all processes, with the same axis names; a collective call."""
    return init_device_mesh(device_kind, mesh.shape, mesh_dim_names=mesh.axis_names)


def to_native_spec(mesh: Mesh, spec: Spec) -> tuple[Placement, ...]:
    """One placement for each axis of the mesh.

    Raises:
        UnsupportedError: several axes divide one dim in another order than the mesh's: DTensor divides in the mesh's order only.
    """
    placements: list[Placement] = [Replicate()] * len(mesh.axis_names)
    for dim in range(len(spec.dims)):
        positions = [mesh.axis_names.index(axis) for axis in spec.axes(dim)]
        if positions != sorted(positions):
            raise UnsupportedError(f"{spec} divides dim {dim} by {spec.axes(dim)}; DTensor takes the order of the mesh, {mesh.axis_names}")
        for position in positions:
            placements[position] = Shard(dim)
    return tuple(placements)
