"""The optimizer that scripts step: an optax transformation, or an `nnx.Optimizer`, over a prepared model's flat leaves."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, MutableMapping
from typing import Any

import jax
import optax
from flax import nnx
from jax.sharding import NamedSharding

from xaccel.errors import ConfigurationError
from xaccel.stepping.accumulation import Accumulation
from xaccel_jax.definitions import Path, _plain
from xaccel_jax.model import Model
from xaccel_jax.placement import strong
from xaccel_jax.program import StepProgram
from xaccel_jax.step import nest


@dataclasses.dataclass(frozen=True, eq=False)
class Transformation:
    """An optax transformation and the structure of its state.

    Attributes:
        optax: the transformation.
        state_tree: structure of the state.
        state_paths: path of each leaf of the state.
    """

    optax: Any
    state_tree: Any
    state_paths: tuple[Any, ...]


class AcceleratedOptimizer:
    """Updates the parameters of one prepared model.

    Args:
        optimizer: an `optax.GradientTransformation` or an `nnx.Optimizer`.
        model: whose parameters it updates.
        program: records and runs the step.
        accumulation: says which micro-step syncs; on the others `step` and `zero_grad` do nothing.
        sharding: where the state lives.
    """

    def __init__(self, optimizer: Any, model: Model, program: StepProgram, accumulation: Accumulation, sharding: NamedSharding):
        self.optimizer = optimizer
        self.model = model
        self._program = program
        self._accumulation = accumulation
        transformation = optimizer.tx if isinstance(optimizer, nnx.Optimizer) else optimizer
        if isinstance(transformation, optax.MultiSteps):
            raise ConfigurationError(
                "optax.MultiSteps accumulates by itself: use Accelerator(gradient_accumulation_steps=…) and the inner transformation"
            )
        init = jax.jit(lambda params: jax.tree.map(strong, transformation.init(params)), out_shardings=sharding)
        state = init(nest(model.definition.param_paths, model.params))
        with_paths, tree = jax.tree_util.tree_flatten_with_path(state)
        self.transformation = Transformation(transformation, tree, tuple(path for path, _ in with_paths))
        self.state_leaves_list: list[Any] = [leaf for _, leaf in with_paths]
        self.step_was_skipped = False
        self._rates: dict[int, float] = {}

    def step(self) -> None:
        """Close the recorded step and run it, on the micro-step that syncs."""
        if self._accumulation.sync_gradients:
            self._program.step(self)

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop gradients that no step has used, on the micro-step that syncs. `set_to_none` has no meaning here: nothing is kept either way."""
        del set_to_none
        if self._accumulation.sync_gradients:
            self._program.drop()

    @property
    def state(self) -> Any:
        """The optax state with current values."""
        self._program.flush()
        return jax.tree.unflatten(self.transformation.state_tree, self.state_leaves_list)

    @property
    def param_groups(self) -> list[MutableMapping[str, Any]]:
        """One group, for reading and setting hyperparameters injected by `optax.inject_hyperparams`; `lr` is `learning_rate`."""
        return [ParameterGroup(self)]

    def state_leaves(self) -> dict[Any, jax.Array]:
        """Every leaf of the optax state by key path."""
        self._program.flush()
        return dict(zip(self.transformation.state_paths, self.state_leaves_list, strict=True))

    def assign_state(self, values: Mapping[Any, jax.Array]) -> None:
        """Set leaves by key path; each must be placed as the old one was."""
        self._program.flush()
        places = {path: place for place, path in enumerate(self.transformation.state_paths)}
        for path, value in values.items():
            self.state_leaves_list[places[path]] = value
            self._rates.pop(places[path], None)

    def hyperparameters(self) -> dict[str, int]:
        """Injected hyperparameters and the places of their leaves."""
        return {str(path[-1].key): place for place, path in enumerate(self.transformation.state_paths) if _is_hyperparameter(path)}

    def set_hyperparameter(self, name: str, value: float) -> None:
        """From the next step on; an input of the compiled step, so nothing is traced anew.

        Raises:
            ConfigurationError: the transformation injects no hyperparameter of that name.
        """
        places = self.hyperparameters()
        if name not in places:
            raise ConfigurationError(
                f"the optimizer has no settable {name!r} (it injects {sorted(places) or 'none'}): "
                f"make it with optax.inject_hyperparams(optax.adamw)({name}=…), or give optax the schedule itself and prepare no scheduler"
            )
        self._rates[places[name]] = float(value)

    def hyperparameter(self, name: str) -> float:
        """The current value."""
        place = self.hyperparameters()[name]
        return self._rates.get(place, None) if place in self._rates else float(self.state_leaves_list[place].addressable_data(0))  # type: ignore[return-value]

    def overrides(self) -> dict[int, float]:
        """Leaves of the state to replace at the next step, by place."""
        return self._rates


def _is_hyperparameter(path: Any) -> bool:
    return len(path) >= 2 and getattr(path[-2], "name", None) == "hyperparams"


class ParameterGroup(MutableMapping[str, Any]):
    """torch's view of the one group: `params`, `lr`, and the other injected hyperparameters."""

    def __init__(self, optimizer: AcceleratedOptimizer):
        self._optimizer = optimizer

    def _name(self, key: str) -> str:
        return "learning_rate" if key == "lr" else key

    def __getitem__(self, key: str) -> Any:
        if key == "params":
            return self._optimizer.model.parameters()
        if self._name(key) not in self._optimizer.hyperparameters():
            raise KeyError(key)
        return self._optimizer.hyperparameter(self._name(key))

    def __setitem__(self, key: str, value: Any) -> None:
        self._optimizer.set_hyperparameter(self._name(key), value)

    def __delitem__(self, key: str) -> None:
        raise ConfigurationError(f"hyperparameter {key!r} cannot be removed")

    def __iter__(self) -> Iterator[str]:
        yield "params"
        for name in self._optimizer.hyperparameters():
            yield "lr" if name == "learning_rate" else name

    def __len__(self) -> int:
        return 1 + len(self._optimizer.hyperparameters())


def plain_path(path: Any) -> Path:
    """A key path of the state as strings and integers."""
    return _plain(path)
