"""The environment of each process of a run on one machine. Plain data; nothing is started here."""

from __future__ import annotations

import dataclasses
import socket
from collections.abc import Mapping

from xaccel.errors import ConfigurationError

CPU_POOL_THREADS_AT_LEAST = 16
"""XLA's CPU client sizes its pool by the cores; with more virtual devices than threads, collectives deadlock. `NPROC` sets the size."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaunchRequest:
    """What to start on this machine.

    Attributes:
        backend: "torch" or "jax".
        num_processes: processes of the run.
        num_devices: JAX on CPU: virtual devices of each process.
        cpu: use the CPU even where there is another device.
        mixed_precision, gradient_accumulation_steps, debug: handed to the script's `Accelerator` through its environment.
        main_port: port of process 0; a free one where `None`.
    """

    backend: str
    num_processes: int = 1
    num_devices: int = 1
    cpu: bool = False
    mixed_precision: str | None = None
    gradient_accumulation_steps: int | None = None
    debug: bool = False
    main_port: int | None = None

    def __post_init__(self) -> None:
        if self.num_processes < 1 or self.num_devices < 1:
            raise ConfigurationError(f"num_processes={self.num_processes} and devices={self.num_devices} must be at least 1")
        if self.backend != "jax" and self.num_devices != 1:
            raise ConfigurationError(
                f"--devices {self.num_devices} gives a JAX process virtual CPU devices; with {self.backend!r} use --num_processes"
            )


def free_port() -> int:
    """A TCP port that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def rank_environments(request: LaunchRequest, inherited: Mapping[str, str]) -> list[dict[str, str]]:
    """The whole environment of each process, in rank order."""
    port = request.main_port or free_port()
    return [{**inherited, **_shared(request, inherited), **_rank(request, index, port)} for index in range(request.num_processes)]


def _shared(request: LaunchRequest, inherited: Mapping[str, str]) -> dict[str, str]:
    variables = {"XACCEL_BACKEND": request.backend, "PYTHONUNBUFFERED": "1"}
    if request.num_processes > 1:
        # Without it each process takes all cores for itself, and they run slower than one.
        variables["OMP_NUM_THREADS"] = inherited.get("OMP_NUM_THREADS", "1")
    if request.cpu:
        variables["XACCEL_USE_CPU"] = "1"
    if request.debug:
        variables["XACCEL_DEBUG_MODE"] = "1"
    if request.mixed_precision is not None:
        variables["XACCEL_MIXED_PRECISION"] = request.mixed_precision
    if request.gradient_accumulation_steps is not None:
        variables["XACCEL_GRADIENT_ACCUMULATION_STEPS"] = str(request.gradient_accumulation_steps)
    if request.backend == "jax":
        variables.update(_jax(request, inherited))
    return variables


def _jax(request: LaunchRequest, inherited: Mapping[str, str]) -> dict[str, str]:
    variables = {"NPROC": inherited.get("NPROC", str(max(CPU_POOL_THREADS_AT_LEAST, 2 * request.num_devices)))}
    if request.cpu or request.num_devices > 1:
        variables["JAX_PLATFORMS"] = "cpu"
    if request.num_devices > 1:
        kept = [flag for flag in inherited.get("XLA_FLAGS", "").split() if "xla_force_host_platform_device_count" not in flag]
        variables["XLA_FLAGS"] = " ".join([*kept, f"--xla_force_host_platform_device_count={request.num_devices}"])
    return variables


def _rank(request: LaunchRequest, index: int, port: int) -> dict[str, str]:
    if request.num_processes == 1:
        return {}
    return {
        "RANK": str(index),
        "WORLD_SIZE": str(request.num_processes),
        "LOCAL_RANK": str(index),
        "LOCAL_WORLD_SIZE": str(request.num_processes),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
