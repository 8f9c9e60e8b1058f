"""Builds a `Bench` in a worker, from the adapter's pieces alone."""

from __future__ import annotations

import datetime
import functools
import os
from typing import Any

from xaccel.process.topology import ProcessTopology
from xaccel.testing.conformance import CASES, Bench

TIMEOUT_SECONDS = 30.0


def run_case(kind: str, name: str) -> None:
    """One case on this rank."""
    CASES[name](BENCHES[kind]())


@functools.cache
def torch_bench() -> Bench:
    import torch
    import torch.distributed as dist

    from xaccel_torch.arrays import TorchArrays
    from xaccel_torch.collectives import SoloCollectives, TorchCollectives

    topology = _topology("torch", torch.device("cpu"), 1)
    if topology.num_processes == 1:
        return Bench(arrays=TorchArrays(), collectives=SoloCollectives(), topology=topology)
    dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=TIMEOUT_SECONDS))
    return Bench(arrays=TorchArrays(), collectives=TorchCollectives(topology, TIMEOUT_SECONDS), topology=topology)


@functools.cache
def jax_bench() -> Bench:
    import jax

    from xaccel_jax.arrays import JaxArrays
    from xaccel_jax.collectives import JaxCollectives, SoloCollectives

    index, count = _ranks()
    if count > 1:
        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        jax.distributed.initialize(address, count, index)
    topology = _topology("jax", jax.local_devices()[0], jax.local_device_count())
    collectives = JaxCollectives(topology, TIMEOUT_SECONDS) if count > 1 else SoloCollectives()
    return Bench(arrays=JaxArrays(), collectives=collectives, topology=topology)


BENCHES = {"torch": torch_bench, "jax": jax_bench}


def _ranks() -> tuple[int, int]:
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def _topology(backend: str, device: Any, num_local_devices: int) -> ProcessTopology:
    index, count = _ranks()
    return ProcessTopology(
        process_index=index,
        num_processes=count,
        local_process_index=index,
        num_local_processes=count,
        num_devices=count * num_local_devices,
        num_local_devices=num_local_devices,
        device=device,
        backend=backend,
    )
