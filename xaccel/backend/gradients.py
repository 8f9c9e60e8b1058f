"""From a loss to an update. Torch runs at once, JAX records; callers cannot tell."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol


class Gradients(Protocol):
    """The gradient side of one strategy with one precision."""

    def backward(
        self, loss: Any | Callable[..., Any], *args: Any, scale: float, num_items: Any = None, has_aux: bool = False, **kwargs: Any
    ) -> Any:
        """Accumulate the gradient of `scale * loss`.

        Args:
            loss: a loss value (0-d, or any shape whose gradient the framework takes), or a function whose call gives it.
            args: arguments of the function form.
            scale: 1 / accumulation steps (1.0 with `num_items`, where the exact divisor is applied when gradients sync).
            num_items: number of items (tokens) that the summed loss covers on this process in this micro-batch.
            has_aux: the function returns `(loss, aux)`.
            kwargs: to the framework's own backward in the value form (torch: `retain_graph`, `inputs`), or to the function.

        Returns:
            The unscaled loss (a lazy handle in JAX); `(loss, aux)` with `has_aux`.
        """

    def clip_norm(self, parameters: Any, max_norm: float, norm_type: float) -> Any:
        """Clip by the total norm of the accumulated gradient; returns the norm before clipping (0-d, lazy in JAX)."""

    def clip_value(self, parameters: Any, clip_value: float) -> None:
        """Clip each element to [-clip_value, clip_value]."""

    def unscale(self, optimizer: Any | None) -> None:
        """Divide the loss scale out of the gradients, once per synchronisation."""

    def no_sync(self, model: Any) -> AbstractContextManager[None]:
        """Within it, backward leaves gradients local to each replica."""

    def trigger_sync(self, model: Any) -> None:
        """The next backward reduces the gradients of `model`, though its forward ran under `no_sync`."""
