"""Live JAX objects as canonical tensors. See `xaccel.backend.state`."""

from __future__ import annotations

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
from xaccel.checkpoint.slots import slot_name
from xaccel.errors import CheckpointMismatchError
from xaccel.mesh.spec import Bounds
from xaccel.process.topology import ProcessTopology
from xaccel_jax import slots
from xaccel_jax.definitions import Path
from xaccel_jax.lazy import Lazy
from xaccel_jax.names import Rule, rule
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
        shape = self._rules[name].canonical_shape(leaf.shape)
        owned = (full_bounds(shape),) if owner == self._topology.process_index else ()
        return TensorRecord(name=name, shape=shape, dtype=dtype_tag(str(leaf.dtype)), owned=owned, adapter=self._rules[name].record())

    def read(self, name: str, bounds: Bounds) -> np.ndarray:
        return self._rules[name].read(_host(self._leaves[name]), bounds)

    def _want(self, name: str) -> WantedTensor:
        shape = self._rules[name].canonical_shape(self._leaves[name].shape)
        return WantedTensor(name=name, shape=shape, dtype=dtype_tag(str(self._leaves[name].dtype)), bounds=(full_bounds(shape),))

    def _read_leaf(self, name: str, read: ReadSlice) -> jax.Array | None:
        leaf, each = self._leaves[name], self._rules[name]
        try:
            values = read(name, full_bounds(each.canonical_shape(leaf.shape)))
        except KeyError:
            return None
        return _restored(each.restore(values), leaf, self._sharding, name)


class ModelState(_LeafState):
    """Parameters and other variables; random streams are JSON values, since no other framework has them."""

    def __init__(self, topology: ProcessTopology, sharding: NamedSharding, model: Any):
        self._model = model
        variables, kinds = model.variables(), model.variable_kinds()
        self._streams = {path: leaf for path, leaf in variables.items() if kinds[path] == "rng"}
        rules = {path: rule(model.definition.module, path, leaf.shape) for path, leaf in variables.items() if path not in self._streams}
        super().__init__(
            topology, sharding, {each.name: variables[path] for path, each in rules.items()}, {each.name: each for each in rules.values()}
        )

    def scalars(self) -> dict[str, Any]:
        return {"rng": [[list(path), _stream_to_json(leaf)] for path, leaf in self._streams.items()]}

    def wanted(self, stored: Mapping[str, TensorRecord]) -> Sequence[WantedTensor]:
        return [self._want(name) for name in self._leaves]

    def load(self, read: ReadSlice, scalars: Mapping[str, Any]) -> list[str]:
        loaded = {self._rules[name].path: self._read_leaf(name, read) for name in self._leaves}
        streams = {tuple(path): value for path, value in scalars.get("rng", [])}
        lost = [
            f"random stream {'.'.join(map(str, path))}: not in the checkpoint, goes on as it is"
            for path in self._streams
            if path not in streams
        ]
        for path, leaf in self._streams.items():
            if path in streams:
                loaded[path] = _stream_from_json(streams[path], leaf, self._sharding)
        self._model.assign({path: value for path, value in loaded.items() if value is not None})
        return lost


def _stream_to_json(leaf: jax.Array) -> dict[str, Any]:
    leaf = local_value(leaf)
    if jax.numpy.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        return {"impl": str(jax.random.key_impl(leaf)), "data": np.asarray(jax.random.key_data(leaf)).tolist()}
    return {"data": np.asarray(leaf).tolist(), "dtype": str(leaf.dtype)}


def _stream_from_json(value: Mapping[str, Any], live: jax.Array, sharding: NamedSharding) -> jax.Array:
    data = np.asarray(value["data"], np.dtype(value.get("dtype", "uint32")))
    placed = jax.make_array_from_callback(data.shape, sharding, lambda index: data[index])
    return jax.random.wrap_key_data(placed, impl=value["impl"]) if "impl" in value else placed


class OptimizerState(_LeafState):
    """Slots under torch's names; counts and injected hyperparameters also as JSON values in the shared layout."""

    def __init__(self, topology: ProcessTopology, sharding: NamedSharding, optimizer: Any, models: Sequence[Any]):
        self._optimizer = optimizer
        model = optimizer.model
        index = next((place for place, each in enumerate(models) if each is model), 0)
        prefix = f"model_{index}." if index else ""
        variables = model.variables()
        params = {path: rule(model.definition.module, path, variables[path].shape) for path in model.definition.param_paths}
        self._parameter_names = {path: prefix + each.name for path, each in params.items()}
        state = optimizer.state_leaves()
        belongs = slots.slot_leaves(list(state), model.definition.param_paths)
        self._paths: dict[str, Any] = {}
        rules: dict[str, Rule] = {}
        for path, leaf in state.items():
            name, each = self._name_and_rule(path, leaf, belongs, params)
            self._paths[name], rules[name] = path, each
        super().__init__(topology, sharding, {name: state[path] for name, path in self._paths.items()}, rules)

    def _name_and_rule(self, path: Any, leaf: Any, belongs: Mapping[Any, slots.SlotLeaf], params: Mapping[Path, Rule]) -> tuple[str, Rule]:
        slot = belongs.get(path)
        if slot is None:
            name = slots.other_name(path)
            return name, Rule(path=(name,), name=name, permutation=tuple(range(leaf.ndim)))
        own = params[slot.parameter]
        name = slot_name(slot.slot, self._parameter_names[slot.parameter])
        if len(own.permutation) != leaf.ndim:
            # A factored slot has another shape than its parameter.
            return name, Rule(path=(name,), name=name, permutation=tuple(range(leaf.ndim)))
        return name, Rule(path=own.path, name=name, permutation=own.permutation, flipped=own.flipped, role=own.role, guessed=own.guessed)

    def scalars(self) -> dict[str, Any]:
        names = list(self._parameter_names.values())
        injected = {name: self._optimizer.hyperparameter(name) for name in self._optimizer.hyperparameters()}
        count = self._count()
        return {
            "type": "optax",
            "groups": [{"params": names, "options": slots.options(injected)}],
            "steps": dict.fromkeys(names, count) if count is not None else {},
        }

    def _count(self) -> int | None:
        counts = [int(_host(self._leaves[name])) for name, path in self._paths.items() if slots.is_count(path)]
        return max(counts, default=None)

    def wanted(self, stored: Mapping[str, TensorRecord]) -> Sequence[WantedTensor]:
        # Counts and hyperparameters of a torch run come from its JSON values.
        return [self._want(name) for name, path in self._paths.items() if name in stored or not name.startswith("optax/")]

    def load(self, read: ReadSlice, scalars: Mapping[str, Any]) -> list[str]:
        loaded = {name: self._read_leaf(name, read) for name in self._leaves}
        lost = self._load_from_json(loaded, scalars)
        self._optimizer.assign_state({self._paths[name]: value for name, value in loaded.items() if value is not None})
        return lost

    def _load_from_json(self, loaded: dict[str, jax.Array | None], scalars: Mapping[str, Any]) -> list[str]:
        steps = max((int(count) for count in scalars.get("steps", {}).values()), default=None)
        given = slots.hyperparameters(scalars["groups"][0]["options"]) if len(scalars.get("groups", [])) == 1 else {}
        lost = []
        for name, path in self._paths.items():
            if loaded[name] is not None:
                continue
            value = steps if slots.is_count(path) else given.get(name.rpartition("/")[2]) if slots.is_hyperparameter(path) else None
            if value is None and slots.is_hyperparameter(path) and scalars.get("type") != "optax":
                continue  # an option that the other framework does not have keeps the value that this optimizer was made with
            if value is None:
                lost.append(f"optimizer state {name}: not in the checkpoint, stays as it is")
                continue
            leaf = self._leaves[name]
            loaded[name] = _restored(np.full(leaf.shape, value, np.dtype(leaf.dtype)), leaf, self._sharding, name)
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
    """A prepared model's tensors by canonical name, in canonical layout, on the host."""
    kinds = model.variable_kinds()
    found = {}
    for path, leaf in model.variables().items():
        if kinds[path] != "rng":
            each = rule(model.definition.module, path, leaf.shape)
            found[each.name] = each.read(_host(leaf), full_bounds(each.canonical_shape(leaf.shape)))
    return found
