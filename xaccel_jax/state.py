"""Live JAX objects as canonical tensors. See `xaccel.backend.state`."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import NamedSharding

from xaccel import tree
from xaccel.checkpoint.array_state import ArrayState
from xaccel.checkpoint.chunks import full_bounds
from xaccel.checkpoint.object_state import ReadSlice
from xaccel.checkpoint.ownership import assign_owners
from xaccel.checkpoint.records import TensorRecord, WantedTensor
from xaccel.checkpoint.safetensors_file import dtype_tag
from xaccel.checkpoint.slots import FOREIGN_PREFIXES, slot_name, split_slot_name
from xaccel.errors import CheckpointMismatchError
from xaccel.mesh.spec import Bounds
from xaccel.process.topology import ProcessTopology
from xaccel_jax import slots
from xaccel_jax.definitions import Path
from xaccel_jax.lazy import Lazy
from xaccel_jax.names import Rule, kept, rules
from xaccel_jax.placement import local_value


def _host(leaf: jax.Array) -> np.ndarray:
    return np.asarray(local_value(leaf))


def _restored(values: np.ndarray, live: jax.Array, sharding: NamedSharding, name: str) -> jax.Array:
    """Stored values in the live leaf's type, on every device."""
    target = np.dtype(live.dtype)
    if values.dtype != target and values.dtype.kind in "iu":
        limits = np.iinfo(target)
        if values.size and (values.min() < limits.min or values.max() > limits.max):
            raise CheckpointMismatchError(
                f"{name}: {values.dtype.name} values up to {values.max()} do not fit into {target.name}; set jax_enable_x64"
            )
    cast = values.astype(target)
    return jax.make_array_from_callback(cast.shape, sharding, lambda index: cast[index])


class _LeafState:
    """Replicated leaves under canonical names; each is written by one process.

    Args:
        topology: where this process stands.
        sharding: where loaded leaves go.
        leaves: by canonical name.
        rules: by canonical name.
    """

    def __init__(self, topology: ProcessTopology, sharding: NamedSharding, leaves: Mapping[str, jax.Array], rules: Mapping[str, Rule]):
        self._topology = topology
        self._sharding = sharding
        self._leaves = dict(leaves)
        self._rules = dict(rules)

    def describe(self) -> Sequence[TensorRecord]:
        owners = assign_owners({name: leaf.size * leaf.dtype.itemsize for name, leaf in self._leaves.items()}, self._topology.num_processes)
        return [self._record(name, leaf, owners[name]) for name, leaf in self._leaves.items()]

    def _record(self, name: str, leaf: jax.Array, owner: int) -> TensorRecord:
        each = self._rules[name]
        owned = (full_bounds(each.canonical_shape),) if owner == self._topology.process_index else ()
        return TensorRecord(
            name=name,
            shape=each.canonical_shape,
            dtype=dtype_tag(str(leaf.dtype)),
            owned=owned,
            aliases=each.aliases,
            adapter=each.record(),
        )

    def read(self, name: str, bounds: Bounds) -> np.ndarray:
        return self._rules[name].read(_host(self._leaves[name]), bounds)

    def _want(self, name: str, stored: Mapping[str, TensorRecord]) -> WantedTensor:
        if name in stored:
            self._rules[name] = self._rules[name].as_recorded(stored[name].adapter)
        each, dtype = self._rules[name], dtype_tag(str(self._leaves[name].dtype))
        shape = each.canonical_shape
        return WantedTensor(name=name, shape=shape, dtype=dtype, bounds=(full_bounds(shape),), aliases=each.aliases)

    def _read_leaf(self, name: str, read: ReadSlice) -> jax.Array | None:
        leaf, each = self._leaves[name], self._rules[name]
        try:
            values = read(name, full_bounds(each.canonical_shape))
        except KeyError:
            return None
        return _restored(each.restore(values), leaf, self._sharding, name)


class ModelState(_LeafState):
    """Parameters and other variables; random streams are JSON values, since no other framework has them."""

    def __init__(self, topology: ProcessTopology, sharding: NamedSharding, model: Any):
        self._model = model
        variables, kinds = model.variables(), model.variable_kinds()
        self._streams = {path: leaf for path, leaf in variables.items() if kinds[path] == "rng"}
        found = model_rules(model, variables)
        super().__init__(
            topology, sharding, {each.name: variables[path] for path, each in found.items()}, {each.name: each for each in found.values()}
        )

    def scalars(self) -> dict[str, Any]:
        return {"rng": [[list(path), _stream_to_json(leaf)] for path, leaf in self._streams.items()]}

    def wanted(self, stored: Mapping[str, TensorRecord]) -> Sequence[WantedTensor]:
        return [self._want(name, stored) for name in self._leaves]

    def load(self, read: ReadSlice, scalars: Mapping[str, Any]) -> list[str]:
        loaded = {self._rules[name].path: self._read_leaf(name, read) for name in self._leaves}
        streams = {tuple(path): value for path, value in scalars.get("rng", [])}
        lost = [f"random stream {_dotted(path)}: the model has none of that name" for path in streams if path not in self._streams]
        for path, leaf in self._streams.items():
            if path not in streams:
                lost.append(f"random stream {_dotted(path)}: not in the checkpoint, goes on as it is")
            elif _kind_of_stream(streams[path]) != _kind_of_stream(_stream_to_json(leaf)):
                lost.append(f"random stream {_dotted(path)}: of another generator or shape in the checkpoint, goes on as it is")
            else:
                loaded[path] = _stream_from_json(streams[path], self._sharding)
        self._model.assign({path: value for path, value in loaded.items() if value is not None})
        return lost


def model_rules(model: Any, variables: Mapping[Path, jax.Array]) -> dict[Path, Rule]:
    """Rules of a prepared model's leaves, by path; random streams have none."""
    kinds = model.variable_kinds()
    return rules(model.definition.module, {path: tuple(leaf.shape) for path, leaf in variables.items() if kinds[path] != "rng"})


def _dotted(path: Path) -> str:
    return ".".join(map(str, path))


def _kind_of_stream(value: Mapping[str, Any]) -> tuple[Any, ...]:
    return value.get("impl"), value.get("dtype"), np.shape(value["data"])


def _stream_to_json(leaf: jax.Array) -> dict[str, Any]:
    leaf = local_value(leaf)
    if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return {"impl": str(jax.random.key_impl(leaf)), "data": np.asarray(jax.random.key_data(leaf)).tolist()}
    return {"data": np.asarray(leaf).tolist(), "dtype": str(leaf.dtype)}


def _stream_from_json(value: Mapping[str, Any], sharding: NamedSharding) -> jax.Array:
    data = np.asarray(value["data"], np.dtype(value.get("dtype", "uint32")))
    placed = jax.make_array_from_callback(data.shape, sharding, lambda index: data[index])
    return jax.random.wrap_key_data(placed, impl=value["impl"]) if "impl" in value else placed


class OptimizerState(_LeafState):
    """Slots under torch's names; counts and injected hyperparameters also as JSON values in the shared layout."""

    def __init__(self, topology: ProcessTopology, sharding: NamedSharding, optimizer: Any, models: Sequence[Any]):
        self._optimizer = optimizer
        model = optimizer.model
        index = next((place for place, each in enumerate(models) if each is model), 0)
        self._prefix = f"model_{index}." if index else ""
        found = model_rules(model, model.variables())
        self._params = {path: found[path] for path in model.definition.param_paths}
        state = optimizer.state_leaves()
        self._slots = slots.slot_leaves(optimizer.state, list(state), model.definition.param_paths)
        self._paths: dict[str, Any] = {}
        named: dict[str, Rule] = {}
        for path, leaf in state.items():
            each = self._rule(path, tuple(leaf.shape))
            self._paths[each.name], named[each.name] = path, each
        self._zeros: set[str] = set()
        super().__init__(topology, sharding, {name: state[path] for name, path in self._paths.items()}, named)

    def _rule(self, path: Any, shape: tuple[int, ...]) -> Rule:
        slot = self._slots.get(path)
        if slot is None:
            name = slots.other_name(path)
            return kept((name,), name, shape)
        own = self._params[slot.parameter]
        name = slot_name(slot.slot, self._prefix + own.name)
        if shape != own.shape:
            return kept((name,), name, shape)  # a factored slot
        return dataclasses.replace(own, name=name, aliases=tuple(slot_name(slot.slot, self._prefix + alias) for alias in own.aliases))

    def scalars(self) -> dict[str, Any]:
        names = [self._prefix + each.name for each in self._params.values()]
        injected = {name: self._optimizer.hyperparameter(name) for name in self._optimizer.hyperparameters()}
        count = self._count()
        return {
            "type": "optax",
            "groups": [{"params": names, "options": slots.options(injected)}],
            "steps": dict.fromkeys(names, count) if count is not None else {},
        }

    def _is_count(self, path: Any) -> bool:
        return path not in self._slots and slots.is_count(path)

    def _is_hyperparameter(self, path: Any) -> bool:
        return path not in self._slots and slots.is_hyperparameter(path)

    def _count(self) -> int | None:
        counts = [int(_host(self._leaves[name])) for name, path in self._paths.items() if self._is_count(path)]
        return max(counts, default=None)

    def wanted(self, stored: Mapping[str, TensorRecord]) -> Sequence[WantedTensor]:
        self._zeros = self._not_made_yet(stored)
        # Counts and hyperparameters of a torch run come from its JSON values.
        return [
            self._want(name, stored) for name in self._paths if name in stored or not (name.startswith("optax/") or name in self._zeros)
        ]

    def _not_made_yet(self, stored: Mapping[str, TensorRecord]) -> set[str]:
        """Slots of parameters that had no gradient yet: torch makes slots, filled with zeros, at a parameter's first step.

        So a parameter without any slot counts, as long as others have the slot in question; an optimizer of another kind still is an error.
        """
        known = {name for record in stored.values() for name in (record.name, *record.aliases)}
        pairs = {split_slot_name(name) for name in known if not name.startswith(FOREIGN_PREFIXES)}
        kinds, owners = {slot for slot, _ in pairs}, {owner for _, owner in pairs}
        found = set()
        for name, path in self._paths.items():
            if path in self._slots and not name.startswith(FOREIGN_PREFIXES):
                names = [split_slot_name(each) for each in (name, *self._rules[name].aliases)]
                if names[0][0] in kinds and not any(owner in owners for _, owner in names):
                    found.add(name)
        return found

    def load(self, read: ReadSlice, scalars: Mapping[str, Any]) -> list[str]:
        loaded = {name: self._read_leaf(name, read) for name in self._leaves}
        for name in self._zeros:
            loaded[name] = self._filled(name, 0)
        lost = self._load_from_json(loaded, scalars) + self._not_comparable(scalars)
        self._optimizer.assign_state({self._paths[name]: value for name, value in loaded.items() if value is not None})
        return lost

    def _filled(self, name: str, value: float) -> jax.Array:
        leaf = self._leaves[name]
        return _restored(np.full(leaf.shape, value, np.dtype(leaf.dtype)), leaf, self._sharding, name)

    def _load_from_json(self, loaded: dict[str, jax.Array | None], scalars: Mapping[str, Any]) -> list[str]:
        steps = max((int(count) for count in scalars.get("steps", {}).values()), default=None)
        given = slots.hyperparameters(scalars.get("groups", []))
        lost = []
        for name, path in self._paths.items():
            if loaded[name] is not None:
                continue
            value = steps if self._is_count(path) else given.get(name.rpartition("/")[2]) if self._is_hyperparameter(path) else None
            if value is None and self._is_hyperparameter(path) and scalars.get("type") != "optax":
                continue  # an option that the other framework does not have keeps the value that this optimizer was made with
            if value is None:
                lost.append(f"optimizer state {name}: not in the checkpoint, stays as it is")
                continue
            loaded[name] = self._filled(name, value)
        return lost

    def _not_comparable(self, scalars: Mapping[str, Any]) -> list[str]:
        """What a torch run says that this transformation cannot be told, or cannot say of itself."""
        if scalars.get("type") == "optax":
            return []
        groups, steps = scalars.get("groups", []), set(scalars.get("steps", {}).values())
        lost = []
        options = slots.crossing(slots.agreed_options(groups), list(self._optimizer.hyperparameters()))
        if options:
            lost.append(f"options {', '.join(options)}: optax.inject_hyperparams does not offer them here, this optimizer keeps its own")
        differing = slots.differing_options(groups)
        if differing:
            lost.append(f"options {', '.join(differing)}: not the same for the {len(groups)} groups, this optimizer keeps its own")
        if len(steps) > 1:
            lost.append(f"step counts from {min(steps)} to {max(steps)}: optax counts all parameters alike, from {max(steps)} on")
        if any(leaf.slot == "max_exp_avg_sq" for leaf in self._slots.values()):
            lost.append(
                "max_exp_avg_sq: optax's is the maximum of bias-corrected values, torch's is not; alike only after some thousand steps"
            )
        return lost


_TENSOR_KEY = "xaccel.tensor"


class RegisteredState(ArrayState):
    """An object with `state_dict` and `load_state_dict`: arrays of the nested dict become records, the rest JSON values."""

    def __init__(self, topology: ProcessTopology, value: Any):
        self._value = value
        state = value.state_dict()
        arrays = {_name(path): _as_numpy(leaf) for path, leaf in tree.leaves_with_paths(state) if _is_array(leaf)}
        owners = assign_owners({name: array.nbytes for name, array in arrays.items()}, topology.num_processes)
        owned = {name: (full_bounds(array.shape),) if owners[name] == topology.process_index else () for name, array in arrays.items()}
        super().__init__(arrays, {"state": _with_arrays_named(state)}, owned)

    def wanted(self, stored: Mapping[str, TensorRecord]) -> Sequence[WantedTensor]:
        # The object takes whatever it once gave: its own state may hold other arrays by now.
        return [
            WantedTensor(name=name, shape=each.shape, dtype=each.dtype, bounds=(full_bounds(each.shape),)) for name, each in stored.items()
        ]

    def load(self, read: ReadSlice, scalars: Mapping[str, Any]) -> list[str]:
        def build(node: Any) -> Any:
            if isinstance(node, dict) and _TENSOR_KEY in node:
                return read(node[_TENSOR_KEY], full_bounds(tuple(node["shape"])))
            return tree.rebuild(node, [build(child) for _, child in tree.children(node)]) if tree.is_container(node) else node

        self._value.load_state_dict(build(scalars["state"]))
        return []


def _is_array(leaf: Any) -> bool:
    return isinstance(leaf, (jax.Array, np.ndarray, Lazy))


def _as_numpy(leaf: Any) -> np.ndarray:
    return np.asarray(leaf) if not isinstance(leaf, jax.Array) else _host(leaf)


def _name(path: tree.Path) -> str:
    return "/".join(str(key) for key in path) or "value"


def _with_arrays_named(state: Any, path: tree.Path = ()) -> Any:
    if _is_array(state):
        return {_TENSOR_KEY: _name(path), "shape": list(state.shape)}
    if tree.is_container(state):
        return tree.rebuild(state, [_with_arrays_named(child, (*path, key)) for key, child in tree.children(state)])
    return state


class RandomState(ArrayState):
    """Python's and NumPy's generators of this process; JAX's streams are the models'."""

    def __init__(self) -> None:
        name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
        super().__init__({"numpy_keys": np.asarray(keys)}, {"python": random.getstate(), "numpy": [name, position, has_gauss, cached]})

    def load(self, read: ReadSlice, scalars: Mapping[str, Any]) -> list[str]:
        version, internal, gauss = scalars["python"]
        random.setstate((version, tuple(internal), gauss))
        name, position, has_gauss, cached = scalars["numpy"]
        np.random.set_state((name, read("numpy_keys", full_bounds(self.arrays["numpy_keys"].shape)), position, has_gauss, cached))
        return []


class JaxState:
    """See `xaccel.backend.state.StateAccess`."""

    def __init__(self, topology: ProcessTopology, sharding: NamedSharding):
        self._topology = topology
        self._sharding = sharding

    def model(self, model: Any) -> ModelState:
        return ModelState(self._topology, self._sharding, model)

    def optimizer(self, optimizer: Any, models: Sequence[Any]) -> OptimizerState:
        return OptimizerState(self._topology, self._sharding, optimizer, models)

    def registered(self, value: Any) -> RegisteredState:
        return RegisteredState(self._topology, value)

    def rng(self) -> RandomState:
        return RandomState()


def full_state_dict(model: Any) -> dict[str, np.ndarray]:
    """A prepared model's tensors by canonical name, in canonical layout, on the host; tied ones under each of their names."""
    variables = model.variables()
    found = {}
    for path, each in model_rules(model, variables).items():
        values = each.read(_host(variables[path]), full_bounds(each.canonical_shape))
        found.update(dict.fromkeys((each.name, *each.aliases), values))
    return found
