"""Live torch objects as canonical tensors. See `xaccel.backend.state`."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from xaccel import tree
from xaccel.checkpoint.array_state import ArrayState
from xaccel.checkpoint.chunks import full_bounds
from xaccel.checkpoint.names import is_derived
from xaccel.checkpoint.object_state import ReadSlice
from xaccel.checkpoint.ownership import assign_owners
from xaccel.checkpoint.records import TensorRecord, WantedTensor
from xaccel.checkpoint.safetensors_file import dtype_tag
from xaccel.checkpoint.slots import slot_name, split_slot_name
from xaccel.checkpoint.values import decode, encode
from xaccel.errors import ConfigurationError, UnsupportedError
from xaccel.mesh.spec import Bounds
from xaccel.process.topology import ProcessTopology
from xaccel_torch import slots
from xaccel_torch.arrays import from_numpy, to_numpy
from xaccel_torch.names import canonical_name, extra_states, model_tensors, parameter_names, unwrap, wrapper_paths
from xaccel_torch.random import generator_states, restore_generator_state


class _TensorState:
    """Replicated tensors by name; each is written by one process.

    Args:
        topology: where this process stands.
        collect: the live tensors, and each name's aliases.
    """

    def __init__(self, topology: ProcessTopology, collect: Callable[[], tuple[Mapping[str, torch.Tensor], Mapping[str, tuple[str, ...]]]]):
        self._topology = topology
        self._tensors, self._aliases = collect()

    def describe(self) -> Sequence[TensorRecord]:
        owners = assign_owners(
            {name: tensor.numel() * tensor.element_size() for name, tensor in self._tensors.items()}, self._topology.num_processes
        )
        return [self._record(name, tensor, owners[name]) for name, tensor in self._tensors.items()]

    def _record(self, name: str, tensor: torch.Tensor, owner: int) -> TensorRecord:
        shape = tuple(tensor.shape)
        return TensorRecord(
            name=name,
            shape=shape,
            dtype=dtype_tag(str(tensor.dtype).removeprefix("torch.")),
            owned=(full_bounds(shape),) if owner == self._topology.process_index else (),
            aliases=self._aliases.get(name, ()),
        )

    def read(self, name: str, bounds: Bounds) -> np.ndarray:
        tensor = self._tensors[name].detach()
        part = tensor[tuple(slice(start, stop) for start, stop in bounds)] if bounds else tensor
        return np.ascontiguousarray(to_numpy(part)).reshape([stop - start for start, stop in bounds])

    def _wanted(self, name: str, tensor: torch.Tensor) -> WantedTensor:
        shape = tuple(tensor.shape)
        dtype = dtype_tag(str(tensor.dtype).removeprefix("torch."))
        return WantedTensor(name=name, shape=shape, dtype=dtype, bounds=(full_bounds(shape),), aliases=self._aliases.get(name, ()))

    def _fill(self, name: str, tensor: torch.Tensor, read: ReadSlice) -> None:
        try:
            values = read(name, full_bounds(tuple(tensor.shape)))
        except KeyError:
            return
        with torch.no_grad():
            tensor.copy_(from_numpy(values).to(tensor.dtype).reshape(tensor.shape))


class ModelState(_TensorState):
    """Parameters and persistent buffers."""

    def __init__(self, topology: ProcessTopology, model: torch.nn.Module):
        super().__init__(topology, lambda: model_tensors(model))
        self._extra = extra_states(model)

    def scalars(self) -> dict[str, Any]:
        # Encoded already here, so that the message names the module whose extra state no checkpoint can hold.
        extra = {name: _encoded(module.get_extra_state(), name) for name, module in self._extra.items()}
        return {"extra_state": extra} if extra else {}

    def wanted(self, stored: Mapping[str, TensorRecord]) -> Sequence[WantedTensor]:
        return [self._wanted(name, tensor) for name, tensor in self._tensors.items() if name in stored or not is_derived(name)]

    def load(self, read: ReadSlice, scalars: Mapping[str, Any]) -> list[str]:
        for name, tensor in self._tensors.items():
            self._fill(name, tensor, read)
        extra = scalars.get("extra_state", {})
        for name in self._extra.keys() & extra.keys():
            self._extra[name].set_extra_state(decode(extra[name], from_numpy))
        return [
            f"extra state of module {name!r}: in only one of checkpoint and model" for name in sorted(self._extra.keys() ^ extra.keys())
        ]


def _encoded(value: Any, module: str) -> Any:
    try:
        return encode(
            value, f"the extra state of module {module!r}", lambda each: to_numpy(each) if isinstance(each, torch.Tensor) else each
        )
    except ConfigurationError as error:
        raise UnsupportedError(str(error)) from error


class OptimizerState(_TensorState):
    """Slots of every parameter, step counts, and the groups' options."""

    def __init__(self, topology: ProcessTopology, optimizer: Any, models: Sequence[torch.nn.Module]):
        self._optimizer: torch.optim.Optimizer = optimizer.optimizer
        known = parameter_names(models)
        self._parameters: dict[str, tuple[torch.Tensor, dict[str, Any]]] = {}
        self._groups: list[list[str]] = []
        for group_index, group in enumerate(self._optimizer.param_groups):
            names = [known.get(id(parameter), f"unprepared.{group_index}.{index}") for index, parameter in enumerate(group["params"])]
            self._groups.append(names)
            self._parameters.update({name: (parameter, group) for name, parameter in zip(names, group["params"], strict=True)})
        super().__init__(topology, lambda: (self._slot_tensors(), {}))

    def _slot_tensors(self) -> dict[str, torch.Tensor]:
        found = {}
        for name, (parameter, _) in self._parameters.items():
            for entry, value in slots.array_entries(self._optimizer.state.get(parameter, {})).items():
                found[slot_name(slots.stored_slot(entry), name)] = value
        return found

    def scalars(self) -> dict[str, Any]:
        steps = {}
        for name, (parameter, _) in self._parameters.items():
            state = self._optimizer.state.get(parameter, {})
            if slots.STEP_ENTRY in state:
                steps[name] = int(state[slots.STEP_ENTRY])
        groups = [
            {"params": names, "options": slots.options_of(group)}
            for names, group in zip(self._groups, self._optimizer.param_groups, strict=True)
        ]
        others = {name: slots.other_entries(self._optimizer.state.get(parameter, {})) for name, (parameter, _) in self._parameters.items()}
        described = {"type": type(self._optimizer).__name__, "groups": groups, "steps": steps}
        return described | ({"torch": {name: entries for name, entries in others.items() if entries}} if any(others.values()) else {})

    def wanted(self, stored: Mapping[str, TensorRecord]) -> Sequence[WantedTensor]:
        live = {name: self._wanted(name, tensor) for name, tensor in self._tensors.items()}
        for name in stored:
            slot, parameter_name = split_slot_name(name)
            if name not in live and slots.live_entry(slot) is not None and parameter_name in self._parameters:
                live[name] = self._wanted_new(stored[name], slot, parameter_name)
        return list(live.values())

    def _wanted_new(self, record: TensorRecord, slot: str, parameter_name: str) -> WantedTensor:
        """A slot that the optimizer has not made yet: of the parameter's shape, unless it is a factored or scalar one."""
        parameter = self._parameters[parameter_name][0]
        free = slot.startswith("torch/") or slot.endswith(("_row", "_col"))
        shape = record.shape if free else tuple(parameter.shape)
        return WantedTensor(name=record.name, shape=shape, dtype=record.dtype, bounds=(full_bounds(shape),))

    def load(self, read: ReadSlice, scalars: Mapping[str, Any]) -> list[str]:
        for name, tensor in self._tensors.items():
            self._fill(name, tensor, read)
        lost = self._load_groups(scalars.get("groups", []), scalars.get("type") == type(self._optimizer).__name__)
        if scalars.get("type") == "optax" and any("max_exp_avg_sq" in state for state in self._optimizer.state.values()):
            lost.append(
                "max_exp_avg_sq: optax's is the maximum of bias-corrected values, torch's is not; steps are too small until some thousand are taken"
            )
        self._load_steps(scalars.get("steps", {}))
        for name, entries in scalars.get("torch", {}).items():
            if name in self._parameters:
                self._optimizer.state[self._parameters[name][0]].update(entries)
        return lost

    def load_new_slots(self, names: Sequence[str], shapes: Mapping[str, tuple[int, ...]], read: ReadSlice) -> None:
        """Make and fill slots that the optimizer has not made yet."""
        for name in names:
            slot, parameter_name = split_slot_name(name)
            entry = slots.live_entry(slot)
            if name in self._tensors or entry is None or parameter_name not in self._parameters:
                continue
            try:
                values = read(name, full_bounds(shapes[name]))
            except KeyError:
                continue
            parameter = self._parameters[parameter_name][0]
            dtype = parameter.dtype if parameter.is_floating_point() else None
            fresh = from_numpy(np.array(values)).reshape(shapes[name]).to(parameter.device, dtype, memory_format=torch.preserve_format)
            self._optimizer.state[parameter][entry] = fresh

    def _load_steps(self, steps: Mapping[str, int]) -> None:
        if not slots.counts_steps(self._optimizer):
            return
        for name, count in steps.items():
            if name in self._parameters:
                parameter, group = self._parameters[name]
                state = self._optimizer.state[parameter]
                # An optimizer of the user's own may count in plain integers.
                plain = isinstance(state.get(slots.STEP_ENTRY), int)
                state[slots.STEP_ENTRY] = count if plain else slots.step_tensor(parameter, group, count)

    def _load_groups(self, stored: Sequence[Mapping[str, Any]], same_type: bool) -> list[str]:
        lost = []
        by_members = {frozenset(group["params"]): group["options"] for group in stored}
        for names, group in zip(self._groups, self._optimizer.param_groups, strict=True):
            options = by_members.pop(frozenset(names), None)
            if options is None:
                lost.append(f"options of the group of {names[0] if names else 'no parameters'}: the checkpoint groups parameters otherwise")
                continue
            for key, value in options.items():
                if key not in group:
                    lost.append(f"option {key}={value!r}: {type(self._optimizer).__name__} has none of that name")
                elif isinstance(group[key], torch.Tensor):
                    group[key].fill_(value)
                else:
                    group[key] = tuple(value) if isinstance(group[key], tuple) else value
            # Another framework's optimizer has other options; those that it lacks keep the value that this optimizer was made with.
            lost += (
                []
                if not same_type
                else [
                    f"option {key}: not in the checkpoint, stays {group[key]!r}" for key in group if key != "params" and key not in options
                ]
            )
        return lost


class LazyOptimizerState(OptimizerState):
    """An `OptimizerState` that remembers what `wanted` promised, so that `load` can make slots that were not there."""

    def __init__(self, topology: ProcessTopology, optimizer: Any, models: Sequence[torch.nn.Module]):
        super().__init__(topology, optimizer, models)
        self._promised: dict[str, tuple[int, ...]] = {}

    def wanted(self, stored: Mapping[str, TensorRecord]) -> Sequence[WantedTensor]:
        found = super().wanted(stored)
        self._promised = {each.name: each.shape for each in found}
        return found

    def load(self, read: ReadSlice, scalars: Mapping[str, Any]) -> list[str]:
        self.load_new_slots(list(self._promised), self._promised, read)
        return super().load(read, scalars)


class RegisteredState(_TensorState):
    """An object with `state_dict` and `load_state_dict`: tensors and arrays of the nested dict become records, the rest JSON values."""

    def __init__(self, topology: ProcessTopology, value: Any):
        self._value = value
        self._tree = value.state_dict()
        super().__init__(topology, lambda: (_tensor_leaves(self._tree), {}))

    def scalars(self) -> dict[str, Any]:
        return {"state": _with_tensors_named(self._tree)}

    def wanted(self, stored: Mapping[str, TensorRecord]) -> Sequence[WantedTensor]:
        # The object takes whatever it once gave: its own state may hold other tensors by now.
        return [
            WantedTensor(name=name, shape=record.shape, dtype=record.dtype, bounds=(full_bounds(record.shape),))
            for name, record in stored.items()
        ] or [self._wanted(name, tensor) for name, tensor in self._tensors.items()]

    def load(self, read: ReadSlice, scalars: Mapping[str, Any]) -> list[str]:
        def restore(leaf: Any) -> Any:
            if isinstance(leaf, _Stored):
                values = np.array(read(leaf.name, full_bounds(leaf.shape))).reshape(leaf.shape)
                return values if leaf.is_numpy else from_numpy(values)
            return leaf

        self._value.load_state_dict(tree.map_leaves(restore, _names_as_leaves(scalars["state"])))
        return []


class _Stored:
    """Stands for a tensor in a nested state."""

    def __init__(self, name: str, shape: tuple[int, ...], is_numpy: bool):
        self.name = name
        self.shape = shape
        self.is_numpy = is_numpy


_TENSOR_KEY = "xaccel.tensor"


def _leaf_name(path: tree.Path) -> str:
    return "/".join(str(key) for key in path) or "value"


def _tensor_leaves(state: Any) -> dict[str, torch.Tensor]:
    found = {}
    for path, leaf in tree.leaves_with_paths(state):
        if isinstance(leaf, (torch.Tensor, np.ndarray)):
            found[_leaf_name(path)] = leaf if isinstance(leaf, torch.Tensor) else from_numpy(leaf)
    return found


def _with_tensors_named(state: Any, path: tree.Path = ()) -> Any:
    if isinstance(state, (torch.Tensor, np.ndarray)):
        return {_TENSOR_KEY: _leaf_name(path), "shape": list(state.shape), "numpy": isinstance(state, np.ndarray)}
    if tree.is_container(state):
        return tree.rebuild(state, [_with_tensors_named(child, (*path, key)) for key, child in tree.children(state)])
    return state


def _names_as_leaves(state: Any) -> Any:
    if isinstance(state, dict) and _TENSOR_KEY in state:
        return _Stored(state[_TENSOR_KEY], tuple(state["shape"]), state["numpy"])
    if tree.is_container(state):
        return tree.rebuild(state, [_names_as_leaves(child) for _, child in tree.children(state)])
    return state


class RandomState:
    """Python's, NumPy's and torch's generators of this process."""

    def __init__(self) -> None:
        keys = _numpy_state()
        self._arrays = ArrayState({**generator_states(), "numpy_keys": np.asarray(keys[1])})

    def describe(self) -> Sequence[TensorRecord]:
        return self._arrays.describe()

    def read(self, name: str, bounds: Bounds) -> np.ndarray:
        return self._arrays.read(name, bounds)

    def scalars(self) -> dict[str, Any]:
        name, _, position, has_gauss, cached = _numpy_state()
        return {"python": random.getstate(), "numpy": [name, position, has_gauss, cached]}

    def wanted(self, stored: Mapping[str, TensorRecord]) -> Sequence[WantedTensor]:
        # A checkpoint of a machine with fewer devices knows nothing of the others' generators.
        return [each for each in self._arrays.wanted(stored) if each.name in stored]

    def load(self, read: ReadSlice, scalars: Mapping[str, Any]) -> list[str]:
        version, internal, gauss = scalars["python"]
        random.setstate((version, tuple(internal), gauss))
        name, position, has_gauss, cached = scalars["numpy"]
        lost = []
        for record in self.describe():
            try:
                values = read(record.name, full_bounds(record.shape))
            except KeyError:
                continue
            if record.name == "numpy_keys":
                np.random.set_state((name, values, position, has_gauss, cached))
            elif not restore_generator_state(record.name, values):
                lost.append(f"random state {record.name}: this machine has no such device")
        return lost


def _numpy_state() -> tuple[Any, ...]:
    state: Any = np.random.get_state(legacy=True)
    return state


class TorchState:
    """See `xaccel.backend.state.StateAccess`."""

    def __init__(self, topology: ProcessTopology):
        self._topology = topology

    def model(self, model: Any) -> ModelState:
        return ModelState(self._topology, model)

    def optimizer(self, optimizer: Any, models: Sequence[Any]) -> LazyOptimizerState:
        return LazyOptimizerState(self._topology, optimizer, models)

    def registered(self, value: Any) -> RegisteredState:
        return RegisteredState(self._topology, value)

    def rng(self) -> RandomState:
        return RandomState()


def full_state_dict(model: torch.nn.Module) -> dict[str, Any]:
    """A model's tensors by canonical name, detached; tied ones under each of their names, extra states as the modules gave them."""
    inner = unwrap(model)
    wrappers = wrapper_paths(inner)
    return {
        canonical_name(name, wrappers): value.detach() if isinstance(value, torch.Tensor) else value
        for name, value in inner.state_dict().items()
    }
