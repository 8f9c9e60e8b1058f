"""One replica for each process: torch's `DistributedDataParallel`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar

import torch
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.algorithms.join import Join

from xaccel.backend.strategy import StrategyRequest
from xaccel.config.handlers import DDPCommunicationHookType, DistributedDataParallelKwargs
from xaccel.errors import UnsupportedError
from xaccel.mesh.mesh import Mesh
from xaccel.preparation.plan import Item
from xaccel.process.topology import ReplicaLayout
from xaccel_torch.collectives import TorchCollectives
from xaccel_torch.gradients import ReplicatedGradients
from xaccel_torch.strategies.single import SingleDevice, refuse_model_parallelism, with_global_statistics

DistributedDataParallel = torch.nn.parallel.DistributedDataParallel

_HOOKS: dict[DDPCommunicationHookType, Callable[..., Any]] = {
    DDPCommunicationHookType.FP16: default_hooks.fp16_compress_hook,
    DDPCommunicationHookType.BF16: default_hooks.bf16_compress_hook,
    DDPCommunicationHookType.POWER_SGD: powerSGD_hook.powerSGD_hook,
    DDPCommunicationHookType.BATCHED_POWER_SGD: powerSGD_hook.batched_powerSGD_hook,
}
_WRAPPERS: dict[DDPCommunicationHookType, Callable[..., Any]] = {
    DDPCommunicationHookType.FP16: default_hooks.fp16_compress_wrapper,
    DDPCommunicationHookType.BF16: default_hooks.bf16_compress_wrapper,
}
_STATEFUL = (DDPCommunicationHookType.POWER_SGD, DDPCommunicationHookType.BATCHED_POWER_SGD)


class DDP(SingleDevice):
    """See `xaccel.backend.strategy.Strategy`; also `UnevenInputs`."""

    name: ClassVar[str] = "ddp"

    def __init__(self, request: StrategyRequest):
        super().__init__(request)
        topology = request.topology
        self.distributed_type = "MULTI_CPU" if topology.device_kind == "cpu" else "MULTI_GPU"
        self.replicas = ReplicaLayout(num_replicas=topology.num_processes, local_replicas=(topology.process_index,))
        self.mesh = Mesh({"dp_replicate": topology.num_processes})
        self.gradients = ReplicatedGradients(request.accumulation, self.precision, topology)
        self.collectives = TorchCollectives(topology, request.settings.collective_timeout_seconds)  # type: ignore[assignment]
        self._options = request.settings.handlers.ddp or DistributedDataParallelKwargs()

    @classmethod
    def claims(cls, request: StrategyRequest) -> bool:
        return request.topology.num_processes > 1

    @classmethod
    def refuses(cls, request: StrategyRequest) -> str | None:
        handler = request.settings.handlers.ddp
        if (
            handler is not None
            and DDPCommunicationHookType.BF16 in (handler.comm_hook, handler.comm_wrapper)
            and request.topology.communication != "nccl"
        ):
            return (
                f"DDP's bf16 compression hook needs nccl, and this run communicates by {request.topology.communication}: use fp16, or none"
            )
        return refuse_model_parallelism(request)

    def _prepare_model(self, item: Item) -> torch.nn.Module:
        model = super()._prepare_model(item)
        trains = any(parameter.requires_grad for parameter in model.parameters())
        if item.evaluation or not trains or isinstance(model, DistributedDataParallel):
            return model
        wrapped = self._wrap(with_global_statistics(self, model))
        self._models[-1] = wrapped
        return wrapped

    def _wrap(self, model: torch.nn.Module) -> torch.nn.Module:
        options = self._options.to_kwargs()
        for name in ("comm_hook", "comm_wrapper", "comm_state_option"):
            options.pop(name, None)
        device_ids = [self.topology.device] if self.topology.device_kind == "cuda" else None
        wrapped = DistributedDataParallel(model, device_ids=device_ids, output_device=device_ids[0] if device_ids else None, **options)
        _register_hook(wrapped, self._options)
        return wrapped

    @contextmanager
    def join(self, models: Sequence[Any]) -> Iterator[None]:
        """Within it, a process that ran out of batches shadows the all-reduces of the others (torch's `Join`)."""
        joinable: list[Any] = [model for model in models if isinstance(model, DistributedDataParallel)]
        if not joinable:
            yield
            return
        with Join(joinable, enable=True, throw_on_early_termination=False):
            yield


def _register_hook(model: DistributedDataParallel, options: DistributedDataParallelKwargs) -> None:
    hook, wrapper = DDPCommunicationHookType(options.comm_hook), DDPCommunicationHookType(options.comm_wrapper)
    if hook is DDPCommunicationHookType.NO:
        if wrapper is not DDPCommunicationHookType.NO:
            raise UnsupportedError(f"DistributedDataParallelKwargs(comm_wrapper={wrapper.value!r}) wraps a comm_hook, and none is given")
        return
    function = _HOOKS[hook]
    if wrapper is not DDPCommunicationHookType.NO:
        if wrapper not in _WRAPPERS:
            raise UnsupportedError(f"comm_wrapper={wrapper.value!r}: expected fp16 or bf16")
        function = _WRAPPERS[wrapper](function)
    state = powerSGD_hook.PowerSGDState(None, **options.comm_state_option) if hook in _STATEFUL else None
    model.register_comm_hook(state, function)
