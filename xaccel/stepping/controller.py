"""One training step: accumulate, backward, clip. The strategy's `Gradients` and `Precision` do the work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from xaccel.backend.strategy import Strategy
from xaccel.prepared import Prepared
from xaccel.stepping.accumulation import Accumulation


class StepController:
    """The methods of `Accelerator` that a training loop calls on every batch."""

    def __init__(self, strategy: Strategy, accumulation: Accumulation, prepared: Prepared):
        self._strategy = strategy
        self._accumulation = accumulation
        self._prepared = prepared

    @contextmanager
    def accumulate(self, *models: Any) -> Iterator[None]:
        """Take one micro-step; inside it gradients stay local to each replica unless this micro-step syncs.

        Args:
            models: prepared models whose gradients are accumulated; without any, all prepared ones.
        """
        self._accumulation.advance()
        if not self._accumulation.defers_reduction:
            yield
            return
        with ExitStack() as stack:
            for model in models or self._prepared.models:
                stack.enter_context(self._strategy.gradients.no_sync(model))
            yield

    def no_sync(self, model: Any) -> AbstractContextManager[None]:
        """Within it, backward leaves the gradients of `model` local to each replica."""
        return self._strategy.gradients.no_sync(model)

    def trigger_sync_in_backward(self, model: Any) -> None:
        """Make the next backward synchronise the gradients of `model`, though its forward ran under `no_sync`."""
        self._strategy.gradients.trigger_sync(model)

    def backward(self, loss: Any | Callable[..., Any], *args: Any, num_items: Any = None, has_aux: bool = False, **kwargs: Any) -> Any:
        """Accumulate gradients of the loss, divided by the accumulation steps.

        Args:
            loss: a loss value, or a function. Called as `loss(*args, **kwargs)` if `args` holds a prepared model or the function uses one from
                outside, else, where exactly one model is prepared, as `loss(model, *args, **kwargs)`.
            num_items: the loss is a *sum* over this many items (tokens): the gradient becomes exactly that of the mean over all
                items of all micro-batches and replicas of the window, whatever their lengths.
            has_aux: the function returns `(loss, aux)`.
            kwargs: in the value form they go to the framework's backward.

        Returns:
            The undivided loss; in JAX a lazy handle. `(loss, aux)` with `has_aux`.
        """
        if callable(loss) and not self._carries_gradient(loss):
            args = self._with_model(loss, args)
        scale = 1.0 if num_items is not None else 1.0 / self._accumulation.num_steps
        return self._strategy.gradients.backward(loss, *args, scale=scale, num_items=num_items, has_aux=has_aux, **kwargs)

    def _carries_gradient(self, loss: Any) -> bool:
        return getattr(loss, "backward", None) is not None

    def _with_model(self, function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, ...]:
        models = self._prepared.models
        if len(models) != 1 or any(argument is models[0] for argument in args) or _uses(function, models[0]):
            return args
        return (models[0], *args)

    def clip_grad_norm_(self, parameters: Any, max_norm: float, norm_type: float = 2) -> Any:
        """Clip the accumulated gradient by its total norm, on the micro-step that syncs.

        Returns:
            The norm before clipping, 0-d (lazy in JAX); `None` on a micro-step that does not sync.
        """
        if not self._accumulation.sync_gradients:
            return None
        return self._strategy.gradients.clip_norm(parameters, max_norm, norm_type)

    def clip_grad_value_(self, parameters: Any, clip_value: float) -> None:
        """Clip each element of the accumulated gradient to [-clip_value, clip_value], on the micro-step that syncs."""
        if self._accumulation.sync_gradients:
            self._strategy.gradients.clip_value(parameters, clip_value)

    def unscale_gradients(self, optimizer: Any | Sequence[Any] | None = None) -> None:
        """Divide the loss scale out of the gradients of the given optimizers (all prepared ones by default)."""
        chosen = self._prepared.optimizers if optimizer is None else optimizer if isinstance(optimizer, (list, tuple)) else [optimizer]
        for each in chosen:
            self._strategy.gradients.unscale(each)

    @property
    def optimizer_step_was_skipped(self) -> bool:
        """Whether any prepared optimizer skipped its last step (overflow under fp16)."""
        return any(optimizer.step_was_skipped for optimizer in self._prepared.optimizers)


def _uses(function: Callable[..., Any], value: Any) -> bool:
    """Whether a Python function refers to `value` as a variable of its surroundings."""
    code = getattr(function, "__code__", None)
    if code is None:
        return False
    closure = getattr(function, "__closure__", None) or ()
    names = getattr(function, "__globals__", {})
    return any(cell.cell_contents is value for cell in closure) or any(names.get(name) is value for name in code.co_names)
