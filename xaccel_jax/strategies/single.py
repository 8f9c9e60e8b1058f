"""One process, one device. The base of what several devices share."""

from __future__ import annotations

from typing import Any, ClassVar

import jax

from xaccel.backend.strategy import StrategyRequest
from xaccel.config.handlers import HandlerSet
from xaccel.errors import ConfigurationError, UnsupportedError
from xaccel.mesh.mesh import Mesh
from xaccel.preparation.plan import Item, PreparationPlan
from xaccel.process.topology import ReplicaLayout
from xaccel_jax.collectives import SoloCollectives
from xaccel_jax.definitions import define
from xaccel_jax.feed import JaxFeed
from xaccel_jax.gradients import JaxGradients
from xaccel_jax.mesh import to_native_mesh
from xaccel_jax.model import Model
from xaccel_jax.optimizer import AcceleratedOptimizer
from xaccel_jax.precision.full import FullPrecision
from xaccel_jax.precision.mixed import MixedPrecision
from xaccel_jax.program import StepProgram
from xaccel_jax.state import JaxState, full_state_dict
from xaccel_jax.strategies.compiling import Compiler


def make_precision(request: StrategyRequest) -> FullPrecision:
    """The precision of the settings.

    Raises:
        UnsupportedError: fp16 and fp8.
    """
    makers = {"no": FullPrecision, "bf16": lambda: MixedPrecision(request.settings.handlers.autocast)}
    name = request.settings.mixed_precision
    if name not in makers:
        raise UnsupportedError(f"mixed_precision={name!r}: this version of the JAX adapter has {', '.join(makers)}")
    return makers[name]()


class SingleDevice:
    """See `xaccel.backend.strategy.Strategy`."""

    name: ClassVar[str] = "single"
    distributed_type = "NO"

    def __init__(self, request: StrategyRequest):
        self.topology = request.topology
        self.settings = request.settings
        self.accumulation = request.accumulation
        count = request.topology.num_devices
        self.mesh = Mesh({"dp_replicate": count})
        self.native_mesh = to_native_mesh(self.mesh, jax.devices())
        self.replicas = ReplicaLayout(num_replicas=count, local_replicas=_local_replicas(self.native_mesh))
        self.precision = make_precision(request)
        self.compiler = Compiler(self.native_mesh, request.settings.batch_statistics == "global")
        self.program = StepProgram(self.compiler, self.precision, bound_steps=request.topology.device_kind == "cpu")
        self.gradients = JaxGradients(self.program, request.accumulation)
        self.collectives = self._make_collectives()
        self.feed = JaxFeed(self.native_mesh, self.mesh.axis_names)
        self.state = JaxState(request.topology, self.compiler.replicated)
        self._models: list[Model] = []

    def _make_collectives(self) -> Any:
        return SoloCollectives()

    @classmethod
    def claims(cls, request: StrategyRequest) -> bool:
        return request.topology.num_devices == 1

    @classmethod
    def refuses(cls, request: StrategyRequest) -> str | None:
        parallelism = request.settings.parallelism
        if parallelism is not None:
            parallelism.validate(request.topology.num_devices)
            other = {name: size for name, size in parallelism.sizes.items() if name != "dp_replicate" and size != 1}
            if other:
                return f"parallelism_config asks for {other}; this version of the JAX adapter has dp_replicate only"
        return _refuse_handlers(request.settings.handlers)

    def prepare(self, plan: PreparationPlan) -> PreparationPlan:
        new: dict[int, Any] = {}
        made: list[Model] = []
        for item in plan.of("model"):
            made.append(self._prepare_model(item))
            new[id(item.original)] = made[-1]
        for item in plan.of("optimizer"):
            new[id(item.original)] = self._prepare_optimizer(item, made or self._models)
        self._models.extend(made)
        return plan.replace(new)

    def _prepare_model(self, item: Item) -> Model:
        if not item.device_placement:
            raise UnsupportedError(
                "device_placement=False for a model: a JAX step takes its parameters from the devices of the mesh; leave it out"
            )
        definition = define(item.current)
        assert definition is not None, "the preparer claims only models that a definition knows"
        return Model(definition, self.compiler.replicated, self.program)

    def _prepare_optimizer(self, item: Item, models: list[Model]) -> AcceleratedOptimizer:
        if len(models) != 1:
            raise ConfigurationError(f"an optimizer was prepared with {len(models)} models: prepare it in one call with its own model")
        return AcceleratedOptimizer(item.current, models[0], self.program, self.accumulation, self.compiler.replicated)

    def unwrap(self, model: Any, *, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True) -> Any:
        """The user's kind of object; neither wrapper exists in JAX, where casts happen inside the step."""
        return model.unwrap() if isinstance(model, Model) else model

    def full_state_dict(self, model: Any, unwrap: bool = True) -> dict[str, Any]:
        """Tensors by canonical name in canonical layout; there is no wrapper whose names `unwrap=False` could keep."""
        return full_state_dict(model)

    def release(self) -> None:
        self.program.reset()
        self.program.clear_compiled()
        self._models.clear()


def _refuse_handlers(handlers: HandlerSet) -> str | None:
    """Why a handler of torch's cannot be honoured, if one was passed."""
    if handlers.ddp is not None:
        return "DistributedDataParallelKwargs configures torch's DDP; JAX has no buckets or communication hooks: leave the handler out"
    if handlers.scaler is not None:
        return "GradScalerKwargs configures a loss scale, which only fp16 has, and the JAX adapter has no fp16 yet: leave the handler out"
    if handlers.autocast is not None and handlers.autocast.cache_enabled is not None:
        return "AutocastKwargs(cache_enabled=…): casts are part of the compiled step, there is no cache: leave it out"
    group = handlers.init_process_group
    if group is not None and (group.backend is not None or group.init_method is not None):
        return "InitProcessGroupKwargs(backend, init_method) are torch's; JAX takes timeout only, and meets at MASTER_ADDR and MASTER_PORT"
    return None


def _local_replicas(mesh: jax.sharding.Mesh) -> tuple[int, ...]:
    own = jax.process_index()
    return tuple(index for index, device in enumerate(mesh.devices.flat) if device.process_index == own)
