"""Data parallelism over all devices of the run, one replica for each: GSPMD."""

from __future__ import annotations

from typing import Any, ClassVar

from xaccel.backend.strategy import StrategyRequest
from xaccel_jax.collectives import JaxCollectives, SoloCollectives
from xaccel_jax.strategies.single import SingleDevice


class Jit(SingleDevice):
    """See `xaccel.backend.strategy.Strategy`."""

    name: ClassVar[str] = "jit"
    distributed_type = "JAX"

    @classmethod
    def claims(cls, request: StrategyRequest) -> bool:
        return request.topology.num_devices > 1

    def _make_collectives(self) -> Any:
        return (
            SoloCollectives()
            if self.topology.num_processes == 1
            else JaxCollectives(self.topology, self.settings.collective_timeout_seconds)
        )
