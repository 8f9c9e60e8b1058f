"""Progress bars on one process only."""

from __future__ import annotations

from typing import Any

from xaccel.environment import read_environment
from xaccel.process.topology import current_topology


def tqdm(*args: Any, main_process_only: bool = True, **kwargs: Any) -> Any:
    """`tqdm.auto.tqdm`, shown by the first process of each machine only.

    Args:
        args, kwargs: as for tqdm; `disable=True` hides it everywhere.
        main_process_only: whether the other processes show nothing.
    """
    from tqdm.auto import tqdm as real_tqdm

    if main_process_only and _local_process_index() != 0:
        kwargs["disable"] = True
    return real_tqdm(*args, **kwargs)


def _local_process_index() -> int:
    topology = current_topology()
    return topology.local_process_index if topology is not None else read_environment().local_process_index or 0
