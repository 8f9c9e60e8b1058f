"""After a collective failed: which processes are still there? Asked through the rendezvous store, which outlives the connections."""

from __future__ import annotations

import time
from collections.abc import Iterable

import torch.distributed as dist

from xaccel.process.topology import ProcessTopology

ROLL_CALL_SECONDS = 5.0
"""How long a process may take to notice the failure itself and answer. gloo breaks all connections of a dead process at once."""


def absent_processes(topology: ProcessTopology) -> list[int]:
    """The processes that do not answer a roll call; empty where nobody can tell (the store's own process is gone).

    Every process whose collective failed calls this, and so leaves its mark; the marks that are missing are the processes that died or hang.
    """
    try:
        store = dist.distributed_c10d._get_default_store()
        store.set(_key("alive", topology.process_index), "1")
        missing = _wait_for_marks(store, "alive", range(topology.num_processes))
        store.set(_key("told", topology.process_index), "1")
        if topology.process_index == 0:
            # The store may live in this process: it must not leave before the others have heard.
            _wait_for_marks(store, "told", [index for index in range(topology.num_processes) if index not in missing])
    except (RuntimeError, ValueError):
        # Without a launcher that keeps the store it lives in process 0: if it does not answer, process 0 is the one that is gone.
        return [0] if topology.process_index != 0 else []
    return missing


def announce_break() -> None:
    """Tell processes that wait for others than the dead one, and so would not notice before their time limit."""
    try:
        dist.distributed_c10d._get_default_store().set(_BROKEN, "1")
    except (RuntimeError, ValueError):
        return  # the store has gone with its process; the others find that out themselves


def is_broken() -> bool:
    """Whether a connection of this group broke somewhere, or its store is gone."""
    try:
        return bool(dist.distributed_c10d._get_default_store().check([_BROKEN]))
    except (RuntimeError, ValueError):
        return True


_BROKEN = "xaccel/broken"


def _key(word: str, index: int) -> str:
    return f"xaccel/{word}/{index}"


def _wait_for_marks(store: dist.Store, word: str, indices: Iterable[int]) -> list[int]:
    """Those of `indices` whose mark is still missing after `ROLL_CALL_SECONDS`."""
    deadline = time.monotonic() + ROLL_CALL_SECONDS
    missing = list(indices)
    while missing and time.monotonic() < deadline:
        missing = [index for index in missing if not store.check([_key(word, index)])]
        if missing:
            time.sleep(0.05)
    return missing
