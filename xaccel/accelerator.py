"""`Accelerator`: picks the adapter when it is made; after that, one forwarding line a method.

The contract of each member is the docstring of the collaborator's method, which `forwards` puts on it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from xaccel.assembly import assemble
from xaccel.backend.registry import choose_backend, load_backend
from xaccel.backend.strategy import UnevenInputs
from xaccel.config.accumulation import GradientAccumulationPlugin
from xaccel.config.data import DataLoaderConfiguration
from xaccel.config.handlers import AutocastKwargs, KwargsHandler, ProfileKwargs
from xaccel.config.parallelism import ParallelismConfig
from xaccel.config.project import ProjectConfiguration
from xaccel.config.settings import UNSET, BatchStatistics, merge_settings, refuse_unbuilt
from xaccel.environment import read_environment
from xaccel.errors import ConfigurationError, UnsupportedError
from xaccel.gathering import gather_for_metrics
from xaccel.memory import release_memory
from xaccel.process.scope import ProcessScope
from xaccel.process.topology import ProcessTopology, set_current_topology
from xaccel.saving.hooks import RemovableHandle
from xaccel.saving.manager import StateManager
from xaccel.stepping.controller import StepController
from xaccel.stepping.trigger import Trigger
from xaccel.views import AcceleratorState, GradientState, ProcessView, SettingsView, remember_parts

if TYPE_CHECKING:
    from xaccel.tracking.tracker import GeneralTracker

Method = TypeVar("Method", bound=Callable[..., Any])


def forwards(contract: Callable[..., Any]) -> Callable[[Method], Method]:
    """Put the docstring of `contract`, the collaborator's method, on the forwarding one."""

    def document(method: Method) -> Method:
        method.__doc__ = contract.__doc__
        return method

    return document


class Accelerator(ProcessView, SettingsView):
    """One training loop for PyTorch and JAX, on any number of processes and devices.

    Args:
        device_placement: whether `prepare` moves objects to the device.
        split_batches: a loader's batch size is the global one; otherwise it is that of a replica.
        mixed_precision: "no", "fp16", "bf16" or "fp8".
        gradient_accumulation_steps: micro-steps a window; use with `accumulate`.
        cpu: use the CPU even where there is another device.
        dataloader_config: options of prepared loaders.
        rng_types: generators to synchronise at the start of a loader's iteration.
        log_with: trackers, by name or as `GeneralTracker` objects.
        project_dir, project_config: folders and retention.
        gradient_accumulation_plugin: more options of accumulation.
        step_scheduler_with_optimizer: a scheduler follows the optimizer and moves once for each replica (see `AcceleratedScheduler`).
        kwargs_handlers: options handed through to the framework.
        parallelism_config: sizes of the mesh's axes.
        batch_statistics: batch normalisation over each replica's batch ("replica", PyTorch's way) or over the global one ("global").
        backend: "torch" or "jax"; without it `XACCEL_BACKEND`, then the only framework that is installed, then torch.

    Raises:
        ConfigurationError: contradictory or unknown arguments; the message names them.
        UnsupportedError: an argument of the surface that this version or backend does not have.
    """

    backend_name: ClassVar[str | None] = None

    def __new__(cls, *args: Any, backend: str | None = None, **kwargs: Any) -> Accelerator:
        if cls.backend_name is None:
            cls = choose_backend(backend or read_environment().backend).accelerator_class
        return object.__new__(cls)

    def __init__(
        self,
        device_placement: bool = True,
        split_batches: bool = UNSET,
        mixed_precision: str | None = None,
        gradient_accumulation_steps: int = 1,
        cpu: bool = False,
        dataloader_config: DataLoaderConfiguration | None = None,
        deepspeed_plugin: Any = None,
        fsdp_plugin: Any = None,
        torch_tp_plugin: Any = None,
        megatron_lm_plugin: Any = None,
        rng_types: Sequence[Any] | None = None,
        log_with: Any = None,
        project_dir: str | os.PathLike[str] | None = None,
        project_config: ProjectConfiguration | None = None,
        gradient_accumulation_plugin: GradientAccumulationPlugin | None = None,
        step_scheduler_with_optimizer: bool = True,
        kwargs_handlers: list[KwargsHandler] | None = None,
        dynamo_backend: Any = None,
        dynamo_plugin: Any = None,
        deepspeed_plugins: Any = None,
        parallelism_config: ParallelismConfig | None = None,
        *,
        batch_statistics: BatchStatistics = "replica",
        backend: str | None = None,
    ):
        refuse_unbuilt(
            {
                "deepspeed_plugin": deepspeed_plugin,
                "fsdp_plugin": fsdp_plugin,
                "torch_tp_plugin": torch_tp_plugin,
                "megatron_lm_plugin": megatron_lm_plugin,
                "dynamo_backend": None if str(dynamo_backend).lower() in ("none", "no") else dynamo_backend,
                "dynamo_plugin": dynamo_plugin,
                "deepspeed_plugins": deepspeed_plugins,
            }
        )
        if backend not in (None, self.backend_name):
            raise ConfigurationError(
                f"{type(self).__module__}.Accelerator is the {self.backend_name!r} adapter: backend={backend!r} does not fit"
            )
        environment = read_environment()
        settings = merge_settings(
            environment,
            device_placement=device_placement,
            split_batches=split_batches,
            mixed_precision=mixed_precision,
            gradient_accumulation_steps=gradient_accumulation_steps,
            cpu=cpu,
            dataloader_config=dataloader_config,
            rng_types=rng_types,
            log_with=log_with,
            project_dir=project_dir,
            project_config=project_config,
            gradient_accumulation_plugin=gradient_accumulation_plugin,
            step_scheduler_with_optimizer=step_scheduler_with_optimizer,
            kwargs_handlers=kwargs_handlers,
            parallelism_config=parallelism_config,
            batch_statistics=batch_statistics,
        )
        assert self.backend_name is not None, "adapters name their backend"
        self._parts = assemble(settings, load_backend(self.backend_name), environment)
        # Called on every micro-batch: bound once, so that the loop pays for no further look-up.
        self._accumulation = self._parts.accumulation
        self._controller = self._parts.controller
        remember_parts(self._parts)

    # --- state

    @property
    def _topology(self) -> ProcessTopology:  # type: ignore[override]
        return self._parts.topology

    @property
    def _scope(self) -> ProcessScope:  # type: ignore[override]
        return self._parts.scope

    @property
    def state(self) -> AcceleratorState:
        """Process state and settings, as scripts read them."""
        return AcceleratorState()

    @property
    def gradient_state(self) -> GradientState:
        """The accumulation machine and the active loader, as scripts read them."""
        return GradientState()

    # --- preparation

    def prepare(self, *objects: Any, device_placement: Sequence[bool] | None = None) -> Any:
        """Prepare models, optimizers, loaders, schedulers and loss functions; they come back in the same order.

        Args:
            objects: any number; what is none of these passes through unchanged.
            device_placement: for each object, whether to move it to the device.

        Returns:
            One object for one, else a tuple.
        """
        results = self._parts.pipeline.prepare(objects, device_placement)
        return results[0] if len(results) == 1 else results

    def prepare_model(self, model: Any, device_placement: bool | None = None, evaluation_mode: bool = False) -> Any:
        """Prepare one model.

        Args:
            device_placement: whether to move it; as given to the `Accelerator` where `None`.
            evaluation_mode: it will only be evaluated, so nothing for training is wrapped around it.
        """
        return self._parts.pipeline.prepare([model], self._one(device_placement), evaluation_mode)[0]

    def prepare_optimizer(self, optimizer: Any, device_placement: bool | None = None) -> Any:
        """Prepare one optimizer; its model is prepared before or in the same `prepare` call."""
        return self._parts.pipeline.prepare([optimizer], self._one(device_placement))[0]

    def prepare_scheduler(self, scheduler: Any) -> Any:
        """Prepare one scheduler; it follows the optimizers prepared so far."""
        return self._parts.pipeline.prepare([scheduler])[0]

    def prepare_data_loader(self, data_loader: Any, device_placement: bool | None = None, slice_fn_for_dispatch: Any = None) -> Any:
        """Prepare one loader.

        Raises:
            UnsupportedError: `slice_fn_for_dispatch` is given.
        """
        if slice_fn_for_dispatch is not None:
            raise UnsupportedError("slice_fn_for_dispatch: dispatched batches are handed out whole in this version of xaccel")
        return self._parts.pipeline.prepare([data_loader], self._one(device_placement))[0]

    def _one(self, device_placement: bool | None) -> list[bool] | None:
        return None if device_placement is None else [device_placement]

    def unwrap_model(self, model: Any, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True) -> Any:
        """The user's own kind of model, with current values."""
        return self._parts.strategy.unwrap(model, keep_fp32_wrapper=keep_fp32_wrapper, keep_torch_compile=keep_torch_compile)

    def skip_first_batches(self, dataloader: Any, num_batches: int = 0) -> Any:
        """A loader like `dataloader` whose next pass begins `num_batches` batches later, without reading what it skips."""
        from xaccel.data.loader import skip_first_batches

        return skip_first_batches(dataloader, num_batches)

    def free_memory(self, *objects: Any) -> list[Any]:
        """Drop all references to prepared objects and give cached device memory back; returns as many `None`s as `objects`."""
        self._parts.prepared.forget()
        self._parts.active.clear()
        self._parts.strategy.release()
        released = release_memory(*objects)
        self._parts.backend.empty_cache()
        return released

    clear = free_memory

    # --- stepping

    @property
    def sync_gradients(self) -> bool:
        """Whether the current micro-step synchronises gradients and steps the optimizer."""
        return self._accumulation.sync_gradients

    @sync_gradients.setter
    def sync_gradients(self, value: bool) -> None:
        self._accumulation.sync_gradients = value

    @property
    def gradient_accumulation_steps(self) -> int:
        """Micro-steps a window."""
        return self._accumulation.num_steps

    @gradient_accumulation_steps.setter
    def gradient_accumulation_steps(self, value: int) -> None:
        self._accumulation.set_num_steps(value)

    @property
    def optimizer_step_was_skipped(self) -> bool:
        """Whether any prepared optimizer skipped its last step (overflow under fp16)."""
        return self._controller.optimizer_step_was_skipped

    @forwards(StepController.accumulate)
    def accumulate(self, *models: Any) -> AbstractContextManager[None]:
        return self._controller.accumulate(*models)

    @forwards(StepController.no_sync)
    def no_sync(self, model: Any) -> AbstractContextManager[None]:
        return self._controller.no_sync(model)

    @forwards(StepController.trigger_sync_in_backward)
    def trigger_sync_in_backward(self, model: Any) -> None:
        self._controller.trigger_sync_in_backward(model)

    @forwards(StepController.backward)
    def backward(self, loss: Any, *args: Any, **kwargs: Any) -> Any:
        return self._controller.backward(loss, *args, **kwargs)

    @forwards(StepController.clip_grad_norm_)
    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float = 2) -> Any:
        return self._controller.clip_grad_norm_(parameters, max_norm, norm_type)

    @forwards(StepController.clip_grad_value_)
    def clip_grad_value_(self, parameters: Any, clip_value: float) -> None:
        self._controller.clip_grad_value_(parameters, clip_value)

    @forwards(StepController.unscale_gradients)
    def unscale_gradients(self, optimizer: Any = None) -> None:
        self._controller.unscale_gradients(optimizer)

    def autocast(self, autocast_handler: AutocastKwargs | None = None) -> AbstractContextManager[None]:
        """Mixed precision for computations of the user's own inside the block."""
        return self._parts.strategy.precision.autocast(autocast_handler or self._settings.handlers.autocast)

    @contextmanager
    def join_uneven_inputs(self, joinables: Sequence[Any], even_batches: bool | None = None) -> Any:
        """Within it, processes may bring different numbers of batches (torch DDP; elsewhere it has no effect).

        Args:
            joinables: prepared models and optimizers that take part.
            even_batches: overrides the setting for the loaders prepared so far, inside the block.
        """
        with ExitStack() as stack:
            if even_batches is not None:
                for loader in self._parts.prepared.loaders:
                    stack.enter_context(loader.with_even_batches(even_batches))
            if isinstance(self._parts.strategy, UnevenInputs):
                stack.enter_context(self._parts.strategy.join(joinables))
            yield

    def profile(self, profile_handler: ProfileKwargs | None = None) -> AbstractContextManager[Any]:
        """Profile the block; traces go to `output_trace_dir`, one for each process."""
        handler = profile_handler or self._settings.handlers.profile or ProfileKwargs()
        return self._parts.backend.profile(handler, self._topology)

    # --- collectives

    def gather(self, tensor: Any) -> Any:
        """Nested arrays of all processes, joined along dim 0 in rank order: `(num_processes * b, ...)` on every process."""
        return self._parts.communicator.gather(tensor)

    def gather_for_metrics(self, input_data: Any, use_gather_object: bool = False) -> Any:
        """`gather`, less the samples that only fill up the last batch: over a loader of n samples the total is exactly n.

        Args:
            input_data: nested arrays `(batch, ...)`, or any objects.
            use_gather_object: gather lists of picklable objects.
        """
        return gather_for_metrics(input_data, self._parts.communicator, self._parts.active, use_gather_object=use_gather_object)

    def reduce(self, tensor: Any, reduction: str = "sum", scale: float = 1.0) -> Any:
        """Nested arrays reduced element-wise over the processes ("sum", "mean", "max", "none"), times `scale`."""
        return self._parts.communicator.reduce(tensor, reduction, scale)

    def pad_across_processes(self, tensor: Any, dim: int = 0, pad_index: int = 0, pad_first: bool = False) -> Any:
        """Nested arrays padded along `dim` to the longest among the processes; the dtype stays."""
        return self._parts.communicator.pad_across_processes(tensor, dim, pad_index, pad_first)

    @forwards(Trigger.set)
    def set_trigger(self) -> None:
        self._parts.trigger.set()

    @forwards(Trigger.check)
    def check_trigger(self) -> bool:
        return self._parts.trigger.check()

    # --- saving

    @forwards(StateManager.save_state)
    def save_state(
        self, output_dir: str | os.PathLike[str] | None = None, safe_serialization: bool = True, **save_model_func_kwargs: Any
    ) -> str:
        return self._parts.saving.save_state(output_dir, safe_serialization, **save_model_func_kwargs)

    @forwards(StateManager.load_state)
    def load_state(
        self, input_dir: str | os.PathLike[str] | None = None, load_kwargs: dict[str, Any] | None = None, **load_model_func_kwargs: Any
    ) -> Any:
        return self._parts.saving.load_state(input_dir, load_kwargs, **load_model_func_kwargs)

    @forwards(StateManager.save_model)
    def save_model(
        self, model: Any, save_directory: str | os.PathLike[str], max_shard_size: int | str = "10GB", safe_serialization: bool = True
    ) -> None:
        self._parts.saving.save_model(model, save_directory, max_shard_size, safe_serialization)

    @forwards(StateManager.save)
    def save(self, obj: Any, f: str | os.PathLike[str], safe_serialization: bool = False) -> None:
        self._parts.saving.save(obj, f, safe_serialization)

    @forwards(StateManager.register_for_checkpointing)
    def register_for_checkpointing(self, *objects: Any) -> None:
        self._parts.saving.register_for_checkpointing(*objects)

    @forwards(StateManager.register_save_state_pre_hook)
    def register_save_state_pre_hook(self, hook: Callable[..., None]) -> RemovableHandle:
        return self._parts.saving.register_save_state_pre_hook(hook)

    @forwards(StateManager.register_load_state_pre_hook)
    def register_load_state_pre_hook(self, hook: Callable[..., None]) -> RemovableHandle:
        return self._parts.saving.register_load_state_pre_hook(hook)

    def get_state_dict(self, model: Any, unwrap: bool = True) -> dict[str, Any]:
        """Full, unsharded tensors of a prepared model by canonical name."""
        return self._parts.strategy.full_state_dict(model, unwrap)

    # --- tracking

    def init_trackers(self, project_name: str, config: dict[str, Any] | None = None, init_kwargs: dict[str, Any] | None = None) -> None:
        """Start the trackers of `log_with` for one run, and store its configuration."""
        self._parts.trackers.init_trackers(project_name, config, init_kwargs)

    def log(self, values: dict[str, Any], step: int | None = None, log_kwargs: dict[str, Any] | None = None) -> None:
        """Give values (numbers, 0-d arrays, lazy losses) to every tracker."""
        self._parts.trackers.log(values, step, log_kwargs)

    def get_tracker(self, name: str, unwrap: bool = False) -> GeneralTracker | Any:
        """The tracker of that name (its library's own run object with `unwrap`); an inert one off the main process."""
        return self._parts.trackers.get_tracker(name, unwrap)

    @property
    def trackers(self) -> list[Any]:
        """The running trackers."""
        return self._parts.trackers.trackers

    def end_training(self) -> None:
        """Finish trackers, wait for pending saves, and leave the run, so that the script exits without a warning."""
        self._parts.trackers.end_training()
        self._parts.scope.wait_for_everyone()
        self._parts.backend.stop()
        set_current_topology(None)
