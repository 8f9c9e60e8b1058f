"""Options that go straight to a part of the framework: the `KwargsHandler`s, and the enumerations that scripts pass."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from xaccel.errors import ConfigurationError


class _TextEnum(enum.StrEnum):
    """Members compare equal to their text, and print as it."""

    @classmethod
    def list(cls) -> list[str]:
        """The texts of all members."""
        return [str(member.value) for member in cls]


class DistributedType(_TextEnum):
    """The label that a strategy reports. Nothing in xaccel branches on it."""

    NO = "NO"
    MULTI_CPU = "MULTI_CPU"
    MULTI_GPU = "MULTI_GPU"
    FSDP = "FSDP"
    DEEPSPEED = "DEEPSPEED"
    MEGATRON_LM = "MEGATRON_LM"
    XLA = "XLA"
    JAX = "JAX"


class PrecisionType(_TextEnum):
    """Names of the precisions."""

    NO = "no"
    FP8 = "fp8"
    FP16 = "fp16"
    BF16 = "bf16"


class RNGType(_TextEnum):
    """Generators that a prepared loader can synchronise at the start of an iteration."""

    TORCH = "torch"
    CUDA = "cuda"
    XLA = "xla"
    GENERATOR = "generator"


class DDPCommunicationHookType(_TextEnum):
    """Gradient compression hooks of torch DDP."""

    NO = "no"
    FP16 = "fp16"
    BF16 = "bf16"
    POWER_SGD = "power_sgd"
    BATCHED_POWER_SGD = "batched_power_sgd"


@dataclasses.dataclass
class KwargsHandler:
    """Base of the handlers passed as `kwargs_handlers`."""

    def to_dict(self) -> dict[str, Any]:
        """All fields."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    def to_kwargs(self) -> dict[str, Any]:
        """The fields that differ from their defaults."""
        defaults = type(self)()
        return {name: value for name, value in self.to_dict().items() if value != getattr(defaults, name)}


@dataclasses.dataclass
class AutocastKwargs(KwargsHandler):
    """Options of `autocast`.

    Args:
        enabled: whether autocast does anything.
        cache_enabled: whether weight casts are cached within a block; torch's default where `None`.
    """

    enabled: bool = True
    cache_enabled: bool | None = None


@dataclasses.dataclass
class DistributedDataParallelKwargs(KwargsHandler):
    """Options of torch's `DistributedDataParallel`, under its own names.

    Args:
        comm_hook: gradient compression; `comm_wrapper` wraps it in a cast, `comm_state_option` goes to PowerSGD's state.
    """

    dim: int = 0
    broadcast_buffers: bool = True
    bucket_cap_mb: int = 25
    find_unused_parameters: bool = False
    check_reduction: bool = False
    gradient_as_bucket_view: bool = False
    static_graph: bool = False
    comm_hook: DDPCommunicationHookType = DDPCommunicationHookType.NO
    comm_wrapper: DDPCommunicationHookType = DDPCommunicationHookType.NO
    comm_state_option: dict[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass
class GradScalerKwargs(KwargsHandler):
    """Options of the dynamic loss scale.

    Args:
        init_scale: scale at the start.
        growth_factor: multiplies the scale after `growth_interval` steps without overflow.
        backoff_factor: multiplies the scale after an overflow.
        growth_interval: optimizer steps.
    """

    init_scale: float = 65536.0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    enabled: bool = True


@dataclasses.dataclass
class InitProcessGroupKwargs(KwargsHandler):
    """Options of joining the run.

    Args:
        backend: what carries collectives; chosen by the device where `None`.
        init_method: where to meet; the launcher's address where `None`.
        timeout: how long a collective waits for the others.
    """

    backend: str | None = None
    init_method: str | None = None
    timeout: timedelta | None = None

    def __post_init__(self) -> None:
        if self.timeout is not None and self.timeout <= timedelta(0):
            raise ConfigurationError(f"InitProcessGroupKwargs(timeout={self.timeout}): expected a positive duration")


@dataclasses.dataclass
class ProfileKwargs(KwargsHandler):
    """Options of `Accelerator.profile`, under the names of torch's profiler.

    Args:
        activities: "cpu", "cuda", …; those that the machine has where `None`.
        schedule_option: `wait`, `warmup`, `active`, `repeat`, `skip_first`, in steps.
        on_trace_ready: called with the profiler at the end of each cycle.
        output_trace_dir: folder for `profile_<process>.json`, a Chrome trace.
    """

    activities: Sequence[str] | None = None
    schedule_option: dict[str, int] | None = None
    on_trace_ready: Callable[..., Any] | None = None
    record_shapes: bool = False
    profile_memory: bool = False
    with_stack: bool = False
    with_flops: bool = False
    with_modules: bool = False
    output_trace_dir: str | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class HandlerSet:
    """The handlers of one `Accelerator`, at most one of each kind.

    Attributes:
        autocast, ddp, scaler, init_process_group, profile: the handler, or `None` where none was passed.
    """

    autocast: AutocastKwargs | None = None
    ddp: DistributedDataParallelKwargs | None = None
    scaler: GradScalerKwargs | None = None
    init_process_group: InitProcessGroupKwargs | None = None
    profile: ProfileKwargs | None = None


_PLACES: dict[type[KwargsHandler], str] = {
    AutocastKwargs: "autocast",
    DistributedDataParallelKwargs: "ddp",
    GradScalerKwargs: "scaler",
    InitProcessGroupKwargs: "init_process_group",
    ProfileKwargs: "profile",
}


def sort_handlers(handlers: Sequence[KwargsHandler] | None) -> HandlerSet:
    """Put each handler in its place.

    Raises:
        ConfigurationError: an object that is no handler, or two of one kind; the message names them.
    """
    found: dict[str, Any] = {}
    for handler in handlers or ():
        place = next((name for kind, name in _PLACES.items() if isinstance(handler, kind)), None)
        if place is None:
            known = ", ".join(kind.__name__ for kind in _PLACES)
            raise ConfigurationError(f"kwargs_handlers holds {handler!r}, which is none of: {known}")
        if place in found:
            raise ConfigurationError(f"kwargs_handlers holds two {type(handler).__name__}: {found[place]!r} and {handler!r}; pass one")
        found[place] = handler
    return HandlerSet(**found)
