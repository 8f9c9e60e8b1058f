"""bf16 and fp16 through torch's autocast; fp16 with a dynamic loss scale."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.amp.grad_scaler import OptState

from xaccel import tree
from xaccel.config.handlers import AutocastKwargs, GradScalerKwargs
from xaccel_torch.precision.full import FullPrecision


def to_float32(outputs: Any) -> Any:
    """Half-precision tensors of a nested output as float32; everything else unchanged."""
    return tree.map_leaves(
        lambda leaf: leaf.float() if isinstance(leaf, torch.Tensor) and leaf.dtype in (torch.float16, torch.bfloat16) else leaf, outputs
    )


class AutocastForward:
    """A model's `forward` under autocast, with float32 outputs. A class, so that models stay picklable; it keeps the signature.

    Args:
        forward: the model's own bound method.
        device_kind, dtype: of the autocast.
        options: further ones.
    """

    def __init__(self, forward: Callable[..., Any], device_kind: str, dtype: torch.dtype, options: AutocastKwargs):
        self.forward = forward
        self._device_kind = device_kind
        self._dtype = dtype
        self._options = options
        functools.update_wrapper(self, forward)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with torch.autocast(self._device_kind, self._dtype, enabled=self._options.enabled, cache_enabled=self._options.cache_enabled):
            outputs = self.forward(*args, **kwargs)
        return to_float32(outputs)


class AutocastPrecision(FullPrecision):
    """`mixed_precision="bf16"`.

    Args:
        device_kind: "cpu", "cuda", …
        handler: options of autocast.
    """

    name = "bf16"
    dtype = torch.bfloat16

    def __init__(self, device_kind: str, handler: AutocastKwargs | None = None):
        self._device_kind = device_kind
        self._handler = handler

    def convert(self, model: torch.nn.Module) -> torch.nn.Module:
        if not isinstance(model.forward, AutocastForward):
            model.forward = AutocastForward(model.forward, self._device_kind, self.dtype, self._handler or AutocastKwargs())
        return model

    def restore(self, model: torch.nn.Module) -> None:
        if isinstance(model.__dict__.get("forward"), AutocastForward):
            del model.forward

    def autocast(self, handler: Any = None) -> AbstractContextManager[None]:
        options = handler or self._handler or AutocastKwargs()
        return torch.autocast(self._device_kind, self.dtype, enabled=options.enabled, cache_enabled=options.cache_enabled)


class ScaledPrecision(AutocastPrecision):
    """`mixed_precision="fp16"`: the loss is scaled so that small gradients survive; a step with an overflow is skipped.

    Source: Micikevicius et al. 2018, mixed precision training; rules of the scale as in torch's `GradScaler`.

    Args:
        device_kind: "cpu" or "cuda".
        handler: options of autocast.
        scaler: options of the loss scale.
    """

    name = "fp16"
    dtype = torch.float16

    def __init__(self, device_kind: str, handler: AutocastKwargs | None = None, scaler: GradScalerKwargs | None = None):
        super().__init__(device_kind, handler)
        self.scaler = torch.amp.GradScaler(device_kind, **(scaler or GradScalerKwargs()).to_dict())
        self._unscaled: set[int] = set()
        self._stepped = False

    def scale(self, loss: torch.Tensor) -> torch.Tensor:
        self.update()
        return self.scaler.scale(loss)

    def unscale(self, optimizer: torch.optim.Optimizer) -> None:
        if id(optimizer) in self._unscaled or not self._scales:
            return
        if self._stage(optimizer) is OptState.STEPPED:
            self.update()
        self.scaler.unscale_(optimizer)
        self._unscaled.add(id(optimizer))

    def step(self, optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> bool:
        # Unscaled here in any case: fused optimizers would otherwise take the scale inside their kernel and never say that they skipped.
        if not self._scales:
            optimizer.step(*args, **kwargs)
            return True
        self.unscale(optimizer)
        state = self.scaler._per_optimizer_states[id(optimizer)]
        overflow = sum(found.item() for found in state["found_inf_per_device"].values()) > 0
        if not overflow:
            optimizer.step(*args, **kwargs)
        state["stage"] = OptState.STEPPED
        self._stepped = True
        return not overflow

    def forget(self, optimizer: torch.optim.Optimizer) -> None:
        if id(optimizer) in self._unscaled:
            self._unscaled.discard(id(optimizer))
            # An overflow that was found and led to no step does not count; one of a step does, at the next update.
            if self._stage(optimizer) is not OptState.STEPPED:
                self.scaler._per_optimizer_states.pop(id(optimizer), None)

    def update(self) -> None:
        """Let the scale follow the steps since the last update.

        Called before the next backward: never between the steps of several optimizers whose gradients carry one scale.
        """
        if not self._stepped:
            return
        self._stepped = False
        self._unscaled.clear()
        if any(state["found_inf_per_device"] for state in self.scaler._per_optimizer_states.values()):
            self.scaler.update()
        self.scaler._per_optimizer_states.clear()

    @property
    def _scales(self) -> bool:
        """Whether gradients carry a scale: it is switched on, and a loss has been scaled."""
        return self.scaler.is_enabled() and self.scaler._scale is not None

    def _stage(self, optimizer: torch.optim.Optimizer) -> OptState:
        return self.scaler._per_optimizer_states[id(optimizer)]["stage"]

    def state_dict(self) -> dict[str, Any]:
        self.update()
        return self.scaler.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if state:
            self.scaler.load_state_dict(state)
