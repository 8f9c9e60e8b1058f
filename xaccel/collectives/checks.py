"""Debug mode: compare what the processes bring before a collective, instead of hanging or mixing bytes."""

from __future__ import annotations

from typing import Any

from xaccel import tree
from xaccel.errors import CollectiveMismatchError
from xaccel.process.topology import ProcessTopology

Signature = tuple[tuple[str, str], ...]
"""One (path, "dtype(shape)") for each array leaf."""


def signature(arrays: Any, value: Any, with_sizes: bool) -> Signature:
    """What one process brings; without sizes only the number of dims counts."""
    found = []
    for path, leaf in tree.leaves_with_paths(value):
        if arrays.is_array(leaf):
            shape = arrays.shape(leaf)
            size = ", ".join(map(str, shape)) if with_sizes else f"{len(shape)} dims"
            found.append((tree.path_name(path), f"{arrays.dtype_name(leaf)}({size})"))
        else:
            found.append((tree.path_name(path), type(leaf).__name__))
    return tuple(found)


def check_agreement(operation: str, mine: Signature, collectives: Any, topology: ProcessTopology) -> None:
    """Raise the same error on every process if they differ.

    Raises:
        CollectiveMismatchError: names the operation, and for each leaf that differs what each process brings.
    """
    everyone: list[tuple[str, Signature]] = collectives.gather_objects((operation, mine))
    if all(each == everyone[0] for each in everyone):
        return
    lines = [f"the processes disagree in a collective ({topology.num_processes} processes); nothing was sent"]
    operations = [name for name, _ in everyone]
    if len(set(operations)) > 1:
        lines += [f"  process {index} calls {name}" for index, name in enumerate(operations)]
    else:
        lines += _differences(operation, [brought for _, brought in everyone])
    raise CollectiveMismatchError("\n".join(lines))


def _differences(operation: str, everyone: list[Signature]) -> list[str]:
    lines = []
    paths = list(dict.fromkeys(path for brought in everyone for path, _ in brought))
    for path in paths:
        leaves = [dict(brought).get(path, "nothing") for brought in everyone]
        if len(set(leaves)) > 1:
            lines.append(f"  {operation} of {path}: " + ", ".join(f"process {index} brings {leaf}" for index, leaf in enumerate(leaves)))
    return lines
