"""The local shapes of DTensor are those of our arithmetic, uneven dims included."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from xaccel.errors import UnsupportedError
from xaccel.mesh.mesh import Mesh
from xaccel.mesh.spec import Spec, shard_bounds
from xaccel_torch.mesh import to_native_spec

CASES = [
    (Spec(), (3, 5)),
    (Spec("a"), (6, 3)),
    (Spec("a"), (5, 3)),
    (Spec("a"), (1, 3)),
    (Spec(None, "b"), (3, 7)),
    (Spec("b", "a"), (3, 5)),
    (Spec(("a", "b")), (8, 2)),
]
MESH = Mesh({"a": 2, "b": 2})


def local_slices() -> list[list[object]]:
    """For each case, the values that this rank holds, by DTensor and by our arithmetic."""
    import torch.distributed as dist
    from torch.distributed.tensor import distribute_tensor

    from xaccel_torch.mesh import to_native_mesh

    made = not dist.is_initialized()
    if made:
        dist.init_process_group("gloo")
    native = to_native_mesh(MESH)
    coordinate = MESH.coordinate(dist.get_rank())
    found: list[list[object]] = []
    for spec, shape in CASES:
        value = torch.arange(torch.Size(shape).numel()).reshape(shape)
        local = distribute_tensor(value, native, to_native_spec(MESH, spec)).to_local()
        ours = value[tuple(slice(*pair) for pair in shard_bounds(MESH, spec, shape, coordinate))]
        found.append([local.tolist(), ours.tolist()])
    if made:
        dist.destroy_process_group()
    return found


def test_local_slices_of_every_rank(ranks: Callable[..., object]) -> None:
    for rank, found in enumerate(ranks("torch", 4).run(local_slices)):  # type: ignore[attr-defined]
        for (spec, shape), (native, ours) in zip(CASES, found, strict=True):
            assert native == ours, f"rank {rank}: {spec} of {shape}"


def test_placements_stand_in_the_order_of_the_mesh() -> None:
    from torch.distributed.tensor import Replicate, Shard

    assert to_native_spec(MESH, Spec(None, "a")) == (Shard(1), Replicate())
    assert to_native_spec(MESH, Spec(("a", "b"))) == (Shard(0), Shard(0))


def test_another_order_on_one_dim_is_refused() -> None:
    with pytest.raises(UnsupportedError, match="order of the mesh"):
        to_native_spec(MESH, Spec(("b", "a")))
