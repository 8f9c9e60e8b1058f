"""Prepared loss functions: called on a model's lazy output they record, so that the page's own loop is one fused step."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from xaccel_jax.lazy import Lazy
from xaccel_jax.model import LazyOutput


class LazyLoss(Lazy):
    """A loss on a model's lazy output, before `backward`: touching it evaluates it without a gradient.

    Attributes:
        function, args, kwargs: what `backward` records.
    """

    __slots__ = ("_recorded", "args", "function", "kwargs")

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], evaluate: Callable[[], Any]):
        super().__init__("loss", self._materialise)
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self._recorded: Any = evaluate

    def becomes(self, recorded: Lazy) -> None:
        """From now on it is the loss of a recorded step."""
        self._recorded = lambda: recorded.value

    def _materialise(self) -> None:
        self.set(self._recorded())


class PreparedLoss:
    """A loss function that `prepare` was given.

    Args:
        function: `(outputs, *targets) -> loss`.
    """

    def __init__(self, function: Callable[..., Any]):
        self.function = function
        functools.update_wrapper(self, function)

    def __call__(self, outputs: Any, *args: Any, **kwargs: Any) -> Any:
        """The loss: lazy if `outputs` holds a model's lazy output, else computed at once."""
        leaves, tree = jax.tree.flatten(outputs, is_leaf=lambda leaf: isinstance(leaf, Lazy))
        lazy = [leaf for leaf in leaves if isinstance(leaf, LazyOutput) and not leaf.is_ready]
        if len(leaves) != 1 or len(lazy) != 1:
            ready = jax.tree.unflatten(tree, [leaf.value if isinstance(leaf, Lazy) else leaf for leaf in leaves])
            return self.function(ready, *args, **kwargs)
        output: LazyOutput = lazy[0]
        function = self.function

        def composed(model: Any, inputs: Any, options: Any, targets: Any, keywords: Any) -> Any:
            return function(jax.tree.unflatten(tree, [model(*inputs, **options)]), *targets, **keywords)

        joined = (output.model, output.args, output.kwargs, args, kwargs)
        return LazyLoss(composed, joined, {}, lambda: self.function(jax.tree.unflatten(tree, [output.value]), *args, **kwargs))
