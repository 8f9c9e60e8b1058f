"""Prepared models, optimizers and registered objects as canonical tensors, and back."""

from __future__ import annotations

import random
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from xaccel import Accelerator
from xaccel.checkpoint.object_state import ObjectState
from xaccel.checkpoint.ownership import assign_owners
from xaccel.checkpoint.records import TensorRecord
from xaccel.checkpoint.values import decode, encode
from xaccel.errors import CheckpointMismatchError
from xaccel.process.topology import ProcessTopology
from xaccel_jax.placement import is_key
from xaccel_jax.state import JaxState, _restored, full_state_dict

Saved = tuple[dict[str, TensorRecord], dict[str, np.ndarray], Any]
SHARDING = jax.sharding.NamedSharding(jax.sharding.Mesh(np.array(jax.devices()), ("replicas",)), jax.sharding.PartitionSpec())


def topology(process_index: int = 0, num_processes: int = 1) -> ProcessTopology:
    device = jax.devices()[0]
    return ProcessTopology(device=device, device_kind="cpu", backend="jax", process_index=process_index, num_processes=num_processes)


STATE = JaxState(topology(), SHARDING)


class Net(nnx.Module):
    def __init__(self, seed: int = 0, dtype: Any = jnp.float32):
        rngs = nnx.Rngs(seed)
        self.fc = nnx.Linear(3, 4, param_dtype=dtype, rngs=rngs)
        self.norm = nnx.BatchNorm(4, rngs=rngs)
        self.drop = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.drop(self.norm(self.fc(x)))


class Tied(nnx.Module):
    def __init__(self, seed: int = 0):
        self.encode = nnx.Linear(3, 3, rngs=nnx.Rngs(seed))
        self.decode = nnx.Linear(3, 3, rngs=nnx.Rngs(seed + 1))
        self.decode.kernel = self.encode.kernel

    def __call__(self, x: Any) -> Any:
        return self.decode(jnp.tanh(self.encode(x)))


def prepare(model: Any, transformation: Any = None) -> tuple[Any, Any, Any]:
    accelerator = Accelerator(backend="jax", cpu=True)
    return (accelerator, *accelerator.prepare(model, transformation or optax.adamw(1e-2)))


def train(accelerator: Any, model: Any, optimizer: Any, steps: int = 2) -> None:
    model.train()
    for _ in range(steps):
        accelerator.backward(lambda model, x: jnp.mean(model(x) ** 2), np.linspace(-1, 1, 24, dtype=np.float32).reshape(8, 3))
        optimizer.step()
        optimizer.zero_grad()


def saved(state: ObjectState) -> Saved:
    """What a checkpoint would hold."""
    records = {record.name: record for record in state.describe()}
    arrays = {name: np.array(state.read(name, bounds)) for name, record in records.items() for bounds in record.owned}
    return records, arrays, encode(state.scalars(), "state", lambda value: np.asarray(value) if isinstance(value, jax.Array) else value)


def load(state: ObjectState, checkpoint: Saved) -> list[str]:
    """As `load_state` does, `strict`."""
    records, arrays, scalars = checkpoint
    known = {name: record.name for record in records.values() for name in (record.name, *record.aliases)}
    sources = {}
    for wanted in state.wanted(records):
        sources[wanted.name] = next((known[name] for name in (wanted.name, *wanted.aliases) if name in known), None)
        source = sources[wanted.name]
        assert source is not None, f"missing {wanted.name}"
        assert records[source].shape == wanted.shape

    def read(name: str, bounds: Any) -> np.ndarray:
        return arrays[sources[name]][tuple(slice(*pair) for pair in bounds)]  # type: ignore[index]

    return state.load(read, decode(scalars, jnp.asarray))


def bits(values: Any) -> dict[Any, bytes]:
    return {path: np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf).tobytes() for path, leaf in values.items()}


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_a_run_goes_on_bit_for_bit(dtype: Any) -> None:
    """Case 21: typed keys and counts of random streams too; dropout draws what it would have drawn."""
    accelerator, model, optimizer = prepare(Net(0, dtype))
    train(accelerator, model, optimizer)
    states = saved(STATE.model(model)), saved(STATE.optimizer(optimizer, [model]))
    other_accelerator, other, other_optimizer = prepare(Net(1, dtype))
    assert load(STATE.model(other), states[0]) == []
    assert load(STATE.optimizer(other_optimizer, [other]), states[1]) == []
    assert bits(other.variables()) == bits(model.variables())
    assert bits(other_optimizer.state_leaves()) == bits(optimizer.state_leaves())
    train(accelerator, model, optimizer)
    train(other_accelerator, other, other_optimizer)
    assert bits(other.variables()) == bits(model.variables())


def test_names_and_scalars_are_torchs() -> None:
    accelerator, model, optimizer = prepare(Net(), optax.inject_hyperparams(optax.adamw)(1e-2, weight_decay=0.5))
    train(accelerator, model, optimizer, 3)
    parameters = ["fc.bias", "fc.weight", "norm.bias", "norm.weight"]
    records, arrays, _ = saved(STATE.model(model))
    assert sorted(records) == sorted([*parameters, "norm.running_mean", "norm.running_var"])
    assert np.array_equal(arrays["fc.weight"], np.asarray(model.variables()["fc", "kernel"]).T)
    assert records["fc.weight"].adapter["path"] == ["fc", "kernel"]
    described = STATE.optimizer(optimizer, [model])
    names = {record.name for record in described.describe()}
    assert {f"{slot}/{name}" for slot in ("exp_avg", "exp_avg_sq") for name in parameters} <= names
    scalars = described.scalars()
    assert sorted(scalars["groups"][0]["params"]) == parameters
    assert scalars["groups"][0]["options"]["lr"] == pytest.approx(1e-2)
    assert scalars["groups"][0]["options"]["betas"] == pytest.approx([0.9, 0.999])
    assert scalars["steps"] == dict.fromkeys(parameters, 3)


def test_a_second_model_has_its_number() -> None:
    _, model, optimizer = prepare(Net())
    names = {record.name for record in STATE.optimizer(optimizer, [object(), model]).describe()}
    assert "exp_avg/model_1.fc.weight" in names


def test_replicated_tensors_are_divided_over_processes() -> None:
    _, model, _ = prepare(Net())
    owners = []
    for index in range(3):
        state = JaxState(topology(index, 3), SHARDING).model(model)
        owners.append({record.name for record in state.describe() if record.owned})
    assert set.union(*owners) == {record.name for record in STATE.model(model).describe()}
    assert sum(map(len, owners)) == len(set.union(*owners))
    assert all(owners)
    assert assign_owners({"a": 1}, 3) == {"a": 0}


def test_tied_variables_are_stored_once_and_found_under_either_name() -> None:
    """Case 15, and C-72."""
    accelerator, model, optimizer = prepare(Tied())
    train(accelerator, model, optimizer)
    records, arrays, scalars = saved(STATE.model(model))
    assert sorted(records) == ["decode.bias", "encode.bias", "encode.weight"]
    assert records["encode.weight"].aliases == ("decode.weight",)
    whole = full_state_dict(model)
    assert np.array_equal(whole["decode.weight"], whole["encode.weight"])
    # Another framework may store it under the other name, and the optimizer's slots too.
    swap = {"encode.weight": "decode.weight"}
    under_other = {
        swap.get(name, name): TensorRecord(name=swap.get(name, name), shape=each.shape, dtype=each.dtype, owned=())
        for name, each in records.items()
    }
    _, other, _ = prepare(Tied(5))
    assert load(STATE.model(other), (under_other, {swap.get(name, name): value for name, value in arrays.items()}, scalars)) == []
    assert bits(other.variables()) == bits(model.variables())
    slots = {record.name: record.aliases for record in STATE.optimizer(optimizer, [model]).describe()}
    assert slots["exp_avg/encode.weight"] == ("exp_avg/decode.weight",)


TORCH = {"type": "AdamW", "groups": [{"params": [], "options": {"lr": 0.5, "betas": [0.8, 0.9], "eps": 1e-8, "foreach": None}}]}


def as_torch(checkpoint: Saved, steps: dict[str, int], without: str = "-", **scalars: Any) -> Saved:
    """The same as torch writes it: no `optax/…`, no adapter records."""
    records, arrays, _ = checkpoint
    kept = {name: TensorRecord(name=name, shape=each.shape, dtype=each.dtype, owned=()) for name, each in records.items()}
    kept = {name: each for name, each in kept.items() if not name.startswith("optax/") and without not in name}
    return kept, {name: arrays[name] for name in kept}, {**TORCH, "steps": steps, **scalars}


def test_torchs_steps_and_options_are_taken_over() -> None:
    _, model, optimizer = prepare(Net(), optax.inject_hyperparams(optax.adamw)(1e-2))
    checkpoint = as_torch(saved(STATE.optimizer(optimizer, [model])), {"fc.weight": 7})
    assert load(STATE.optimizer(optimizer, [model]), checkpoint) == []
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert optimizer.hyperparameter("b1") == pytest.approx(0.8)
    assert STATE.optimizer(optimizer, [model]).scalars()["steps"]["fc.weight"] == 7


def test_options_that_cannot_be_taken_over_are_named() -> None:
    _, model, optimizer = prepare(Net())
    groups = [{"params": ["a"], "options": {"lr": 0.5, "eps": 0.1}}, {"params": ["b"], "options": {"lr": 0.25, "eps": 0.1}}]
    checkpoint = as_torch(saved(STATE.optimizer(optimizer, [model])), {"fc.weight": 7, "fc.bias": 3}, groups=groups)
    lost = load(STATE.optimizer(optimizer, [model]), checkpoint)
    assert [line.partition(":")[0] for line in lost] == ["options eps=0.1", "options lr", "step counts from 3 to 7"]
    assert STATE.optimizer(optimizer, [model]).scalars()["steps"]["fc.weight"] == 7


def test_a_parameter_that_torch_never_stepped_has_zeros() -> None:
    accelerator, model, optimizer = prepare(Net(), optax.inject_hyperparams(optax.adamw)(1e-2))
    train(accelerator, model, optimizer)
    assert (
        load(STATE.optimizer(optimizer, [model]), as_torch(saved(STATE.optimizer(optimizer, [model])), {"fc.weight": 2}, "/norm.bias"))
        == []
    )
    _, arrays, _ = saved(STATE.optimizer(optimizer, [model]))
    assert not arrays["exp_avg/norm.bias"].any()
    assert arrays["exp_avg/fc.weight"].any()


@pytest.mark.parametrize("without", ["exp_avg_sq/", "exp_avg_sq/fc.weight", "exp_avg"])
def test_state_of_another_optimizer_is_missing(without: str) -> None:
    _, model, optimizer = prepare(Net())
    checkpoint = as_torch(saved(STATE.optimizer(optimizer, [model])), {}, without)
    with pytest.raises(AssertionError, match="missing exp_avg"):
        load(STATE.optimizer(optimizer, [model]), checkpoint)


def test_random_streams_that_do_not_fit_are_named() -> None:
    _, model, _ = prepare(Net())
    records, arrays, _ = saved(STATE.model(model))
    before = bits(model.variables())
    lost = load(STATE.model(model), (records, arrays, {}))
    assert len(lost) == 2
    assert all(line.endswith("not in the checkpoint, goes on as it is") for line in lost)
    streams = STATE.model(model).scalars()["rng"]
    other = [[path, value | {"impl": "rbg", "data": [0, 0, 0, 0]}] if "impl" in value else [["gone"], value] for path, value in streams]
    lost = load(STATE.model(model), (records, arrays, {"rng": other}))
    assert [line.partition(": ")[2] for line in lost] == [
        "the model has none of that name",
        "not in the checkpoint, goes on as it is",
        "of another generator or shape in the checkpoint, goes on as it is",
    ]
    assert bits(model.variables()) == before


def test_counters_of_torch_are_neither_wanted_nor_written() -> None:
    _, model, _ = prepare(Net())
    assert not any(record.name.endswith("num_batches_tracked") for record in STATE.model(model).describe())


def test_a_parameter_called_count_is_no_counter() -> None:
    class Counting(nnx.Module):
        def __init__(self) -> None:
            self.count = nnx.Param(jnp.ones(3))

        def __call__(self, x: Any) -> Any:
            return x * self.count[...]

    accelerator, model, optimizer = prepare(Counting())
    train(accelerator, model, optimizer, 2)
    assert STATE.optimizer(optimizer, [model]).scalars()["steps"] == {"count": 2}


def test_floats_are_converted_and_integers_never_wrap() -> None:
    """Case C-107."""
    live = jnp.zeros(2, jnp.int32)
    assert _restored(np.array([1, -5], np.int64), live, SHARDING, "n").tolist() == [1, -5]
    with pytest.raises(CheckpointMismatchError, match="n: int64 values up to 1099511627776 do not fit into int32"):
        _restored(np.array([0, 2**40], np.int64), live, SHARDING, "n")
    half = _restored(np.array([1.5, -2.0], np.float32), jnp.zeros(2, jnp.bfloat16), SHARDING, "w")
    assert half.dtype == jnp.bfloat16
    assert half.tolist() == [1.5, -2.0]


def test_bound_linen_goes_on_bit_for_bit() -> None:
    class Small(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            return nn.Dropout(0.5, deterministic=False)(nn.Dense(2)(x))

    def bound(seed: int) -> Any:
        key = jax.random.key(seed)
        return Small().bind(Small().init({"params": key, "dropout": key}, jnp.ones((1, 3))))

    accelerator, model, optimizer = prepare(bound(0))
    train(accelerator, model, optimizer)
    states = saved(STATE.model(model)), saved(STATE.optimizer(optimizer, [model]))
    assert sorted(states[0][0]) == ["Dense_0.bias", "Dense_0.weight"]
    other_accelerator, other, other_optimizer = prepare(bound(1))
    assert load(STATE.model(other), states[0]) + load(STATE.optimizer(other_optimizer, [other]), states[1]) == []
    train(accelerator, model, optimizer)
    train(other_accelerator, other, other_optimizer)
    assert bits(other.variables()) == bits(model.variables())


class Kept:
    def __init__(self, state: Any):
        self.state = state

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


def test_registered_objects_come_back() -> None:
    value = Kept({"w": jnp.arange(3.0), "inner": {"n": 3, "t": (1, "x"), "a": np.ones((2, 0))}})
    other = Kept(None)
    other.state = {}
    assert load(STATE.registered(other), saved(STATE.registered(value))) == []
    assert np.array_equal(other.state["w"], [0, 1, 2])
    assert other.state["inner"]["n"] == 3
    assert other.state["inner"]["t"] == (1, "x")
    assert other.state["inner"]["a"].shape == (2, 0)


def test_generators_of_the_process_come_back() -> None:
    """Case C-66; JAX's own streams are the models'."""
    random.seed(3)
    np.random.seed(3)
    np.random.standard_normal()  # leaves a cached second value
    checkpoint = saved(STATE.rng())
    expected = random.random(), np.random.standard_normal(), np.random.random()
    random.seed(4)
    np.random.seed(4)
    assert load(STATE.rng(), checkpoint) == []
    assert (random.random(), np.random.standard_normal(), np.random.random()) == expected
