"""The coordination service's key-value store: bytes between processes, and who is still there after a failure.

It answers also where a collective cannot: a process that never comes leaves no key, so it can be named.
"""

from __future__ import annotations

import functools
import math
import time
from typing import Any

import jax
from jax._src import distributed  # the public interface has no access to the store

from xaccel.errors import CollectiveError, CollectiveTimeoutError
from xaccel.process.topology import ProcessTopology

ROLL_CALL_SECONDS = 5.0
"""How long a process may take to notice a failure itself and answer. gloo breaks all connections of a dead process at once."""

PIECE_BYTES = 2 << 20
"""Half of gRPC's usual limit for one message."""


class Exchange:
    """Rounds of bytes from every process to every process.

    All keys of a round are read by everyone before anyone can finish the *next* round, so a process deletes its own keys one round later.
    """

    def __init__(self) -> None:
        self._round = 0
        self._unread: list[str] = []

    def all_bytes(self, operation: str, mine: bytes, topology: ProcessTopology, timeout_seconds: float) -> list[bytes]:
        """What each process brought, in rank order.

        Raises:
            CollectiveTimeoutError: names the processes that did not come in time.
        """
        client, here, this_round = _client(), topology.process_index, self._round
        self._round += 1
        written = _put(client, f"xaccel/{this_round}/{here}", mine)
        deadline = time.monotonic() + timeout_seconds
        everyone = range(topology.num_processes)
        received = [mine if index == here else _get(client, f"xaccel/{this_round}/{index}", deadline) for index in everyone]
        absent = [index for index in everyone if received[index] is None]
        if absent:
            raise CollectiveTimeoutError(
                f"{operation} on process {here} of {topology.num_processes}: "
                f"process(es) {', '.join(map(str, absent))} did not come within {timeout_seconds:g} s"
            )
        for key in self._unread:
            client.key_value_delete(key)
        self._unread = written
        return [data for data in received if data is not None]


@functools.cache
def shared_exchange() -> Exchange:
    """The one of this process: whichever object communicates, all processes count the same rounds."""
    return Exchange()


def absent_processes(topology: ProcessTopology) -> list[int]:
    """After a failed collective: the processes that do not answer a roll call; empty where nobody can tell."""
    client = _client()
    deadline = time.monotonic() + ROLL_CALL_SECONDS
    try:
        client.key_value_set_bytes(_alive(topology.process_index), b"1", allow_overwrite=True)
    except jax.errors.JaxRuntimeError:
        return [0] if topology.process_index else []  # the service lives in process 0
    others = [index for index in range(topology.num_processes) if index != topology.process_index]
    return [index for index in others if _wait_for(client, _alive(index), deadline) is None]


def _client() -> Any:
    client = distributed.global_state.client
    if client is None:
        raise CollectiveError("this process has not joined a run of several: jax.distributed is not initialized")
    return client


def _put(client: Any, key: str, data: bytes) -> list[str]:
    count = max(1, math.ceil(len(data) / PIECE_BYTES))
    keys = [f"{key}/{piece}" for piece in range(count)]
    for piece, piece_key in enumerate(keys):
        head = count.to_bytes(8, "little") if piece == 0 else b""
        client.key_value_set_bytes(piece_key, head + data[piece * PIECE_BYTES : (piece + 1) * PIECE_BYTES])
    return keys


def _get(client: Any, key: str, deadline: float) -> bytes | None:
    first = _wait_for(client, f"{key}/0", deadline)
    if first is None:
        return None
    pieces: list[bytes | None] = [first[8:]]
    pieces += [_wait_for(client, f"{key}/{piece}", deadline) for piece in range(1, int.from_bytes(first[:8], "little"))]
    return None if None in pieces else b"".join(piece for piece in pieces if piece is not None)


def _wait_for(client: Any, key: str, deadline: float) -> bytes | None:
    # At least a moment also after the deadline: what is there already must be found.
    milliseconds = max(50, int(1000 * (deadline - time.monotonic())))
    try:
        return bytes(client.blocking_key_value_get_bytes(key, milliseconds))
    except jax.errors.JaxRuntimeError:
        return None


def _alive(index: int) -> str:
    return f"xaccel/alive/{index}"
