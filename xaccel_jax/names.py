"""From Flax's leaves to canonical tensors: PyTorch's names and layouts, by the type of the layer that holds a leaf.

What was done to each leaf is a `Rule`; it stands in the manifest (`TensorRecord.adapter`), so that a round trip in JAX is bit-exact even
where a role was guessed.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import numpy as np
from flax import nnx

from xaccel.mesh.spec import Bounds
from xaccel_jax.definitions import Path

_NORM_LEAVES = {"scale": "weight", "bias": "bias", "mean": "running_mean", "var": "running_var"}
_COLLECTIONS = ("params", "batch_stats")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rule:
    """How one leaf stands on disk.

    Attributes:
        path: the leaf's path in the model.
        name: canonical name.
        permutation: dim i of the canonical tensor is dim `permutation[i]` of the leaf.
        flipped: dims of the leaf whose order is reversed (transposed convolutions).
        role: what it was taken for; "kept" means unchanged under its own name.
        guessed: whether the role was told from name and shape alone.
    """

    path: Path
    name: str
    permutation: tuple[int, ...]
    flipped: tuple[int, ...] = ()
    role: str = "kept"
    guessed: bool = False

    def canonical_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape on disk of a leaf of that shape."""
        return tuple(shape[dim] for dim in self.permutation)

    def read(self, leaf: np.ndarray, bounds: Bounds) -> np.ndarray:
        """One slice in canonical layout, C-contiguous: bounds are permuted first, then only that part is transposed."""
        index: list[slice] = [slice(None)] * leaf.ndim
        for dim, (start, stop) in zip(self.permutation, bounds, strict=True):
            size = leaf.shape[dim]
            index[dim] = (
                slice(size - start - 1, size - stop - 1 if size - stop > 0 else None, -1) if dim in self.flipped else slice(start, stop)
            )
        part = leaf[tuple(index)].transpose(self.permutation)
        # ascontiguousarray makes a 0-d array 1-d.
        return np.ascontiguousarray(part).reshape(part.shape)

    def restore(self, canonical: np.ndarray) -> np.ndarray:
        """The leaf again from the whole canonical tensor."""
        leaf = canonical.transpose(np.argsort(self.permutation)) if self.permutation else canonical
        leaf = np.flip(leaf, self.flipped) if self.flipped else leaf
        return np.ascontiguousarray(leaf).reshape(leaf.shape)

    def record(self) -> dict[str, Any]:
        """For the manifest."""
        return {
            "path": list(self.path),
            "permute": list(self.permutation),
            "flip": list(self.flipped),
            "role": self.role,
            "guessed": self.guessed,
        }


def rule(module: Any, path: Path, shape: tuple[int, ...]) -> Rule:
    """The rule of one leaf of a model.

    Args:
        module: the user's NNX module, or the unbound Linen module.
        path: of the leaf.
        shape: of the leaf.
    """
    layer, guessed = _layer(module, path), False
    role = _role_of(layer, path)
    if role is None:
        role, guessed = _guess(path, shape), True
    leaf = str(path[-1])
    kernel = leaf == "kernel"
    ndim = len(shape)
    if role == "linear" and kernel and ndim == 2:
        return _rule(path, "weight", (1, 0), (), role, guessed)
    if role == "conv" and kernel and ndim >= 3:
        return _rule(path, "weight", (ndim - 1, ndim - 2, *range(ndim - 2)), (), role, guessed)
    if role in ("conv_transpose", "conv_transpose_flipped") and kernel:
        return _conv_transpose(path, ndim, role, guessed)
    if role == "embedding" and leaf == "embedding":
        return _rule(path, "weight", tuple(range(ndim)), (), role, guessed)
    if role == "norm" and leaf in _NORM_LEAVES:
        return _rule(path, _NORM_LEAVES[leaf], tuple(range(ndim)), (), role, guessed)
    return _rule(path, leaf, tuple(range(ndim)), (), role if leaf == "bias" else "kept", guessed)


def _conv_transpose(path: Path, ndim: int, role: str, guessed: bool) -> Rule:
    """torch's transposed convolution is the gradient of a convolution, (in, out, *spatial). Flax's is that with `transpose_kernel=True`, whose
    kernel is (*spatial, out, in); without it the kernel is (*spatial, in, out) and runs the other way round."""
    spatial = tuple(range(ndim - 2))
    if role == "conv_transpose":
        return _rule(path, "weight", (ndim - 1, ndim - 2, *spatial), (), role, guessed)
    return _rule(path, "weight", (ndim - 2, ndim - 1, *spatial), spatial, role, guessed)


def _rule(path: Path, leaf: str, permutation: tuple[int, ...], flipped: tuple[int, ...], role: str, guessed: bool) -> Rule:
    parents = path[1:-1] if path[0] in _COLLECTIONS else path[:-1]
    name = ".".join(str(part) for part in (*parents, leaf))
    return Rule(path=path, name=name, permutation=permutation, flipped=flipped, role=role, guessed=guessed)


def _layer(module: Any, path: Path) -> Any:
    """The NNX layer that holds the leaf; `None` for Linen, whose layers exist only inside a call."""
    if isinstance(module, nn.Module):
        return None
    for part in path[:-1]:
        module = module[part] if isinstance(part, int) else getattr(module, part)
    return module


def _role_of(layer: Any, path: Path) -> str | None:
    """The role by the layer's type; `None` where there is no layer to ask."""
    if layer is None:
        return _linen_role(path)
    if isinstance(layer, nnx.ConvTranspose):
        return "conv_transpose" if layer.transpose_kernel else "conv_transpose_flipped"
    roles = (
        (nnx.Linear, "linear"),
        (nnx.Conv, "conv"),
        (nnx.Embed, "embedding"),
        ((nnx.BatchNorm, nnx.LayerNorm, nnx.RMSNorm, nnx.GroupNorm), "norm"),
    )
    return next((role for kind, role in roles if isinstance(layer, kind)), "kept")


def _linen_role(path: Path) -> str | None:
    """The role by Linen's automatic names (`Dense_0`); `None` for names that the user gave."""
    owner = str(path[-2]) if len(path) >= 2 else ""
    prefixes = {
        "Dense_": "linear",
        "Conv_": "conv",
        "ConvTranspose_": "conv_transpose_flipped",
        "Embed_": "embedding",
        "BatchNorm_": "norm",
        "LayerNorm_": "norm",
        "RMSNorm_": "norm",
        "GroupNorm_": "norm",
    }
    return next((role for prefix, role in prefixes.items() if owner.startswith(prefix) and owner[len(prefix) :].isdigit()), None)


def _guess(path: Path, shape: tuple[int, ...]) -> str:
    leaf = str(path[-1])
    if leaf == "kernel":
        return {2: "linear", 4: "conv", 5: "conv"}.get(
            len(shape), "conv" if "conv" in str(path[-2]).lower() and len(shape) == 3 else "kept"
        )
    if leaf == "embedding":
        return "embedding"
    return "norm" if leaf in ("scale", "mean", "var") else "kept"
