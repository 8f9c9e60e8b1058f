"""All settings of one `Accelerator`, merged once: argument, then environment, then default."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from xaccel.config.accumulation import GradientAccumulationPlugin
from xaccel.config.data import DataLoaderConfiguration
from xaccel.config.handlers import HandlerSet, KwargsHandler, PrecisionType, sort_handlers
from xaccel.config.parallelism import ParallelismConfig
from xaccel.config.project import ProjectConfiguration
from xaccel.environment import LaunchEnvironment
from xaccel.errors import ConfigurationError, UnsupportedError

BatchStatistics = Literal["replica", "global"]

UNSET: Any = object()
"""Default of arguments for which `None` or `False` is a value of its own."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What was asked of one `Accelerator`.

    Attributes:
        device_placement: whether `prepare` moves objects to the device.
        mixed_precision: "no", "fp16", "bf16" or "fp8".
        cpu: whether to use the CPU even where there is another device.
        accumulation: gradient accumulation.
        data: prepared loaders.
        project: folders and retention.
        parallelism: sizes of the mesh's axes, where given.
        handlers: options handed through to the framework.
        rng_types: generators to synchronise at the start of a loader's iteration.
        log_with: trackers.
        step_scheduler_with_optimizer: whether a scheduler follows the optimizer (and counts replicas).
        batch_statistics: whether batch normalisation is over each replica's batch (PyTorch's way) or over the global batch.
        debug: whether processes compare shapes, dtypes and structures before each collective.
        collective_timeout_seconds: how long a collective waits for the others.
    """

    device_placement: bool = True
    mixed_precision: str = "no"
    cpu: bool = False
    accumulation: GradientAccumulationPlugin = dataclasses.field(default_factory=GradientAccumulationPlugin)
    data: DataLoaderConfiguration = dataclasses.field(default_factory=DataLoaderConfiguration)
    project: ProjectConfiguration = dataclasses.field(default_factory=ProjectConfiguration)
    parallelism: ParallelismConfig | None = None
    handlers: HandlerSet = dataclasses.field(default_factory=HandlerSet)
    rng_types: tuple[str, ...] = ("generator",)
    log_with: tuple[Any, ...] = ()
    step_scheduler_with_optimizer: bool = True
    batch_statistics: BatchStatistics = "replica"
    debug: bool = False
    collective_timeout_seconds: float = 1800.0

    def __post_init__(self) -> None:
        if self.mixed_precision not in PrecisionType.list():
            raise ConfigurationError(f"mixed_precision={self.mixed_precision!r}: expected one of {PrecisionType.list()}")
        if self.batch_statistics not in get_args(BatchStatistics):
            raise ConfigurationError(f"batch_statistics={self.batch_statistics!r}: expected one of {list(get_args(BatchStatistics))}")
        unknown = [kind for kind in self.rng_types if kind not in ("torch", "cuda", "xla", "generator")]
        if unknown:
            raise ConfigurationError(f"rng_types holds {unknown}: expected 'torch', 'cuda', 'xla' or 'generator'")


def merge_settings(
    environment: LaunchEnvironment,
    *,
    device_placement: bool,
    split_batches: Any,
    mixed_precision: str | None,
    gradient_accumulation_steps: int,
    cpu: bool,
    dataloader_config: DataLoaderConfiguration | None,
    rng_types: Sequence[Any] | None,
    log_with: Any,
    project_dir: str | os.PathLike[str] | None,
    project_config: ProjectConfiguration | None,
    gradient_accumulation_plugin: GradientAccumulationPlugin | None,
    step_scheduler_with_optimizer: bool,
    kwargs_handlers: Sequence[KwargsHandler] | None,
    parallelism_config: ParallelismConfig | None,
    batch_statistics: BatchStatistics,
) -> Settings:
    """Merge the arguments of `Accelerator` with the environment.

    Raises:
        ConfigurationError: a value out of range, or two arguments that say different things about one setting.
    """
    handlers = sort_handlers(kwargs_handlers)
    timeout = environment.collective_timeout_seconds
    if handlers.init_process_group is not None and handlers.init_process_group.timeout is not None:
        timeout = handlers.init_process_group.timeout.total_seconds()
    return Settings(
        device_placement=device_placement,
        mixed_precision=str(mixed_precision or environment.mixed_precision or "no").lower(),
        cpu=cpu or environment.cpu,
        accumulation=_accumulation(gradient_accumulation_steps, gradient_accumulation_plugin, environment),
        data=_data(split_batches, dataloader_config),
        project=_project(project_dir, project_config),
        parallelism=parallelism_config,
        handlers=handlers,
        rng_types=tuple(str(kind) for kind in rng_types) if rng_types is not None else ("generator",),
        log_with=_as_tuple(log_with),
        step_scheduler_with_optimizer=step_scheduler_with_optimizer,
        batch_statistics=batch_statistics,
        debug=environment.debug,
        collective_timeout_seconds=timeout,
    )


def refuse_unbuilt(options: Mapping[str, Any]) -> None:
    """Refuse arguments of the surface whose strategy this version does not have, instead of ignoring them.

    Raises:
        UnsupportedError: one of them was given.
    """
    given = [name for name, value in options.items() if value is not None]
    if given:
        raise UnsupportedError(
            f"{', '.join(given)}: not in this version of xaccel (0.1 has data parallelism); leave out or see README.md, 'What works'"
        )


def _accumulation(steps: int, plugin: GradientAccumulationPlugin | None, environment: LaunchEnvironment) -> GradientAccumulationPlugin:
    if plugin is not None:
        if steps not in (1, plugin.num_steps):
            raise ConfigurationError(
                f"gradient_accumulation_steps={steps} and gradient_accumulation_plugin.num_steps={plugin.num_steps} differ: pass one of them"
            )
        return plugin
    if steps == 1 and environment.gradient_accumulation_steps is not None:
        steps = environment.gradient_accumulation_steps
    return GradientAccumulationPlugin(num_steps=steps)


def _data(split_batches: Any, config: DataLoaderConfiguration | None) -> DataLoaderConfiguration:
    if config is None:
        return DataLoaderConfiguration(split_batches=False if split_batches is UNSET else bool(split_batches))
    if split_batches is not UNSET and bool(split_batches) != config.split_batches:
        raise ConfigurationError(
            f"split_batches={split_batches} and dataloader_config.split_batches={config.split_batches} differ: pass one of them"
        )
    return config


def _project(project_dir: str | os.PathLike[str] | None, config: ProjectConfiguration | None) -> ProjectConfiguration:
    if config is None:
        return ProjectConfiguration(project_dir=None if project_dir is None else os.fspath(project_dir))
    if project_dir is not None and config.project_dir is None:
        config.set_directories(os.fspath(project_dir))
    elif project_dir is not None and os.fspath(project_dir) != config.project_dir:
        raise ConfigurationError(
            f"project_dir={os.fspath(project_dir)!r} and project_config.project_dir={config.project_dir!r} differ: pass one of them"
        )
    return config


def _as_tuple(value: Any) -> tuple[Any, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, (list, tuple)) else (value,)
