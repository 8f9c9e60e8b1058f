"""The door to JAX. See `xaccel.backend.backend.Backend`. Importing it touches no device."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import optax
from flax import nnx

from xaccel.backend.strategy import StrategyRequest
from xaccel.config.handlers import ProfileKwargs
from xaccel.config.settings import Settings
from xaccel.environment import LaunchEnvironment
from xaccel.errors import UnsupportedError
from xaccel.process.topology import ProcessTopology
from xaccel_jax.accelerator import Accelerator
from xaccel_jax.arrays import JaxArrays
from xaccel_jax.collectives import JaxCollectives, SoloCollectives
from xaccel_jax.launch import join
from xaccel_jax.loaders import JaxLoaderPreparer
from xaccel_jax.preparers import LossPreparer, ModelPreparer, OptimizerPreparer, SchedulerPreparer
from xaccel_jax.profiling import profile
from xaccel_jax.random import Seed
from xaccel_jax.strategies.jit import Jit
from xaccel_jax.strategies.single import SingleDevice


class JaxBackend:
    """One for a process."""

    name = "jax"
    accelerator_class = Accelerator

    def __init__(self) -> None:
        self.arrays = JaxArrays()
        self.strategies = (Jit, SingleDevice)
        self.preparers = (OptimizerPreparer(), ModelPreparer(), JaxLoaderPreparer(), LossPreparer(), SchedulerPreparer())
        self._seed = Seed()
        self._made_distributed = False
        self._timeout_seconds = 1800.0

    def owns(self, value: Any) -> bool:
        return isinstance(value, (jax.Array, nnx.Module, optax.GradientTransformation))

    def start(self, environment: LaunchEnvironment, settings: Settings) -> ProcessTopology:
        topology, made = join(environment, settings)
        self._timeout_seconds = settings.collective_timeout_seconds
        self._made_distributed |= made
        return topology

    def stop(self) -> None:
        if self._made_distributed:
            jax.distributed.shutdown()
        self._made_distributed = False

    def strategy(self, request: StrategyRequest) -> SingleDevice:
        chosen = next(each for each in self.strategies if each.claims(request))
        reason = chosen.refuses(request)
        if reason is not None:
            raise UnsupportedError(reason)
        return chosen(request)

    def collectives(self, topology: ProcessTopology) -> Any:
        return SoloCollectives() if topology.num_processes == 1 else JaxCollectives(topology, self._timeout_seconds)

    def initial_seed(self) -> int:
        return self._seed.value

    def set_seed(self, seed: int, deterministic: bool = False) -> None:
        """Where new streams begin. XLA's programs are deterministic on CPU and TPU; on GPU that takes a flag before start."""
        if deterministic and jax.default_backend() == "gpu":
            raise UnsupportedError(
                "set_seed(deterministic=True): on GPU start with XLA_FLAGS=--xla_gpu_deterministic_ops=true; it cannot be switched on later"
            )
        self._seed.set(seed)

    def synchronise_generators(self, kinds: Sequence[str], collectives: Any) -> None:
        raise UnsupportedError(
            f"rng_types={list(kinds)}: JAX has no global generators; models carry their own streams, equal on all processes"
        )

    def empty_cache(self) -> None:
        """Device buffers go with their arrays; XLA keeps no cache to give back."""
        gc.collect()

    def save_object(self, value: Any, path: str) -> None:
        raise UnsupportedError(f"save({path!r}): JAX has no pickle of its own; use safe_serialization=True with a dict of arrays")

    def profile(self, handler: ProfileKwargs, topology: ProcessTopology) -> AbstractContextManager[Any]:
        return profile(handler, topology)
