"""The coordination service's key-value store: objects between processes, and who is still there after a failure.

It answers also where a collective cannot: a process that never comes leaves no key, so it can be named.
"""

from __future__ import annotations

import functools
import itertools
import time
from collections.abc import Iterator
from typing import Any

import jax
from jax._src import distributed  # the public interface has no access to the store

from xaccel.errors import CollectiveError, CollectiveTimeoutError
from xaccel.process.topology import ProcessTopology

ROLL_CALL_SECONDS = 5.0
"""How long a process may take to notice a failure itself and answer. gloo breaks all connections of a dead process at once."""


@functools.cache
def _rounds() -> Iterator[int]:
    # One sequence for a process, whichever object exchanges: every process counts the same calls.
    return itertools.count()


def _client() -> Any:
    client = distributed.global_state.client
    if client is None:
        raise CollectiveError("this process has not joined a run of several: jax.distributed is not initialized")
    return client


def exchange(operation: str, mine: bytes, topology: ProcessTopology, senders: list[int], timeout_seconds: float) -> list[bytes]:
    """The bytes of the processes `senders`, in that order, on every process.

    Raises:
        CollectiveTimeoutError: names the processes that did not send in time.
    """
    client, this_round, here = _client(), next(_rounds()), topology.process_index
    if here in senders:
        client.key_value_set_bytes(_key(this_round, here), mine)
    deadline = time.monotonic() + timeout_seconds
    received = [mine if sender == here else _wait_for(client, _key(this_round, sender), deadline) for sender in senders]
    absent = [sender for sender, data in zip(senders, received, strict=True) if data is None]
    if absent:
        who = ", ".join(map(str, absent))
        raise CollectiveTimeoutError(
            f"{operation} on process {here} of {topology.num_processes}: process(es) {who} did not come within {timeout_seconds:g} s"
        )
    return [data for data in received if data is not None]


def everyone_here(operation: str, topology: ProcessTopology, timeout_seconds: float) -> None:
    """Return once every process has called it; then the keys of earlier rounds can go.

    Raises:
        CollectiveTimeoutError: names the processes that did not come in time.
    """
    exchange(operation, b"", topology, list(range(topology.num_processes)), timeout_seconds)


def forget_rounds(topology: ProcessTopology, rounds: range) -> None:
    """Delete this process's keys of rounds that everyone has read."""
    for each in rounds:
        _client().key_value_delete(_key(each, topology.process_index))


def absent_processes(topology: ProcessTopology) -> list[int]:
    """After a failed collective: the processes that do not answer a roll call; empty where nobody can tell."""
    client = _client()
    deadline = time.monotonic() + ROLL_CALL_SECONDS
    try:
        client.key_value_set(_alive(topology.process_index), "1", allow_overwrite=True)
    except jax.errors.JaxRuntimeError:
        return [0] if topology.process_index else []  # the service lives in process 0
    others = [index for index in range(topology.num_processes) if index != topology.process_index]
    return [index for index in others if _wait_for(client, _alive(index), deadline) is None]


def _wait_for(client: Any, key: str, deadline: float) -> bytes | None:
    # At least a moment also after the deadline: what is there already must be found.
    milliseconds = max(50, int(1000 * (deadline - time.monotonic())))
    try:
        return bytes(client.blocking_key_value_get_bytes(key, milliseconds))
    except jax.errors.JaxRuntimeError:
        return None


def _key(this_round: int, index: int) -> str:
    return f"xaccel/{this_round}/{index}"


def _alive(index: int) -> str:
    return f"xaccel/alive/{index}"
