"""Canonical names of a torch model's tensors: torch's own, without the prefixes of wrappers."""

from __future__ import annotations

import sys
from typing import Any

import torch

_EXTRA_STATE = torch.nn.modules.module._EXTRA_STATE_KEY_SUFFIX


def is_compiled(model: torch.nn.Module) -> bool:
    """Whether the model came from `torch.compile`. Does not import torch's compiler: without it there is no such model."""
    compiler = sys.modules.get("torch._dynamo.eval_frame")
    return compiler is not None and isinstance(model, compiler.OptimizedModule)


def unwrap(model: torch.nn.Module, keep_torch_compile: bool = False) -> torch.nn.Module:
    """The user's module inside DDP (and, unless kept, inside torch.compile)."""
    while True:
        if isinstance(model, torch.nn.parallel.DistributedDataParallel):
            model = model.module
        elif is_compiled(model) and not keep_torch_compile:
            model = model._orig_mod  # type: ignore[assignment]
        else:
            return model


def wrapper_paths(model: torch.nn.Module) -> tuple[str, ...]:
    """Where a name passes through a wrapper inside the model (`encoder._orig_mod.`), the longest first.

    Wrappers are known by their type: a user's own submodule may be called `module`.
    """
    paths = []
    for name, module in model.named_modules(remove_duplicate=False):
        replicated = isinstance(module, torch.nn.parallel.DistributedDataParallel)
        if replicated or is_compiled(module):
            attribute = "module" if replicated else "_orig_mod"
            paths.append(f"{name}.{attribute}." if name else f"{attribute}.")
    return tuple(sorted(paths, key=len, reverse=True))


def canonical_name(name: str, wrappers: tuple[str, ...] = ()) -> str:
    """The name without the wrappers' parts.

    >>> canonical_name("encoder._orig_mod.fc1.weight", ("encoder._orig_mod.",)), canonical_name("module.fc1.weight")
    ('encoder.fc1.weight', 'module.fc1.weight')
    """
    for path in wrappers:
        if name.startswith(path):
            name = path[: path[:-1].rfind(".") + 1] + name[len(path) :]
    return name


def model_tensors(model: torch.nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, tuple[str, ...]]]:
    """Parameters and persistent buffers by canonical name, each storage once, and for each name its aliases (tied weights)."""
    seen: dict[Any, str] = {}
    tensors: dict[str, torch.Tensor] = {}
    aliases: dict[str, list[str]] = {}
    inner = unwrap(model)
    wrappers = wrapper_paths(inner)
    for name, tensor in inner.state_dict(keep_vars=True).items():
        if is_extra_state(name):
            continue
        canonical = canonical_name(name, wrappers)
        first = seen.setdefault(_storage_key(tensor), canonical)
        if first == canonical:
            tensors[canonical] = tensor
        else:
            aliases.setdefault(first, []).append(canonical)
    return tensors, {name: tuple(others) for name, others in aliases.items()}


def is_extra_state(name: str) -> bool:
    """Whether an entry of a state dict is what a module returned from `get_extra_state`."""
    return name.rpartition(".")[2] == _EXTRA_STATE


def extra_states(model: torch.nn.Module) -> dict[str, torch.nn.Module]:
    """Canonical module name -> module, for every module that has an extra state of its own."""
    inner = unwrap(model)
    wrappers = wrapper_paths(inner)
    return {
        canonical_name(f"{name}.", wrappers).rstrip("."): module
        for name, module in inner.named_modules()
        if type(module).get_extra_state is not torch.nn.Module.get_extra_state
    }


def _storage_key(tensor: torch.Tensor) -> Any:
    """Equal for tensors that are the same elements in the same order; disjoint views of one buffer differ."""
    if tensor.numel() == 0 or tensor.device.type == "meta":
        return id(tensor)
    return (tensor.device, tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tuple(tensor.shape), tensor.stride(), tensor.dtype)


def parameter_names(models: Any) -> dict[int, str]:
    """`id(parameter)` -> canonical name, over several models; the second model's names begin with `model_1.`, and so on."""
    names: dict[int, str] = {}
    for index, model in enumerate(models):
        prefix = f"model_{index}." if index else ""
        inner = unwrap(model)
        wrappers = wrapper_paths(inner)
        for name, parameter in inner.named_parameters():
            names.setdefault(id(parameter), prefix + canonical_name(name, wrappers))
    return names
