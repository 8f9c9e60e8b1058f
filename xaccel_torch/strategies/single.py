"""One process, one device. The base of what several processes share."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from xaccel.backend.strategy import StrategyRequest
from xaccel.errors import UnsupportedError
from xaccel.mesh.mesh import Mesh
from xaccel.preparation.plan import Item, PreparationPlan
from xaccel.process.topology import ReplicaLayout
from xaccel_torch.batch_norm import use_global_statistics
from xaccel_torch.collectives import SoloCollectives
from xaccel_torch.feed import TorchFeed
from xaccel_torch.gradients import TorchGradients
from xaccel_torch.names import unwrap
from xaccel_torch.optimizer import AcceleratedOptimizer
from xaccel_torch.precision.amp import AutocastPrecision, ScaledPrecision
from xaccel_torch.precision.full import FullPrecision
from xaccel_torch.state import TorchState, full_state_dict


def make_precision(request: StrategyRequest) -> FullPrecision:
    """The precision of the settings.

    Raises:
        UnsupportedError: fp8.
    """
    name, kind, handlers = request.settings.mixed_precision, request.topology.device_kind, request.settings.handlers
    makers = {
        "no": FullPrecision,
        "bf16": lambda: AutocastPrecision(kind, handlers.autocast),
        "fp16": lambda: ScaledPrecision(kind, handlers.autocast, handlers.scaler),
    }
    if name not in makers:
        raise UnsupportedError(f"mixed_precision={name!r}: this version of the torch adapter has {', '.join(makers)}")
    return makers[name]()


class SingleDevice:
    """See `xaccel.backend.strategy.Strategy`."""

    name: ClassVar[str] = "single"
    distributed_type = "NO"

    def __init__(self, request: StrategyRequest):
        self.topology = request.topology
        self.settings = request.settings
        self.accumulation = request.accumulation
        self.replicas = ReplicaLayout(num_replicas=1, local_replicas=(0,))
        self.mesh = Mesh({"dp_replicate": 1})
        self.precision = make_precision(request)
        self.gradients = TorchGradients(request.accumulation, self.precision)
        self.collectives = SoloCollectives()
        self.feed = TorchFeed(request.topology, request.settings.data.non_blocking)
        self.state = TorchState(request.topology)
        self._models: list[torch.nn.Module] = []

    @classmethod
    def claims(cls, request: StrategyRequest) -> bool:
        return request.topology.num_processes == 1

    @classmethod
    def refuses(cls, request: StrategyRequest) -> str | None:
        return refuse_model_parallelism(request)

    def prepare(self, plan: PreparationPlan) -> PreparationPlan:
        new: dict[int, Any] = {}
        for item in plan.of("model"):
            new[id(item.original)] = self._prepare_model(item)
        for item in plan.of("optimizer"):
            new[id(item.original)] = self._prepare_optimizer(item)
        return plan.replace(new)

    def _prepare_model(self, item: Item) -> torch.nn.Module:
        model: torch.nn.Module = item.current
        if item.device_placement:
            # Parameters are moved in place, so that an optimizer made before keeps its own.
            model = model.to(self.topology.device)
        model = self.precision.convert(model)
        self._models.append(model)
        return model

    def _prepare_optimizer(self, item: Item) -> AcceleratedOptimizer:
        if isinstance(item.current, AcceleratedOptimizer):
            return item.current
        optimizer = AcceleratedOptimizer(item.current, self.accumulation, self.precision)
        self.gradients.register(optimizer)
        return optimizer

    def unwrap(self, model: Any, *, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True) -> Any:
        inner = unwrap(model, keep_torch_compile)
        if not keep_fp32_wrapper:
            self.precision.restore(inner)
        return inner

    def full_state_dict(self, model: Any, unwrap: bool = True) -> dict[str, Any]:
        return full_state_dict(model) if unwrap else dict(model.state_dict())

    def release(self) -> None:
        self._models.clear()
        self.gradients.forget()


def refuse_model_parallelism(request: StrategyRequest) -> str | None:
    """Why a mesh with other axes than data parallelism cannot be served, if one is asked for."""
    parallelism = request.settings.parallelism
    if parallelism is None:
        return None
    parallelism.validate(request.topology.num_processes)
    other = {name: size for name, size in parallelism.sizes.items() if name != "dp_replicate" and size != 1}
    return f"parallelism_config asks for {other}; this version of the torch adapter has dp_replicate only" if other else None


def with_global_statistics(strategy: SingleDevice, model: torch.nn.Module) -> torch.nn.Module:
    """The model, its batch normalisation over the global batch where the settings ask for it."""
    if strategy.settings.batch_statistics == "global":
        return use_global_statistics(model, strategy.topology.device_kind)
    return model
