"""Which process writes which replicated tensor: computed alike everywhere, so that all write in parallel."""

from __future__ import annotations

from collections.abc import Mapping


def assign_owners(sizes: Mapping[str, int], num_processes: int) -> dict[str, int]:
    """The process that writes each tensor: the largest first, each to the process with the fewest bytes so far.

    Args:
        sizes: bytes of each tensor by name.

    >>> assign_owners({"a": 8, "b": 5, "c": 4}, 2)
    {'a': 0, 'b': 1, 'c': 1}
    """
    loads = [0] * num_processes
    owners = {}
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        owner = min(range(num_processes), key=lambda index: (loads[index], index))
        owners[name] = owner
        loads[owner] += sizes[name]
    return owners
