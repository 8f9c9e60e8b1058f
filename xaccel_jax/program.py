"""The step program: what a training loop asks for is recorded, and runs as one jitted, donated call when the optimizer steps.

How it works:

* `backward` appends a *micro-step*; clipping and setting the learning rate append to the *tail*. `optimizer.step()` closes the program.
* A program's key is its structure: the functions' code, the static values, the tree of the inputs, which inputs are sharded. `jax.jit`
  adds shapes and types. The compiled call takes flat leaves: parameters, rest, optimizer state (all donated), the inputs of all micro-steps.
* The micro-steps of a window run in that one call, as a `lax.scan` where they are alike, else one after the other.
* A loss that is touched before the step runs what is pending, adds the gradients to a buffer, and the step then starts from the buffer:
  the same values, without the fusion.
* Tracing happens before anything is donated, so an exception in the user's function leaves every value as it was.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import jax
import numpy as np

from xaccel.errors import StepError
from xaccel_jax.arrays import narrowed
from xaccel_jax.functions import FunctionParts, is_array, is_number, static_key
from xaccel_jax.lazy import Lazy
from xaccel_jax.model import LazyOutput, Model
from xaccel_jax.placement import is_sharded
from xaccel_jax.step import Compiled, MicroKey, MicroSpec, Tail, build

MAX_MICRO_STEPS = 16
"""Micro-steps that one call takes: their inputs are all held on the device until it runs. Longer windows go through the buffer."""

MAX_STEPS_IN_FLIGHT = 8
"""On CPU: with hundreds of steps queued on virtual devices XLA aborts the process (collectives wait for threads that are all taken)."""


@dataclasses.dataclass(slots=True)
class MicroStep:
    """One recorded `backward`.

    Attributes:
        key: its structure.
        spec: how to run it.
        inputs: its dynamic leaves.
        scale: factor of the loss.
        num_items: items of a summed loss, or `None`.
        loss, aux: handles to fill.
    """

    key: MicroKey
    spec: MicroSpec
    inputs: list[Any]
    scale: float
    num_items: Any
    loss: Lazy
    aux: Lazy | None


class StepProgram:
    """Records and runs the steps of one strategy.

    Args:
        compiler: wraps a function over flat leaves for the mesh (`xaccel_jax.strategies`).
        precision: the dtype policy.
        bound_steps: whether to bound the steps in flight.
    """

    def __init__(self, compiler: Any, precision: Any, bound_steps: bool):
        self._compiler = compiler
        self._precision = precision
        self._bound_steps = bound_steps
        self._compiled: dict[Hashable, Compiled] = {}
        self._forwards: dict[Hashable, Any] = {}
        self._in_flight: collections.deque[Any] = collections.deque()
        self._loss_is_prepared = False
        self.reset()

    def reset(self) -> None:
        """Forget what is recorded, and the gradients."""
        self._micros: list[MicroStep] = []
        self._tail: list[tuple[str, float, float]] = []
        self._tail_handles: list[Lazy] = []
        self._buffer: list[Any] | None = None
        self._items: Any = None
        self._model: Model | None = None

    def clear_compiled(self) -> None:
        """Forget the compiled steps, which hold the models that they were made for."""
        self._compiled.clear()
        self._forwards.clear()
        self._in_flight.clear()

    # --- recording

    def use_prepared_loss(self) -> None:
        """A loss function was prepared: models in training mode give lazy outputs from now on."""
        self._loss_is_prepared = True

    def backward(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], scale: float, num_items: Any, has_aux: bool
    ) -> Any:
        """Record one micro-step; returns its lazy loss, or `(loss, aux)`."""
        self._check_items(num_items)
        model, key, spec, inputs = self._take_apart(function, args, kwargs, has_aux)
        if self._model is not None and self._model is not model:
            raise StepError(
                "two models had a backward before one optimizer step; step the first model's optimizer before the second backward"
            )
        loss = Lazy("loss", self.flush)
        aux = Lazy("auxiliary output", self.flush) if has_aux else None
        self._model = model
        self._micros.append(MicroStep(key, spec, inputs, scale, num_items, loss, aux))
        if len(self._micros) > MAX_MICRO_STEPS:
            self.flush()
        return (loss, aux) if has_aux else loss

    def clip_norm(self, max_norm: float, norm_type: float) -> Lazy:
        """Record clipping by the total norm; returns the lazy norm before clipping."""
        self._require_gradients("clip_grad_norm_")
        norm = Lazy("gradient norm", self._flush_norm)
        self._tail.append(("norm", float(max_norm), float(norm_type)))
        self._tail_handles.append(norm)
        return norm

    def clip_value(self, clip_value: float) -> None:
        """Record clipping of each element."""
        self._require_gradients("clip_grad_value_")
        self._tail.append(("value", float(clip_value), 0.0))

    def _require_gradients(self, what: str) -> None:
        if self._model is None:
            raise StepError(f"{what}() without gradients: call accelerator.backward(loss_fn, batch) first")

    def _check_items(self, num_items: Any) -> None:
        counted = self._items is not None or any(micro.num_items is not None for micro in self._micros)
        if self._model is not None and counted != (num_items is not None):
            raise StepError(
                "backward() was called with and without num_items in one accumulation window: the gradient would be neither mean"
            )

    def _take_apart(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], has_aux: bool
    ) -> tuple[Model, MicroKey, MicroSpec, list[Any]]:
        parts = FunctionParts(function)
        captured, parts.captured = parts.captured, []
        leaves, tree = jax.tree.flatten((captured, args, kwargs), is_leaf=_is_leaf)
        num_captured = len(jax.tree.leaves(captured, is_leaf=_is_leaf))
        models = {id(leaf): leaf for leaf in leaves if isinstance(leaf, Model)}
        if len(models) != 1:
            raise StepError(
                f"the loss function works on {len(models)} prepared models, expected one: pass the model, or prepare exactly one"
            )
        inputs, kinds, statics = [], [], []
        for place, leaf in enumerate(leaves):
            # As for jax.jit: what a function captures is constant unless it is an array; its arguments are traced, numbers too.
            if isinstance(leaf, Model):
                kinds.append("model")
            elif is_array(leaf) or (place >= num_captured and is_number(leaf)):
                inputs.append(as_input(leaf))
                kinds.append("sharded" if is_sharded(inputs[-1]) else "input")
            else:
                statics.append(leaf)
                kinds.append("static")
        model = next(iter(models.values()))
        key = (parts.key, tree, tuple(kinds), tuple(map(static_key, statics)), has_aux, model.training, self._precision_key())
        return model, key, MicroSpec(parts, tree, tuple(kinds), statics, has_aux), inputs

    def _precision_key(self) -> Hashable:
        return (self._precision.name, getattr(self._precision, "is_enabled", True))

    # --- running

    def flush(self) -> None:
        """Run the micro-steps that are pending, adding their gradients to the buffer."""
        if not self._micros:
            return
        model = self._require_model()
        outcome = self._run(model, None, None)
        self._buffer = outcome.gradients
        self._finish_micros(outcome)

    def _flush_norm(self) -> None:
        """A norm touched before the step: computed from the gradients so far, which stay unclipped until the step."""
        self.flush()
        model = self._require_model()
        tail = Tail(tuple(self._tail), None)
        compiled = self._find(model, (), tail)
        norms = compiled.norms(self._buffer or [], self._total_items())
        for handle, norm in zip(self._tail_handles, norms, strict=True):
            handle.set(norm)

    def step(self, optimizer: Any) -> None:
        """Close the program and run it: gradients, clipping, update."""
        if self._model is None:
            raise StepError("optimizer.step() without gradients: call accelerator.backward(loss_fn, batch) first")
        if optimizer.model is not self._model:
            raise StepError("optimizer.step(): the last backward was on another model than this optimizer's")
        outcome = self._run(self._model, optimizer, Tail(tuple(self._tail), optimizer.transformation))
        optimizer.state_leaves_list = outcome.optimizer_state
        for handle, norm in zip(self._tail_handles, outcome.norms, strict=True):
            handle.set(norm)
        self._finish_micros(outcome)
        self._wait_for_old_steps()
        self._tail, self._tail_handles, self._buffer, self._items, self._model = [], [], None, None, None

    def drop(self) -> None:
        """Forget gradients that no step used (`zero_grad`); the losses are still computed."""
        self.flush()
        self._tail, self._tail_handles, self._buffer, self._items, self._model = [], [], None, None, None

    def _run(self, model: Model, optimizer: Any, tail: Tail | None) -> Any:
        micros = self._micros
        compiled = self._find(model, tuple(micro.key for micro in micros), tail)
        state = optimizer.state_leaves_list if optimizer is not None else []
        rates = optimizer.overrides() if optimizer is not None else {}
        outcome = compiled(
            model.params,
            model.rest,
            state,
            self._buffer,
            [micro.inputs for micro in micros],
            [micro.scale for micro in micros],
            rates,
            self._total_items(),
        )
        model.rest = outcome.rest
        if tail is not None:
            model.params = outcome.params
        return outcome

    def _total_items(self) -> Any:
        if self._items is None and all(micro.num_items is None for micro in self._micros):
            return None
        pending = [micro.num_items for micro in self._micros]
        return sum(
            (np.asarray(each) if not isinstance(each, jax.Array) else each for each in pending),
            start=0 if self._items is None else self._items,
        )

    def _find(self, model: Model, keys: tuple[MicroKey, ...], tail: Tail | None) -> Compiled:
        key = (id(model), keys, tail, self._buffer is not None, self._items is not None)
        found = self._compiled.get(key)
        if found is None:
            specs: Sequence[MicroSpec] = [micro.spec for micro in self._micros] if keys else []
            alike = len(set(keys)) == 1 and len(keys) > 1 and _same_shapes([micro.inputs for micro in self._micros])
            found = self._compiled[key] = build(self._compiler, self._precision, model, specs, tail, scan=alike)
        return found

    def _finish_micros(self, outcome: Any) -> None:
        for index, micro in enumerate(self._micros):
            micro.loss.set(outcome.losses[index])
            if micro.aux is not None:
                micro.aux.set(outcome.aux[index])
        if any(micro.num_items is not None for micro in self._micros):
            self._items = self._total_items()
        self._in_flight.extend(outcome.losses[-1:])
        self._micros = []

    def _wait_for_old_steps(self) -> None:
        while self._bound_steps and len(self._in_flight) > MAX_STEPS_IN_FLIGHT:
            jax.block_until_ready(self._in_flight.popleft())
        if not self._bound_steps:
            self._in_flight.clear()

    def _require_model(self) -> Model:
        assert self._model is not None, "a recorded micro-step has a model"
        return self._model

    # --- outside the step

    def forward(self, model: Model, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The model called by the user: lazily where a prepared loss may follow, else at once."""
        if self._loss_is_prepared and model.training is not False:
            output: LazyOutput = LazyOutput(model, args, kwargs, lambda: output.set(self._forward_now(model, args, kwargs)))
            return output
        return self._forward_now(model, args, kwargs)

    def _forward_now(self, model: Model, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.flush()
        leaves, tree = jax.tree.flatten((args, kwargs))
        kinds = tuple(
            "sharded" if is_sharded(as_input(leaf)) else "input" if (is_array(leaf) or is_number(leaf)) else "static" for leaf in leaves
        )
        statics = tuple(static_key(leaf) for leaf, kind in zip(leaves, kinds, strict=True) if kind == "static")
        key = (id(model), tree, kinds, statics, model.training, self._precision_key())
        if key not in self._forwards:
            self._forwards[key] = self._compiler.forward(model, tree, kinds, leaves, self._precision)
        outputs, rest = self._forwards[key](
            model.params, model.rest, [as_input(leaf) for leaf in leaves if (is_array(leaf) or is_number(leaf))]
        )
        if model.training is not False:
            model.rest = rest
        return outputs


def as_input(leaf: Any) -> Any:
    """A dynamic leaf as the step takes it. NumPy arrays are copied: the user may change them before the step runs."""
    if isinstance(leaf, Lazy):
        return leaf.value
    if isinstance(leaf, np.ndarray):
        return np.array(narrowed(leaf))
    return leaf


def _is_leaf(leaf: Any) -> bool:
    return leaf is None or isinstance(leaf, (Model, Lazy))


def _same_shapes(inputs: Sequence[Sequence[Any]]) -> bool:
    shapes = [[(np.shape(leaf), str(getattr(leaf, "dtype", type(leaf)))) for leaf in each] for each in inputs]
    return all(each == shapes[0] for each in shapes)
