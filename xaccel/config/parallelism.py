"""Sizes of the mesh's axes."""

from __future__ import annotations

import dataclasses
import json
import math
from typing import Any

from xaccel.errors import ConfigurationError, UnsupportedError
from xaccel.mesh.mesh import Mesh

_BACKENDS = {"cp_backend": (None, "torch"), "sp_backend": (None, "deepspeed")}


@dataclasses.dataclass(frozen=True, kw_only=True)
class ParallelismConfig:
    """How the devices of a run divide into axes; the product of all sizes is the number of devices.

    Args:
        dp_replicate_size: replicas that each hold the whole model (or all of its shards).
        dp_shard_size: data parallelism that also shards parameters, gradients and optimizer state.
        tp_size: tensor parallelism.
        cp_size: context parallelism over the sequence.
        cp_backend: who does it: "torch", or the strategy's choice where `None`.
        sp_size: sequence parallelism over attention heads.
        sp_backend: who does it: "deepspeed", or the strategy's choice where `None`.
        tp_handler, cp_handler, sp_handler: options of the three; this version takes none.

    A size of `None` is 1.

    Raises:
        ConfigurationError: a size below 1, an unknown backend, or both `cp_size` and `sp_size` above 1.
        UnsupportedError: a handler is given.
    """

    dp_replicate_size: int = 1
    dp_shard_size: int = 1
    tp_size: int = 1
    cp_size: int = 1
    cp_backend: str | None = None
    sp_size: int = 1
    sp_backend: str | None = None
    tp_handler: Any = None
    cp_handler: Any = None
    sp_handler: Any = None

    def __post_init__(self) -> None:
        for name in self.sizes:
            if getattr(self, f"{name}_size") is None:
                object.__setattr__(self, f"{name}_size", 1)
        self._check_options()
        wrong = {name: size for name, size in self.sizes.items() if not isinstance(size, int) or isinstance(size, bool) or size < 1}
        if wrong:
            raise ConfigurationError(f"ParallelismConfig: sizes must be integers of at least 1, got {wrong}")
        if self.cp_size > 1 and self.sp_size > 1:
            raise ConfigurationError(
                f"ParallelismConfig(cp_size={self.cp_size}, sp_size={self.sp_size}): both divide the sequence; use one of them"
            )

    def _check_options(self) -> None:
        for name, known in _BACKENDS.items():
            if getattr(self, name) not in known:
                raise ConfigurationError(f"ParallelismConfig({name}={getattr(self, name)!r}): expected one of {known}")
        handlers = [name for name in ("tp_handler", "cp_handler", "sp_handler") if getattr(self, name) is not None]
        if handlers:
            raise UnsupportedError(f"ParallelismConfig({', '.join(handlers)}): this version of xaccel has no options of these; leave out")

    @property
    def sizes(self) -> dict[str, int]:
        """Axis name -> size, in the order of the mesh."""
        return {
            "dp_replicate": self.dp_replicate_size,
            "dp_shard": self.dp_shard_size,
            "cp": self.cp_size,
            "sp": self.sp_size,
            "tp": self.tp_size,
        }

    @property
    def total_size(self) -> int:
        """Devices that the sizes ask for."""
        return math.prod(self.sizes.values())

    @property
    def data_parallel_size(self) -> int:
        """Replicas that see different samples."""
        return self.dp_replicate_size * self.dp_shard_size

    @property
    def non_data_parallel_size(self) -> int:
        """Devices that work on the same samples together."""
        return self.tp_size * self.cp_size * self.sp_size

    @property
    def dp_replicate_enabled(self) -> bool:
        """Whether that axis is longer than 1."""
        return self.dp_replicate_size > 1

    @property
    def dp_shard_enabled(self) -> bool:
        """Whether that axis is longer than 1."""
        return self.dp_shard_size > 1

    @property
    def tp_enabled(self) -> bool:
        """Whether that axis is longer than 1."""
        return self.tp_size > 1

    @property
    def cp_enabled(self) -> bool:
        """Whether that axis is longer than 1."""
        return self.cp_size > 1

    @property
    def sp_enabled(self) -> bool:
        """Whether that axis is longer than 1."""
        return self.sp_size > 1

    @property
    def active_mesh_dims(self) -> list[str]:
        """Axes longer than 1, in order."""
        return [name for name, size in self.sizes.items() if size > 1]

    @property
    def dp_dim_names(self) -> list[str]:
        """Active axes over which samples are divided."""
        return [name for name in self.active_mesh_dims if name in ("dp_replicate", "dp_shard")]

    @property
    def non_dp_dim_names(self) -> list[str]:
        """Active axes over which samples are not divided."""
        return [name for name in self.active_mesh_dims if name not in ("dp_replicate", "dp_shard")]

    @property
    def dp_shard_cp_dim_names(self) -> list[str]:
        """Active axes over which parameters are sharded: context parallelism holds whole parameters, so they may be divided over it too."""
        return [name for name in self.active_mesh_dims if name in ("dp_shard", "cp")]

    @property
    def dp_cp_dim_names(self) -> list[str]:
        """Active axes over which losses and gradients are averaged."""
        return [name for name in self.active_mesh_dims if name in ("dp_replicate", "dp_shard", "cp")]

    def validate(self, num_devices: int) -> None:
        """Check the sizes against the run.

        Raises:
            ConfigurationError: the product is not the number of devices; the message gives the product, written out.
        """
        if self.total_size != num_devices:
            product = " * ".join(f"{name}({size})" for name, size in self.sizes.items())
            raise ConfigurationError(f"ParallelismConfig: {product} = {self.total_size}, but the run has {num_devices} devices")

    def mesh(self) -> Mesh:
        """The mesh of the active axes; one axis of size 1 where none is active."""
        return Mesh({name: self.sizes[name] for name in self.active_mesh_dims} or {"dp_replicate": 1})

    def to_json(self) -> str:
        """Sizes and backends as a JSON object."""
        return json.dumps(dataclasses.asdict(self))
