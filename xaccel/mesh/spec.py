"""Stub, to be replaced by the mesh room's owner."""

from __future__ import annotations

Bounds = tuple[tuple[int, int], ...]
"""A slice of a tensor: half-open `(start, stop)` per dim, in elements. `()` is the one slice of a 0-d tensor."""
