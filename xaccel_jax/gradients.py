"""backward and clipping, recorded into the step program. See `xaccel.backend.gradients.Gradients`."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import jax

from xaccel.errors import StepError
from xaccel.stepping.accumulation import Accumulation
from xaccel_jax.losses import LazyLoss
from xaccel_jax.program import StepProgram


class JaxGradients:
    """Records; nothing runs before the optimizer steps or a value is touched.

    Args:
        program: the recorder.
        accumulation: says which micro-step syncs.
    """

    def __init__(self, program: StepProgram, accumulation: Accumulation):
        self.program = program
        self._accumulation = accumulation

    def backward(self, loss: Any, *args: Any, scale: float, num_items: Any = None, has_aux: bool = False, **kwargs: Any) -> Any:
        if isinstance(loss, LazyLoss):
            recorded = self.program.backward(loss.function, loss.args, loss.kwargs, scale, num_items, has_aux=False)
            loss.becomes(recorded)
            return loss
        if isinstance(loss, (jax.Array, float, int)) or not callable(loss):
            raise StepError(
                f"backward() got a {type(loss).__name__}, which has no graph: JAX keeps no tape. Call accelerator.backward(loss_fn, batch) with a function "
                "loss_fn(model, batch), or give loss_fn to accelerator.prepare() and do not touch the model's output before backward"
            )
        return self.program.backward(loss, args, kwargs, scale, num_items, has_aux)

    def clip_norm(self, parameters: Any, max_norm: float, norm_type: float) -> Any:
        return self.program.clip_norm(max_norm, norm_type)

    def clip_value(self, parameters: Any, clip_value: float) -> None:
        self.program.clip_value(clip_value)

    def unscale(self, optimizer: Any | None) -> None:
        """Gradients are never scaled outside the step."""

    def no_sync(self, model: Any) -> AbstractContextManager[None]:
        # The micro-steps of a window run inside the step that syncs: there is nothing to hold back.
        return nullcontext()

    def trigger_sync(self, model: Any) -> None:
        """Gradients sync in the step."""
