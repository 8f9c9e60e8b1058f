"""From Flax's leaves to canonical tensors: PyTorch's names and layouts, by the type of the layer that holds a leaf.

What was done to each leaf is a `Rule`; it stands in the manifest (`TensorRecord.adapter`), so that a round trip in JAX is bit-exact even
where a role was guessed.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from typing import Any

import flax.errors
import flax.linen as nn
import numpy as np
from flax import nnx

from xaccel.errors import UnsupportedError
from xaccel.mesh.spec import Bounds
from xaccel_jax.definitions import Path

Shape = tuple[int, ...]

_NORM_LEAVES = {"scale": "weight", "bias": "bias", "mean": "running_mean", "var": "running_var"}
_COLLECTIONS = ("params", "batch_stats")
_ATTENTION_INPUTS = ("query", "key", "value")
_NORMS = ("BatchNorm", "LayerNorm", "RMSNorm", "GroupNorm", "InstanceNorm")
_NORM_TYPES = tuple(getattr(library, name) for library in (nnx, nn) for name in _NORMS)
_ROLES: tuple[tuple[tuple[type, ...], str], ...] = (
    ((nnx.Linear, nn.Dense), "linear"),
    ((nnx.Conv, nn.Conv), "conv"),
    ((nnx.Embed, nn.Embed), "embedding"),
    (_NORM_TYPES, "norm"),
)
_AUTOMATIC_NAMES = {
    "Dense": "linear",
    "DenseGeneral": "general",
    "Conv": "conv",
    "ConvTranspose": "conv_transpose_flipped",
    "Embed": "embedding",
    **dict.fromkeys(_NORMS, "norm"),
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Rule:
    """How one leaf stands on disk.

    Attributes:
        path: the leaf's path in the model.
        name: canonical name.
        shape: of the leaf.
        merged: shape of the leaf once neighbouring dims are merged (heads and features of an attention), else `shape`.
        permutation: dim i of the canonical tensor is dim `permutation[i]` of the merged leaf.
        flipped: dims of the merged leaf whose order is reversed (transposed convolutions).
        aliases: canonical names of the other places that hold the same variable.
        role: what it was taken for; "kept" means unchanged under its own name.
        guessed: whether the role was told from name and shape alone.
    """

    path: Path
    name: str
    shape: Shape
    merged: Shape
    permutation: tuple[int, ...]
    flipped: tuple[int, ...] = ()
    aliases: tuple[str, ...] = ()
    role: str = "kept"
    guessed: bool = False

    @property
    def canonical_shape(self) -> Shape:
        """The shape on disk."""
        return tuple(self.merged[dim] for dim in self.permutation)

    @property
    def layout(self) -> tuple[Any, ...]:
        """All but the names: rules of equal layout make the same canonical tensor of one leaf."""
        return (self.shape, self.merged, self.permutation, self.flipped)

    def read(self, leaf: np.ndarray, bounds: Bounds) -> np.ndarray:
        """One slice in canonical layout, C-contiguous: bounds are permuted first, then only that part is transposed."""
        merged = leaf.reshape(self.merged)
        index: list[slice] = [slice(None)] * merged.ndim
        for dim, (start, stop) in zip(self.permutation, bounds, strict=True):
            size = self.merged[dim]
            index[dim] = slice(size - stop, size - start) if dim in self.flipped else slice(start, stop)
        part = np.flip(merged[tuple(index)], self.flipped).transpose(self.permutation)
        # ascontiguousarray makes a 0-d array 1-d.
        return np.ascontiguousarray(part).reshape(part.shape)

    def restore(self, canonical: np.ndarray) -> np.ndarray:
        """The leaf again from the whole canonical tensor."""
        leaf = canonical.transpose(np.argsort(self.permutation)) if self.permutation else canonical
        leaf = np.flip(leaf, self.flipped) if self.flipped else leaf
        return np.ascontiguousarray(leaf).reshape(self.shape)

    def record(self) -> dict[str, Any]:
        """For the manifest."""
        return {
            "path": list(self.path),
            "reshape": None if self.merged == self.shape else list(self.merged),
            "permute": list(self.permutation),
            "flip": list(self.flipped),
            "role": self.role,
            "guessed": self.guessed,
        }

    def as_recorded(self, record: Mapping[str, Any]) -> Rule:
        """This leaf's rule when the tensor was written, which may have been another guess; itself where the record is not of this leaf."""
        if "permute" not in record or tuple(record.get("path", ())) != self.path:
            return self
        merged = tuple(record.get("reshape") or self.shape)
        permutation, flipped = tuple(record["permute"]), tuple(record.get("flip", ()))
        fits = math.prod(merged) == math.prod(self.shape) and sorted(permutation) == list(range(len(merged)))
        if not fits or not set(flipped) <= set(permutation):
            return self
        return dataclasses.replace(self, merged=merged, permutation=permutation, flipped=flipped)


def kept(path: Path, name: str, shape: Shape) -> Rule:
    """A leaf as it is, under a name of its own."""
    return Rule(path=path, name=name, shape=shape, merged=shape, permutation=tuple(range(len(shape))))


def rules(module: Any, shapes: Mapping[Path, Shape]) -> dict[Path, Rule]:
    """The rule of every leaf of a model, by path. No two have the same name.

    Args:
        module: the user's NNX module, or the unbound Linen module.
        shapes: of the leaves, by path.

    Raises:
        UnsupportedError: two leaves cannot be told apart by name.
    """
    linen = isinstance(module, nn.Module)
    places = {} if linen else _places(module)
    root = module.bind({}) if linen else module
    own = {path: _rule(root, places.get(path, (path,))[0], shape, shapes) for path, shape in shapes.items()}
    found: dict[Path, Rule] = {}
    taken: set[str] = set()
    # Of two leaves with one name it is the parameter's, and of two parameters that of the one so called.
    for path in sorted(shapes, key=lambda path: (linen and path[0] != "params", own[path].role != "kept")):
        rule = dataclasses.replace(own[path], path=path)
        if rule.name in taken:
            rule = kept(path, ".".join(map(str, path)), shapes[path])
        if rule.name in taken:
            raise UnsupportedError(f"two leaves of {type(module).__name__} would be stored as {rule.name!r}: rename the one at {path}")
        tied = [_rule(root, place, shapes[path], shapes) for place in places.get(path, ())[1:]]
        aliases = dict.fromkeys(other.name for other in tied if other.layout == rule.layout)
        found[path] = dataclasses.replace(rule, aliases=tuple(aliases))
        taken.add(rule.name)
    return {
        path: dataclasses.replace(found[path], aliases=tuple(name for name in found[path].aliases if name not in taken)) for path in shapes
    }


def _places(module: nnx.Module) -> dict[Path, tuple[Path, ...]]:
    """For every variable that stands in several places: each of these paths -> all of them, in the order in which they were made.

    That order is also torch's, so that both frameworks choose the same one of a tie's names.
    """
    by_variable: dict[int, list[Path]] = {}
    for path, variable in _variables(module, (), ()):
        by_variable.setdefault(id(variable), []).append(path)
    return {path: tuple(paths) for paths in by_variable.values() if len(paths) > 1 for path in paths}


def _variables(node: Any, path: Path, above: tuple[int, ...]) -> Iterator[tuple[Path, Any]]:
    if id(node) in above:
        return
    if isinstance(node, nnx.Variable):
        yield path, node
        return
    children: Iterator[tuple[Any, Any]] = iter(())
    if isinstance(node, (Mapping, nnx.Dict)):
        children = iter(node.items())
    elif isinstance(node, (list, tuple, nnx.List)):
        children = iter(enumerate(node))
    elif isinstance(node, nnx.Module):
        children = iter(vars(node).items())
    for key, child in children:
        yield from _variables(child, (*path, key), (*above, id(node)))


@dataclasses.dataclass(frozen=True)
class _Layer:
    """What holds a leaf.

    Attributes:
        role: of the layer.
        inputs, outputs: for linear layers, how many dims of the kernel are summed over, and how many come out.
        outputs_first: whether the kernel begins with the latter.
        guessed: whether all this was told from names and shapes.
    """

    role: str
    inputs: int = 1
    outputs: int = 1
    outputs_first: bool = False
    guessed: bool = False


def _rule(root: Any, path: Path, shape: Shape, shapes: Mapping[Path, Shape]) -> Rule:
    owners, parents = _owners(root, path)
    layer = _layer(owners, path, shape, shapes)
    leaf, ndim = str(path[-1]), len(shape)
    name, merged, permutation = leaf, shape, tuple(range(ndim))
    flipped: tuple[int, ...] = ()
    if layer.role == "linear" and leaf in ("kernel", "bias"):
        fitting = _linear(layer, leaf, shape)
        if fitting is not None:
            name, merged, permutation = fitting
    elif layer.role == "conv" and leaf == "kernel" and ndim >= 3:
        name, permutation = "weight", (ndim - 1, ndim - 2, *range(ndim - 2))
    elif layer.role.startswith("conv_transpose") and leaf == "kernel":
        name, permutation, flipped = _conv_transpose(layer.role, ndim)
    elif layer.role == "embedding" and leaf == "embedding":
        name = "weight"
    elif layer.role == "norm" and leaf in _NORM_LEAVES:
        name = _NORM_LEAVES[leaf]
    role = "kept" if name == leaf != "bias" else layer.role
    return Rule(
        path=path,
        name=".".join((*parents, name)),
        shape=shape,
        merged=merged,
        permutation=permutation,
        flipped=flipped,
        role=role,
        guessed=layer.guessed and role != "kept",
    )


def _linear(layer: _Layer, leaf: str, shape: Shape) -> tuple[str, Shape, tuple[int, ...]] | None:
    """Name, merged shape and permutation; `None` for a leaf with more dims than the layer has (a stack of layers)."""
    if leaf == "bias":
        return ("bias", (math.prod(shape),), (0,)) if len(shape) == layer.outputs else None
    if len(shape) != layer.inputs + layer.outputs:
        return None
    if layer.outputs_first:
        return "weight", (math.prod(shape[: layer.outputs]), math.prod(shape[layer.outputs :])), (0, 1)
    return "weight", (math.prod(shape[: layer.inputs]), math.prod(shape[layer.inputs :])), (1, 0)


def _conv_transpose(role: str, ndim: int) -> tuple[str, tuple[int, ...], tuple[int, ...]]:
    """torch's transposed convolution is the gradient of a convolution, (in, out, *spatial). Flax's is that with `transpose_kernel=True`, whose
    kernel is (*spatial, out, in); without it the kernel is (*spatial, in, out) and runs the other way round."""
    spatial = tuple(range(ndim - 2))
    if role == "conv_transpose":
        return "weight", (ndim - 1, ndim - 2, *spatial), ()
    return "weight", (ndim - 2, ndim - 1, *spatial), spatial


def _owners(root: Any, path: Path) -> tuple[list[Any], list[str]]:
    """The modules on the way to a leaf, from the root on (`None` where one exists only inside a call), and the parts of its name."""
    linen = isinstance(root, nn.Module)
    owners, names = [root], []
    for part in path[1:-1] if linen and path[0] in _COLLECTIONS else path[:-1]:
        # torch's Sequential holds its layers itself.
        if not (isinstance(owners[-1], nnx.Sequential) and part == "layers"):
            names.append(str(part))
        owners.append(_linen_child(owners[-1], str(part)) if linen else _nnx_child(owners[-1], part))
    return owners, names


def _nnx_child(owner: Any, part: str | int) -> Any:
    if isinstance(owner, (Mapping, list, tuple, nnx.List)):
        return owner[part]  # type: ignore[index]
    return getattr(owner, str(part), None)


def _linen_child(owner: Any, part: str) -> Any:
    """A submodule that was made in `setup` or given as a field; `None` for those of a compact method."""
    if owner is None:
        return None
    listed, _, index = part.rpartition("_")
    try:
        child = getattr(owner, part, None)
        several = getattr(owner, listed, None) if index.isdigit() else None
    except flax.errors.FlaxError:
        return None  # `setup` asks for values of variables, which are not at hand here
    if isinstance(several, (list, tuple)) and int(index) < len(several):
        child = several[int(index)]
    return child if isinstance(child, nn.Module) else None


def _layer(owners: list[Any], path: Path, shape: Shape, shapes: Mapping[Path, Shape]) -> _Layer:
    owner, parent = owners[-1], owners[-2] if len(owners) > 1 else None
    if owner is not None:
        return _typed(owner)
    if isinstance(parent, nn.MultiHeadDotProductAttention):
        return _attention(str(path[-2]), guessed=False)
    return _guess(path, shape, shapes)


def _typed(owner: Any) -> _Layer:
    """By the layer's type."""
    if isinstance(owner, (nnx.ConvTranspose, nn.ConvTranspose)):
        return _Layer("conv_transpose" if owner.transpose_kernel else "conv_transpose_flipped")
    if isinstance(owner, nnx.LinearGeneral):
        return _Layer("kept") if owner.batch_axis else _Layer("linear", len(owner.in_features), len(owner.out_features))
    if isinstance(owner, nn.DenseGeneral):
        return _Layer("kept") if owner.batch_dims else _Layer("linear", _length(owner.axis), _length(owner.features))
    if isinstance(owner, (nnx.Einsum, nn.Einsum)):
        return _einsum(str(owner.einsum_str))
    return _Layer(next((role for types, role in _ROLES if isinstance(owner, types)), "kept"))


def _length(dims: Any) -> int:
    return 1 if isinstance(dims, int) else len(dims)


def _einsum(equation: str) -> _Layer:
    """A linear layer where the kernel's dims are those summed over and then those that come out, or the other way round; else kept."""
    if "->" not in equation:
        return _Layer("kept")
    operands, result = equation.replace(" ", "").replace("...", "").split("->")
    values, kernel = operands.split(",")
    summed = "".join(letter for letter in values if letter in kernel and letter not in result)
    produced = "".join(letter for letter in result if letter in kernel and letter not in values)
    if kernel not in (summed + produced, produced + summed) or not summed or not produced:
        return _Layer("kept")
    return _Layer("linear", len(summed), len(produced), outputs_first=kernel != summed + produced, guessed=True)


def _attention(projection: str, guessed: bool) -> _Layer:
    """Kernels (features, heads, size of a head) on the way in, (heads, size of a head, features) on the way out."""
    if projection in _ATTENTION_INPUTS:
        return _Layer("linear", 1, 2, guessed=guessed)
    return _Layer("linear", 2, 1, guessed=guessed) if projection == "out" else _Layer("kept")


def _guess(path: Path, shape: Shape, shapes: Mapping[Path, Shape]) -> _Layer:
    """By Linen's automatic names (`Dense_0`), then by the leaf's name and shape."""
    owner = str(path[-2]) if len(path) >= 2 else ""
    kind, _, number = owner.rpartition("_")
    role = _AUTOMATIC_NAMES.get(kind) if number.isdigit() else None
    leaf = shapes.get((*path[:-1], "kernel"), shape)
    if role == "general":
        outputs = len(shapes.get((*path[:-1], "bias"), (0,)))
        return _Layer("linear", len(leaf) - outputs, outputs, guessed=True)
    if role is not None:
        return _Layer(role)
    if len(leaf) == 3 and any("attention" in str(part).lower() or "attn" in str(part).lower() for part in path[:-2]):
        return _attention(owner, guessed=True)
    return _Layer(_guessed_role(path, leaf, owner), guessed=True)


def _guessed_role(path: Path, shape: Shape, owner: str) -> str:
    name = str(path[-1])
    if name in ("kernel", "bias"):
        return {2: "linear", 3: "conv" if "conv" in owner.lower() else "kept", 4: "conv", 5: "conv"}.get(len(shape), "kept")
    if name == "embedding":
        return "embedding"
    return "norm" if name == "scale" or (name in ("mean", "var") and path[0] == "batch_stats") else "kept"
