"""backward, clipping and exact token weighting on torch's tape."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist

from xaccel.errors import StepError
from xaccel.process.topology import ProcessTopology
from xaccel.stepping.accumulation import Accumulation
from xaccel_torch.precision.full import FullPrecision


class TorchGradients:
    """See `xaccel.backend.gradients.Gradients`. One process; `ReplicatedGradients` adds what several need.

    Args:
        accumulation: says which micro-step syncs.
        precision: scales the loss.
    """

    def __init__(self, accumulation: Accumulation, precision: FullPrecision):
        self._accumulation = accumulation
        self._precision = precision
        self._optimizers: list[Any] = []
        self._num_items: torch.Tensor | float | None = None
        self._plain_backward = False

    def register(self, optimizer: Any) -> None:
        """Let clipping and unscaling know a prepared optimizer."""
        self._optimizers.append(optimizer)

    def forget(self) -> None:
        """Drop every optimizer."""
        self._optimizers.clear()

    def backward(self, loss: Any, *args: Any, scale: float, num_items: Any = None, has_aux: bool = False, **kwargs: Any) -> Any:
        outcome = self._call(loss, args, kwargs) if callable(loss) and not isinstance(loss, torch.Tensor) else loss
        options = {} if outcome is not loss else kwargs
        value = outcome[0] if has_aux else outcome
        self._count(num_items)
        scaled = value if scale == 1.0 else value * scale
        self._precision.scale(scaled).backward(**options)
        if num_items is not None and self._accumulation.sync_gradients:
            self._divide_by_items()
        return (value.detach(), *outcome[1:]) if has_aux else value.detach()

    def clip_norm(self, parameters: Any, max_norm: float, norm_type: float) -> torch.Tensor:
        chosen = self._unscaled(parameters)
        return torch.nn.utils.clip_grad_norm_(chosen, max_norm, norm_type=norm_type)

    def clip_value(self, parameters: Any, clip_value: float) -> None:
        torch.nn.utils.clip_grad_value_(self._unscaled(parameters), clip_value)

    def unscale(self, optimizer: Any | None) -> None:
        for each in self._optimizers if optimizer is None else [optimizer]:
            self._precision.unscale(each.optimizer)

    def _unscaled(self, parameters: Any) -> list[torch.Tensor]:
        """The parameters, their optimizers' gradients unscaled; those of other optimizers are still to come and keep the scale."""
        chosen = [parameters] if isinstance(parameters, torch.Tensor) else list(parameters)
        if len(self._optimizers) == 1:
            self.unscale(None)
            return chosen
        ids = {id(parameter) for parameter in chosen}
        for optimizer in self._optimizers:
            if any(id(parameter) in ids for group in optimizer.param_groups for parameter in group["params"]):
                self.unscale(optimizer)
        return chosen

    def no_sync(self, model: Any) -> AbstractContextManager[None]:
        return nullcontext()

    def trigger_sync(self, model: Any) -> None:
        """There is nobody to synchronise with."""

    def _call(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        with self._precision.autocast():
            return function(*args, **kwargs)

    def _count(self, num_items: Any) -> None:
        """Keep the window's number of items; one window is weighted by items throughout, or not at all."""
        mixed = self._plain_backward if num_items is not None else self._num_items is not None
        if mixed:
            raise StepError(
                "backward() was called with and without num_items in one accumulation window: the gradient would be neither mean"
            )
        if num_items is None:
            self._plain_backward = not self._accumulation.sync_gradients
        else:
            self._num_items = num_items if self._num_items is None else self._num_items + num_items

    def _divide_by_items(self) -> None:
        factor = self._item_factor(self._num_items)
        self._num_items = None
        for parameter in self._parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(factor)

    def _item_factor(self, num_items: Any) -> float:
        total = float(num_items)
        return 1.0 / total if total > 0 else 0.0

    def _parameters(self) -> Iterable[torch.nn.Parameter]:
        # By identity: two optimizers may share a parameter.
        found = {id(each): each for optimizer in self._optimizers for group in optimizer.param_groups for each in group["params"]}
        return found.values()


class ReplicatedGradients(TorchGradients):
    """Gradients under DDP, which averages them over the processes when they sync.

    Args:
        topology: the processes.
    """

    def __init__(self, accumulation: Accumulation, precision: FullPrecision, topology: ProcessTopology):
        super().__init__(accumulation, precision)
        self._topology = topology

    def no_sync(self, model: Any) -> AbstractContextManager[None]:
        if isinstance(model, torch.nn.parallel.DistributedDataParallel):
            return model.no_sync()
        return nullcontext()

    def trigger_sync(self, model: Any) -> None:
        if isinstance(model, torch.nn.parallel.DistributedDataParallel):
            model.require_backward_grad_sync = True
            # DDP readies its reducer in forward, which ran under no_sync: do now what it left out (torch's own forward does the same).
            model.reducer.prepare_for_backward([])

    def _item_factor(self, num_items: Any) -> float:
        total = torch.tensor([float(num_items)], dtype=torch.float64, device=self._topology.device)
        dist.all_reduce(total)
        # DDP has divided the sum of the gradients by the number of processes: undo that, divide by all items.
        return self._topology.num_processes / float(total) if float(total) > 0 else 0.0
