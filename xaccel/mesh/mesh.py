"""A mesh of devices: named axes, and where each device stands on them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from xaccel.errors import ConfigurationError

Coordinate = Mapping[str, int]


class Mesh:
    """Devices arranged along named axes, the last axis varying fastest.

    Args:
        sizes: axis name -> number of positions, in order.

    Raises:
        ConfigurationError: no axis, or a size below 1.

    >>> mesh = Mesh({"dp_replicate": 2, "tp": 3})
    >>> mesh.num_devices, mesh.coordinate(4)
    (6, {'dp_replicate': 1, 'tp': 1})
    """

    def __init__(self, sizes: Mapping[str, int]):
        if not sizes or any(size < 1 for size in sizes.values()):
            raise ConfigurationError(f"Mesh({dict(sizes)}): expected at least one axis, each of size 1 or more")
        self.sizes = dict(sizes)

    @property
    def axis_names(self) -> tuple[str, ...]:
        """Names of the axes, in order."""
        return tuple(self.sizes)

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the axes, in order."""
        return tuple(self.sizes.values())

    @property
    def num_devices(self) -> int:
        """Positions of the whole mesh."""
        return math.prod(self.sizes.values())

    def size(self, axis: str) -> int:
        """Positions along one axis.

        Raises:
            ConfigurationError: no such axis; the message names those there are.
        """
        if axis not in self.sizes:
            raise ConfigurationError(f"the mesh has no axis {axis!r}: it has {', '.join(self.sizes)}")
        return self.sizes[axis]

    def coordinate(self, device_index: int) -> dict[str, int]:
        """Where device `device_index` stands.

        Raises:
            ConfigurationError: the index is not in the mesh.
        """
        if not 0 <= device_index < self.num_devices:
            raise ConfigurationError(f"device {device_index} is not in a mesh of {self.num_devices} ({self.sizes})")
        found: dict[str, int] = {}
        for axis in reversed(self.sizes):
            device_index, found[axis] = divmod(device_index, self.sizes[axis])
        return {axis: found[axis] for axis in self.sizes}

    def device_index(self, coordinate: Coordinate) -> int:
        """The inverse of `coordinate`."""
        index = 0
        for axis, size in self.sizes.items():
            index = index * size + coordinate[axis]
        return index

    def coordinates(self) -> Iterator[dict[str, int]]:
        """Every device's place, in the order of devices."""
        return (self.coordinate(index) for index in range(self.num_devices))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mesh) and list(self.sizes.items()) == list(other.sizes.items())

    def __hash__(self) -> int:
        return hash(tuple(self.sizes.items()))

    def __repr__(self) -> str:
        return f"Mesh({self.sizes})"
