"""Canonical names of a torch model's tensors: torch's own, without the prefixes of wrappers."""

from __future__ import annotations

from typing import Any

import torch

_WRAPPER_PREFIXES = ("module.", "_orig_mod.")


def unwrap(model: torch.nn.Module, keep_torch_compile: bool = False) -> torch.nn.Module:
    """The user's module inside DDP (and, unless kept, inside torch.compile)."""
    while True:
        if isinstance(model, torch.nn.parallel.DistributedDataParallel):
            model = model.module
        elif isinstance(model, torch._dynamo.eval_frame.OptimizedModule) and not keep_torch_compile:
            model = model._orig_mod
        else:
            return model


def canonical_name(name: str) -> str:
    """The name without the wrappers' parts.

    >>> canonical_name("module._orig_mod.fc1.weight")
    'fc1.weight'
    """
    for prefix in _WRAPPER_PREFIXES:
        name = name.removeprefix(prefix)
    return name.replace("._orig_mod.", ".")


def model_tensors(model: torch.nn.Module) -> tuple[dict[str, torch.Tensor], dict[str, tuple[str, ...]]]:
    """Parameters and persistent buffers by canonical name, each storage once, and for each name its aliases (tied weights)."""
    seen: dict[Any, str] = {}
    tensors: dict[str, torch.Tensor] = {}
    aliases: dict[str, list[str]] = {}
    for name, tensor in unwrap(model).state_dict(keep_vars=True).items():
        if not isinstance(tensor, torch.Tensor):
            continue
        canonical = canonical_name(name)
        first = seen.setdefault(_storage_key(tensor), canonical)
        if first == canonical:
            tensors[canonical] = tensor
        else:
            aliases.setdefault(first, []).append(canonical)
    return tensors, {name: tuple(others) for name, others in aliases.items()}


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
        for name, parameter in unwrap(model).named_parameters():
            names.setdefault(id(parameter), prefix + canonical_name(name))
    return names
