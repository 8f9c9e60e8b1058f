"""Canonical names: wrappers are known by type, ties by storage."""

from __future__ import annotations

from typing import Any

import torch

from xaccel_torch.names import canonical_name, extra_states, model_tensors, parameter_names, unwrap, wrapper_paths


def compiled(model: torch.nn.Module) -> Any:
    # "eager": torch's own import of its compiler warns, and nothing is compiled here.
    return torch.compile(model, backend="eager")


class Wrapping(torch.nn.Module):
    """A user's model with a part called `module`, as DDP calls its own."""

    def __init__(self) -> None:
        super().__init__()
        self.module = torch.nn.Linear(2, 2)
        self.encoder = compiled(torch.nn.Sequential(compiled(torch.nn.Linear(2, 3))))


def test_only_real_wrappers_leave_the_name() -> None:
    names = ["module.weight", "module.bias", "encoder.0.weight", "encoder.0.bias"]
    assert list(model_tensors(compiled(Wrapping()))[0]) == names
    assert sorted(parameter_names([Wrapping()]).values()) == sorted(names)


def test_unwrap_keeps_a_compiled_model_where_asked() -> None:
    model = torch.nn.Linear(1, 1)
    wrapped = compiled(model)
    assert unwrap(wrapped) is model
    assert unwrap(wrapped, keep_torch_compile=True) is wrapped
    assert canonical_name("_orig_mod.weight", wrapper_paths(wrapped)) == "weight"


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(4, 3)
        self.head = torch.nn.Linear(3, 4, bias=False)
        self.head.weight = self.embed.weight


def test_tied_weights_are_one_tensor_with_an_alias() -> None:
    tensors, aliases = model_tensors(Tied())
    assert list(tensors) == ["embed.weight"]
    assert aliases == {"embed.weight": ("head.weight",)}


def test_disjoint_views_of_one_buffer_are_two_tensors() -> None:
    model = torch.nn.Module()
    storage = torch.arange(5.0)
    model.a, model.b = torch.nn.Parameter(storage[:2]), torch.nn.Parameter(storage[2:5])
    tensors, aliases = model_tensors(model)
    assert {name: tuple(tensor.shape) for name, tensor in tensors.items()} == {"a": (2,), "b": (3,)}
    assert aliases == {}


def test_parameters_of_a_second_model_have_a_prefix() -> None:
    first, second = torch.nn.Linear(1, 1, bias=False), torch.nn.Linear(1, 1, bias=False)
    assert list(parameter_names([first, second]).values()) == ["weight", "model_1.weight"]


class Counting(torch.nn.Module):
    def get_extra_state(self) -> Any:
        return {"calls": 3}

    def set_extra_state(self, state: Any) -> None:
        self.loaded = state


def test_extra_state_is_no_tensor() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(1, 1), Counting())
    assert list(extra_states(model)) == ["1"]
    assert list(model_tensors(model)[0]) == ["0.weight", "0.bias"]
