"""Rules that give a tensor its spec: by path, or the largest dim that divides."""

from __future__ import annotations

import re
from collections.abc import Mapping

from xaccel.errors import ConfigurationError
from xaccel.mesh.spec import REPLICATED, Spec


class PathRules:
    """Specs by patterns of parameter paths.

    Args:
        patterns: regular expression -> spec; it must match the whole path.

    >>> rules = PathRules({r".*\\.kernel": Spec(None, "tp")})
    >>> rules.spec("layers.0.kernel"), rules.spec("layers.0.bias")
    (Spec(None, 'tp'), Spec())
    """

    def __init__(self, patterns: Mapping[str, Spec]):
        self._patterns = {pattern: (re.compile(pattern), spec) for pattern, spec in patterns.items()}

    def spec(self, path: str) -> Spec:
        """The spec of the one pattern that matches; replicated where none does.

        Raises:
            ConfigurationError: several patterns match; the message names them.
        """
        found = {pattern: spec for pattern, (regex, spec) in self._patterns.items() if regex.fullmatch(path)}
        if len(found) > 1:
            raise ConfigurationError(f"{path!r} matches several patterns: {', '.join(map(repr, found))}; make them exclude each other")
        return next(iter(found.values()), REPLICATED)


def fully_sharded(shape: tuple[int, ...], axis: str, axis_size: int, min_num_elements: int = 0) -> Spec:
    """Divide the largest dim that `axis_size` divides evenly (the first of equals); replicate where there is none, or the tensor is small.

    >>> fully_sharded((3, 8, 4), "dp_shard", 4)
    Spec(None, 'dp_shard')
    """
    num_elements = 1
    for size in shape:
        num_elements *= size
    candidates = [dim for dim, size in enumerate(shape) if size > 0 and size % axis_size == 0]
    if not candidates or num_elements < min_num_elements:
        return REPLICATED
    best = max(candidates, key=lambda dim: shape[dim])
    return Spec(*[None] * best, axis)
