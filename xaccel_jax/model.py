"""The prepared model: flat leaves on the mesh, called as the user's own model is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
from jax.sharding import NamedSharding

from xaccel.errors import ConfigurationError
from xaccel_jax.definitions import Definition, Path
from xaccel_jax.lazy import Lazy
from xaccel_jax.placement import replicate


class Parameters:
    """What `clip_grad_norm_` and friends take: names a model's parameters; iterates over their current values."""

    def __init__(self, model: Model):
        self.model = model

    def __iter__(self) -> Any:
        return iter(self.model.params)

    def __len__(self) -> int:
        return len(self.model.params)


class Model:
    """A prepared model.

    Called outside a step it runs jitted: in training mode its batch statistics and random streams advance, in evaluation mode nothing changes.

    Attributes:
        definition: the user's model apart from its values.
        params, rest: the leaves, replicated over the mesh.
        training: what `train()` or `eval()` said; `None` before either was called, when the user's own switches count.
    """

    def __init__(self, definition: Definition, sharding: NamedSharding, program: Any):
        self.definition = definition
        self._sharding = sharding
        self._program = program
        params, rest = definition.initial
        self.params: list[Any] = replicate(params, sharding)
        self.rest: list[Any] = replicate(rest, sharding)
        self.training: bool | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The model's outputs; in training mode with a prepared loss function, a lazy output that the loss function takes."""
        return self._program.forward(self, args, kwargs)

    def expect_prepared_loss(self) -> None:
        """A loss function was prepared: outputs in training mode are lazy from now on."""
        self._program.use_prepared_loss()

    def train(self, mode: bool = True) -> Model:
        """Training mode: dropout drops, batch normalisation uses the batch. `mode=False` is `eval()`."""
        self.training = mode
        return self

    def eval(self) -> Model:
        """Evaluation mode."""
        return self.train(False)

    def parameters(self) -> Parameters:
        """The parameters, for `clip_grad_norm_` and `clip_grad_value_`."""
        return Parameters(self)

    def variables(self) -> dict[Path, jax.Array]:
        """Every leaf by path, with current values."""
        self._program.flush()
        return dict(zip(self._paths(), [*self.params, *self.rest], strict=True))

    def variable_kinds(self) -> dict[Path, str]:
        """The kind of every leaf by path: "params", "batch_stats", "rng", …"""
        return dict(self.definition.kinds)

    def assign(self, values: Mapping[Path, jax.Array]) -> None:
        """Set leaves by path; each must be placed as the old one was.

        Raises:
            ConfigurationError: a path that the model does not have.
        """
        self._program.flush()
        places = {path: place for place, path in enumerate(self._paths())}
        unknown = [path for path in values if path not in places]
        if unknown:
            raise ConfigurationError(f"the model has no variables {unknown}")
        leaves = [*self.params, *self.rest]
        for path, value in values.items():
            leaves[places[path]] = value
        self.params, self.rest = leaves[: len(self.params)], leaves[len(self.params) :]

    def unwrap(self) -> Any:
        """The user's kind of object with current values, which training on does not change."""
        self._program.flush()
        return self.definition.rebuild(jax.tree.map(_copy, self.params), jax.tree.map(_copy, self.rest))

    def _paths(self) -> tuple[Path, ...]:
        return (*self.definition.param_paths, *self.definition.rest_paths)


def _copy(leaf: jax.Array) -> jax.Array:
    return jax.random.clone(leaf) if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf.copy()


class ModelView:
    """The model inside a traced step: the step's own leaves, the precision's casts, and the rest as it advances.

    Args:
        model: whose definition and mode count.
        params, rest: traced leaves.
        precision: casts inputs and outputs.
    """

    def __init__(self, model: Model, params: list[Any], rest: list[Any], precision: Any):
        self._model = model
        self._params = params
        self.rest = rest
        self._precision = precision
        self.training = model.training

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        cast = self._precision.inputs
        outputs, self.rest = self._model.definition.call(cast(self._params), self.rest, self.training, cast(args), cast(kwargs))
        return self._precision.outputs(outputs)


class LazyOutput(Lazy):
    """A model's outputs to come: a prepared loss function takes them into the step; touching them runs the model."""

    __slots__ = ("args", "kwargs", "model")

    def __init__(self, model: Model, args: tuple[Any, ...], kwargs: dict[str, Any], run: Any):
        super().__init__("model's output", run)
        self.model = model
        self.args = args
        self.kwargs = kwargs
