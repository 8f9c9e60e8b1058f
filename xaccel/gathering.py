"""`gather_for_metrics`: the loader knows what was filled up."""

from __future__ import annotations

from typing import Any

from xaccel import tree
from xaccel.collectives.communicator import Communicator
from xaccel.data.active import ActiveLoaders


def gather_for_metrics(value: Any, communicator: Communicator, active: ActiveLoaders, *, use_gather_object: bool = False) -> Any:
    """Nested arrays (or objects) of all processes, less the rows that only fill up the last batch of the loader being iterated.

    Over a loader of n samples the total is exactly n, in the order of the data; with `drop_last=True` exactly the kept ones. Only values
    with as many rows as the global batch are cut: a loss of each process is gathered as it is.

    Args:
        value: nested arrays `(batch, ...)`; or anything that pickles, of which lists are joined.
        use_gather_object: gather as objects even where everything is an array.
    """
    as_objects = use_gather_object or not all(communicator.is_array(leaf) for leaf in tree.leaves(value))
    gathered = communicator.gather_object(value) if as_objects else communicator.gather(value)
    loader = active.current
    if loader is None or not loader.end_of_dataloader or loader.remainder < 0:
        return gathered
    if as_objects:
        return gathered[: loader.remainder] if len(gathered) == loader.global_rows else gathered
    return tree.map_leaves(lambda leaf: communicator.first_rows(leaf, loader.remainder, loader.global_rows), gathered)
