"""Canonical names: PyTorch's, and the tensors that a framework derives by itself."""

from __future__ import annotations

_DERIVED_ENDINGS = ("num_batches_tracked",)
"""PyTorch's batch norm counts batches for `momentum=None`; Flax has no such counter, and nothing else reads it."""


def is_derived(name: str) -> bool:
    """Whether a tensor may be absent from a checkpoint, or left over in it, without anything being lost.

    >>> is_derived("norm1.num_batches_tracked"), is_derived("norm1.weight")
    (True, False)
    """
    return name.rpartition(".")[2] in _DERIVED_ENDINGS
