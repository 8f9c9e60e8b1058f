"""From (mesh, spec, shape) to each device's slice of a tensor. Integers only.

Requirements, and why it is written this way:

* A `Spec` says for each dim which axes of the mesh divide it: none, one, or several (the first named varies slowest). Axes that no dim
  names replicate.
* Sizes need not divide. Each position along a dim gets `ceil(size / positions)` elements, the last ones fewer or none: this is what
  DTensor's `Shard` and `torch.chunk` do, and what JAX does where it allows uneven shards, so live shards of both frameworks are described exactly.
* Dims may be of size 0, tensors may be 0-d; slices are half-open and empty slices are well-formed.
* The slices of all devices cover the tensor; those of the owners (position 0 along every replicating axis) cover it exactly once. Whoever
  writes a checkpoint relies on this, so it is tested as a property.
"""

from __future__ import annotations

import dataclasses

from xaccel.errors import ConfigurationError
from xaccel.mesh.mesh import Coordinate, Mesh

Bounds = tuple[tuple[int, int], ...]
"""A slice of a tensor: half-open `(start, stop)` per dim, in elements. `()` is the one slice of a 0-d tensor."""

DimAxes = str | tuple[str, ...] | None


@dataclasses.dataclass(frozen=True, init=False)
class Spec:
    """Which axes divide which dim.

    Args:
        dims: for each dim an axis name, a tuple of names, or `None`; dims beyond the last given are not divided.

    Raises:
        ConfigurationError: an axis divides two dims.

    >>> Spec("dp_shard", None)
    Spec('dp_shard', None)
    """

    dims: tuple[DimAxes, ...]

    def __init__(self, *dims: DimAxes):
        object.__setattr__(self, "dims", dims)
        used = [axis for dim in range(len(dims)) for axis in self.axes(dim)]
        twice = sorted({axis for axis in used if used.count(axis) > 1})
        if twice:
            raise ConfigurationError(f"{self!r}: axis {', '.join(twice)} divides more than one dim")

    def axes(self, dim: int) -> tuple[str, ...]:
        """The axes that divide one dim, slowest first."""
        entry = self.dims[dim] if dim < len(self.dims) else None
        if entry is None:
            return ()
        return (entry,) if isinstance(entry, str) else tuple(entry)

    @property
    def used_axes(self) -> frozenset[str]:
        """All axes that divide some dim."""
        return frozenset(axis for dim in range(len(self.dims)) for axis in self.axes(dim))

    def __repr__(self) -> str:
        return f"Spec({', '.join(map(repr, self.dims))})"


REPLICATED = Spec()
"""Every device holds the whole tensor."""


def split_dim(size: int, num_positions: int, position: int) -> tuple[int, int]:
    """The part of a dim that one of `num_positions` holds.

    >>> [split_dim(5, 4, position) for position in range(4)]
    [(0, 2), (2, 4), (4, 5), (5, 5)]
    """
    each = -(-size // num_positions)
    start = min(position * each, size)
    return start, min(start + each, size)


def shard_bounds(mesh: Mesh, spec: Spec, shape: tuple[int, ...], coordinate: Coordinate) -> Bounds:
    """The slice of a tensor that the device at `coordinate` holds.

    Several axes divide a dim as one axis whose positions they enumerate together, the first named slowest.

    Raises:
        ConfigurationError: the spec has more dims than the shape, or names an axis that the mesh lacks.
    """
    if len(spec.dims) > len(shape):
        raise ConfigurationError(f"{spec} has {len(spec.dims)} dims, the tensor of shape {shape} has {len(shape)}")
    bounds = []
    for dim, size in enumerate(shape):
        num_positions, position = 1, 0
        for axis in spec.axes(dim):
            position = position * mesh.size(axis) + coordinate[axis]
            num_positions *= mesh.size(axis)
        bounds.append(split_dim(size, num_positions, position))
    return tuple(bounds)


def is_owner(mesh: Mesh, spec: Spec, coordinate: Coordinate) -> bool:
    """Whether the device is the first replica of its slice: position 0 along every axis that divides nothing."""
    return all(coordinate[axis] == 0 for axis in mesh.axis_names if axis not in spec.used_axes)
