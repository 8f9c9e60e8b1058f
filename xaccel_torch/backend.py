"""The door to torch. See `xaccel.backend.backend.Backend`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
import torch.distributed as dist

from xaccel.backend.strategy import StrategyRequest
from xaccel.config.handlers import ProfileKwargs
from xaccel.config.settings import Settings
from xaccel.environment import LaunchEnvironment
from xaccel.errors import UnsupportedError
from xaccel.process.topology import ProcessTopology
from xaccel_torch import random
from xaccel_torch.accelerator import Accelerator
from xaccel_torch.arrays import TorchArrays
from xaccel_torch.collectives import SoloCollectives, TorchCollectives
from xaccel_torch.launch import join
from xaccel_torch.loaders import TorchLoaderPreparer
from xaccel_torch.preparers import ModelPreparer, OptimizerPreparer, SchedulerPreparer
from xaccel_torch.profiling import profile
from xaccel_torch.strategies.ddp import DDP
from xaccel_torch.strategies.single import SingleDevice


class TorchBackend:
    """One for a process."""

    name = "torch"
    accelerator_class = Accelerator

    def __init__(self) -> None:
        self.arrays = TorchArrays()
        self.strategies = (DDP, SingleDevice)
        self.preparers = (OptimizerPreparer(), ModelPreparer(), SchedulerPreparer(), TorchLoaderPreparer())
        self._timeout_seconds = 1800.0
        self._made_process_group = False

    def owns(self, value: Any) -> bool:
        return isinstance(value, (torch.Tensor, torch.nn.Module, torch.optim.Optimizer))

    def start(self, environment: LaunchEnvironment, settings: Settings) -> ProcessTopology:
        topology, made = join(environment, settings)
        self._made_process_group |= made
        self._timeout_seconds = settings.collective_timeout_seconds
        return topology

    def stop(self) -> None:
        if self._made_process_group and dist.is_initialized():
            dist.destroy_process_group()
        self._made_process_group = False

    def strategy(self, request: StrategyRequest) -> SingleDevice:
        chosen = next(each for each in self.strategies if each.claims(request))
        reason = chosen.refuses(request)
        if reason is not None:
            raise UnsupportedError(reason)
        return chosen(request)

    def collectives(self, topology: ProcessTopology) -> TorchCollectives | SoloCollectives:
        return SoloCollectives() if topology.num_processes == 1 else TorchCollectives(topology, self._timeout_seconds)

    def initial_seed(self) -> int:
        return random.initial_seed()

    def set_seed(self, seed: int, deterministic: bool = False) -> None:
        random.set_seed(seed, deterministic)

    def synchronise_generators(self, kinds: Sequence[str], collectives: Any) -> None:
        random.synchronise(kinds, collectives)

    def empty_cache(self) -> None:
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def save_object(self, value: Any, path: str) -> None:
        torch.save(value, path)

    def profile(self, handler: ProfileKwargs, topology: ProcessTopology) -> AbstractContextManager[Any]:
        return profile(handler, topology)
