"""What an adapter and the checkpoint format tell each other about one tensor. Plain data: names, integers, tags."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from xaccel.mesh.spec import Bounds


@dataclasses.dataclass(frozen=True, kw_only=True)
class TensorRecord:
    """One tensor as it stands on disk, and the parts of it that this process writes.

    Attributes:
        name: canonical name, PyTorch's (`encoder.layers.0.weight`), without a prefix for the object.
        shape: global shape in canonical layout.
        dtype: safetensors tag: `F32`, `BF16`, `F8_E4M3`, `I64`, `BOOL`, `U8`, …
        owned: the slices that this process writes, in canonical layout. Over all processes they tile the tensor exactly once;
            a process that writes nothing of it has `()`.
        aliases: other names under which the same storage is known (tied weights); stored once.
        adapter: what the adapter did to reach the canonical layout (path, permutation, reshape, stack index); kept in the
            manifest so that the same adapter inverts it exactly. JSON values only.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    owned: tuple[Bounds, ...]
    aliases: tuple[str, ...] = ()
    adapter: Mapping[str, Any] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True, kw_only=True)
class WantedTensor:
    """One tensor that a live object needs, and the slices of it that this process needs.

    Attributes:
        name: canonical name.
        shape: global shape in canonical layout; a checkpoint tensor of another shape is a mismatch.
        dtype: safetensors tag of the live tensor. A stored tensor of another floating dtype is converted by the adapter on assignment;
            between integers, or from integer to float, it is a mismatch.
        bounds: the distinct slices needed by this process, in canonical layout.
        aliases: other names that may stand for it in the checkpoint.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    bounds: tuple[Bounds, ...]
    aliases: tuple[str, ...] = ()
