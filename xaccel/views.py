"""Read-only views: `ProcessView` and `SettingsView`, which `Accelerator` is made of, and the three state classes that scripts read.

`PartialState`, `AcceleratorState` and `GradientState` hold nothing of their own: they look at the process topology and at the newest
`Accelerator`, which this module knows weakly, so that it can be garbage-collected.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from xaccel.backend.registry import choose_backend
from xaccel.config.handlers import DistributedType
from xaccel.config.parallelism import ParallelismConfig
from xaccel.config.settings import Settings
from xaccel.environment import read_environment
from xaccel.errors import ConfigurationError
from xaccel.process.scope import ProcessScope
from xaccel.process.topology import ProcessTopology, current_topology, set_current_topology

if TYPE_CHECKING:
    from xaccel.assembly import Parts

_newest_parts: weakref.ref[Parts] | None = None


def remember_parts(parts: Parts) -> None:
    """Let the state classes look at these parts, for as long as their `Accelerator` lives."""
    global _newest_parts
    _newest_parts = weakref.ref(parts)


def newest_parts() -> Parts | None:
    """The parts of the newest `Accelerator` that is still alive."""
    return None if _newest_parts is None else _newest_parts()


class ProcessView:
    """Where this process stands, and code that runs on some processes only. Needs `_topology` and `_scope`."""

    _topology: ProcessTopology
    _scope: ProcessScope

    @property
    def num_processes(self) -> int:
        """Operating-system processes of the run, also in JAX, where one drives many devices."""
        return self._topology.num_processes

    @property
    def process_index(self) -> int:
        """This process among all, from 0."""
        return self._topology.process_index

    @property
    def local_process_index(self) -> int:
        """This process among those of its machine, from 0."""
        return self._topology.local_process_index

    @property
    def device(self) -> Any:
        """The framework's object for this process's first device."""
        return self._topology.device

    @property
    def is_main_process(self) -> bool:
        """Whether this is process 0 of the run."""
        return self._topology.is_main_process

    @property
    def is_local_main_process(self) -> bool:
        """Whether this is the first process of its machine."""
        return self._topology.is_local_main_process

    @property
    def is_last_process(self) -> bool:
        """Whether this is the last process of the run."""
        return self._topology.is_last_process

    @property
    def use_distributed(self) -> bool:
        """Whether there is more than one process or more than one device."""
        return self._topology.num_processes > 1 or self._topology.num_devices > 1

    def wait_for_everyone(self) -> None:
        """Return once every process has called it."""
        self._scope.wait_for_everyone()

    def on_main_process(self, function: Callable[..., Any] | None = None) -> Callable[..., Any]:
        """Decorator: run on process 0 only; elsewhere the call returns `None`."""
        return self._scope.on_main_process(function)

    def on_local_main_process(self, function: Callable[..., Any] | None = None) -> Callable[..., Any]:
        """Decorator: run on the first process of each machine only."""
        return self._scope.on_local_main_process(function)

    def on_last_process(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorator: run on the last process only."""
        return self._scope.on_last_process(function)

    def on_process(self, function: Callable[..., Any] | None = None, process_index: int | None = None) -> Callable[..., Any]:
        """Decorator: run on the process of that index only."""
        return self._scope.on_process(function, process_index)

    def on_local_process(self, function: Callable[..., Any] | None = None, local_process_index: int | None = None) -> Callable[..., Any]:
        """Decorator: run on the process of that index on each machine only."""
        return self._scope.on_local_process(function, local_process_index)

    def main_process_first(self) -> AbstractContextManager[None]:
        """Process 0 goes through the block before the others enter it."""
        return self._scope.main_process_first()

    def local_main_process_first(self) -> AbstractContextManager[None]:
        """The first process of each machine goes through the block before its others enter it."""
        return self._scope.local_main_process_first()

    def split_between_processes(self, inputs: Any, apply_padding: bool = False) -> AbstractContextManager[Any]:
        """This process's part of a list, tuple, dict of them, array or dataset; the first processes get one more where it does not divide.

        Args:
            inputs: `num_samples` long; all members of a dict equally long.
            apply_padding: repeat the last element so that all parts are equally long.
        """
        return self._scope.split_between_processes(inputs, apply_padding)

    def print(self, *args: Any, **kwargs: Any) -> None:
        """`print` once a machine."""
        self._scope.print(*args, **kwargs)


class SettingsView:
    """What was asked for. Needs `_parts`."""

    _parts: Parts

    @property
    def _settings(self) -> Settings:
        return self._parts.settings

    @property
    def mixed_precision(self) -> str:
        """`"no"`, `"fp16"`, `"bf16"` or `"fp8"`."""
        return self._settings.mixed_precision

    @property
    def distributed_type(self) -> DistributedType:
        """A label of the way of distributing, for scripts to print."""
        return DistributedType(self._parts.strategy.distributed_type)

    @property
    def num_replicas(self) -> int:
        """Members of the data-parallel dimension; a global batch is split over these."""
        return self._parts.strategy.replicas.num_replicas

    @property
    def device_placement(self) -> bool:
        """Whether `prepare` moves objects to the device."""
        return self._settings.device_placement

    @property
    def split_batches(self) -> bool:
        """Whether a loader's batch size is the global one."""
        return self._settings.data.split_batches

    @property
    def dispatch_batches(self) -> bool | None:
        """Whether process 0 reads for all; `None` lets the loader decide."""
        return self._settings.data.dispatch_batches

    @property
    def even_batches(self) -> bool:
        """Whether every replica gets equally many full batches, samples of the beginning filling the end."""
        return self._settings.data.even_batches

    @property
    def use_seedable_sampler(self) -> bool:
        """Whether shuffling is a pure function of seed and epoch."""
        return self._settings.data.use_seedable_sampler

    @property
    def use_stateful_dataloader(self) -> bool:
        """Whether torchdata's stateful loader is asked for."""
        return self._settings.data.use_stateful_dataloader

    @property
    def non_blocking(self) -> bool:
        """Whether transfers to the device overlap with the host."""
        return self._settings.data.non_blocking

    @property
    def batch_statistics(self) -> str:
        """`"replica"` or `"global"`: what batch normalisation averages over."""
        return self._settings.batch_statistics

    @property
    def step_scheduler_with_optimizer(self) -> bool:
        """Whether a scheduler follows the optimizer."""
        return self._settings.step_scheduler_with_optimizer

    @property
    def rng_types(self) -> tuple[str, ...]:
        """Generators synchronised at the start of a loader's iteration."""
        return self._settings.rng_types

    @property
    def parallelism_config(self) -> ParallelismConfig | None:
        """Sizes of the mesh's axes, where given."""
        return self._settings.parallelism

    @property
    def project_configuration(self) -> Any:
        """Folders and retention."""
        return self._settings.project

    @property
    def project_dir(self) -> str | None:
        """Folder of the project."""
        return self._settings.project.project_dir

    @property
    def logging_dir(self) -> str | None:
        """Folder of the trackers."""
        return self._settings.project.logging_dir

    @property
    def save_iteration(self) -> int:
        """Number of the next automatic checkpoint."""
        return self._settings.project.iteration


class PartialState(ProcessView):
    """Where this process stands; joins the run at the first call in a process.

    Args:
        cpu: use the CPU even where there is another device.
        backend: "torch" or "jax"; chosen as `Accelerator` does where `None`.

    Raises:
        ConfigurationError: the process already joined with another backend.
    """

    def __init__(self, cpu: bool = False, *, backend: str | None = None):
        environment = read_environment()
        known = current_topology()
        if known is not None and backend not in (None, known.backend):
            raise ConfigurationError(f"PartialState(backend={backend!r}): this process already runs on {known.backend!r}")
        self._backend = choose_backend(known.backend if known else backend or environment.backend)
        self._topology = known or self._backend.start(environment, Settings(cpu=cpu or environment.cpu))
        set_current_topology(self._topology)
        self._collectives = self._backend.collectives(self._topology)
        self._scope = ProcessScope(self._topology, self._collectives)
        self.debug = environment.debug

    @property
    def backend(self) -> str:
        """What carries collectives: "gloo", "nccl", "xla", "none"."""
        return self._topology.communication

    @property
    def distributed_type(self) -> DistributedType:
        """The label of the newest `Accelerator`'s strategy; before any, of plain data parallelism on this device."""
        parts = newest_parts()
        if parts is not None:
            return DistributedType(parts.strategy.distributed_type)
        if self._topology.backend == "jax":
            return DistributedType.JAX if self.use_distributed else DistributedType.NO
        if not self.use_distributed:
            return DistributedType.NO
        return DistributedType.MULTI_CPU if self._topology.device_kind == "cpu" else DistributedType.MULTI_GPU

    @property
    def initialized(self) -> bool:
        """Whether this process has joined the run."""
        return current_topology() is not None

    def destroy_process_group(self) -> None:
        """Leave the run; the next state or `Accelerator` joins anew."""
        self._backend.stop()
        set_current_topology(None)

    @classmethod
    def _reset_state(cls) -> None:
        set_current_topology(None)


class AcceleratorState(PartialState):
    """`PartialState` and the settings of the newest `Accelerator`.

    Raises:
        ConfigurationError: `mixed_precision` differs from that of the newest `Accelerator`.
    """

    def __init__(self, mixed_precision: str | None = None, cpu: bool = False, *, backend: str | None = None):
        super().__init__(cpu, backend=backend)
        parts = newest_parts()
        environment = read_environment()
        self._mixed_precision = mixed_precision or (parts.settings.mixed_precision if parts else environment.mixed_precision or "no")
        if parts is not None and self._mixed_precision != parts.settings.mixed_precision:
            raise ConfigurationError(
                f"AcceleratorState(mixed_precision={mixed_precision!r}): the Accelerator has {parts.settings.mixed_precision!r}"
            )

    @property
    def mixed_precision(self) -> str:
        """`"no"`, `"fp16"`, `"bf16"` or `"fp8"`."""
        return self._mixed_precision

    @property
    def parallelism_config(self) -> ParallelismConfig | None:
        """Sizes of the mesh's axes, where given to the newest `Accelerator`."""
        parts = newest_parts()
        return parts.settings.parallelism if parts else None


class GradientState:
    """The accumulation machine and the active loader of the newest `Accelerator`, as scripts read them."""

    @property
    def _parts(self) -> Parts:
        parts = newest_parts()
        if parts is None:
            raise ConfigurationError("GradientState needs an Accelerator: none is alive in this process")
        return parts

    @property
    def initialized(self) -> bool:
        """Whether there is an `Accelerator`."""
        return newest_parts() is not None

    @property
    def sync_gradients(self) -> bool:
        """Whether the current micro-step syncs."""
        return self._parts.accumulation.sync_gradients

    @property
    def num_steps(self) -> int:
        """Micro-steps a window."""
        return self._parts.accumulation.num_steps

    @property
    def adjust_scheduler(self) -> bool:
        """As given to `GradientAccumulationPlugin`."""
        return self._parts.accumulation.plugin.adjust_scheduler

    @property
    def sync_with_dataloader(self) -> bool:
        """As given to `GradientAccumulationPlugin`."""
        return self._parts.accumulation.plugin.sync_with_dataloader

    @property
    def plugin_kwargs(self) -> dict[str, Any]:
        """The plugin's fields."""
        plugin = self._parts.accumulation.plugin
        return {
            "num_steps": plugin.num_steps,
            "adjust_scheduler": plugin.adjust_scheduler,
            "sync_with_dataloader": plugin.sync_with_dataloader,
            "sync_each_batch": plugin.sync_each_batch,
        }

    @property
    def active_dataloader(self) -> Any:
        """The innermost loader being iterated, or `None`."""
        return self._parts.active.current

    @property
    def in_dataloader(self) -> bool:
        """Whether a loader is being iterated."""
        return self.active_dataloader is not None

    @property
    def end_of_dataloader(self) -> bool:
        """Whether the active loader has yielded its last batch."""
        return self._parts.accumulation.end_of_dataloader

    @property
    def remainder(self) -> int:
        """Real samples in the active loader's last global batch; -1 where nothing is to be trimmed."""
        active = self.active_dataloader
        return -1 if active is None else active.remainder
