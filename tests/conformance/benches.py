"""Builds a `Bench` in a worker, from the adapter's pieces alone."""

from __future__ import annotations

import functools

from xaccel.backend.registry import load_backend
from xaccel.config.settings import Settings
from xaccel.environment import read_environment
from xaccel.process.topology import ProcessTopology
from xaccel.testing.conformance import CASES, Bench

TIMEOUT_SECONDS = 30.0


def run_case(kind: str, name: str) -> None:
    """One case on this rank."""
    CASES[name](BENCHES[kind]())


@functools.cache
def torch_bench() -> Bench:
    from xaccel_torch.arrays import TorchArrays
    from xaccel_torch.collectives import SoloCollectives, TorchCollectives

    topology = _join("torch")
    collectives = TorchCollectives(topology, TIMEOUT_SECONDS) if topology.num_processes > 1 else SoloCollectives()
    return Bench(arrays=TorchArrays(), collectives=collectives, topology=topology)


@functools.cache
def jax_bench() -> Bench:
    from xaccel_jax.arrays import JaxArrays
    from xaccel_jax.collectives import JaxCollectives, SoloCollectives

    topology = _join("jax")
    collectives = JaxCollectives(topology, TIMEOUT_SECONDS) if topology.num_processes > 1 else SoloCollectives()
    return Bench(arrays=JaxArrays(), collectives=collectives, topology=topology)


def _join(kind: str) -> ProcessTopology:
    """The run that this worker belongs to; other cases may have joined it before."""
    settings = Settings(cpu=True, collective_timeout_seconds=TIMEOUT_SECONDS)
    return load_backend(kind).start(read_environment(), settings)


BENCHES = {"torch": torch_bench, "jax": jax_bench}
