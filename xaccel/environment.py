"""The only reader of environment variables: `read_environment()` -> a frozen `LaunchEnvironment`.

Our own names begin with `XACCEL_`; the names that scripts and launchers of Hugging Face Accelerate use (`ACCELERATE_…`) are read
too, ours first. Ranks come from torchrun's names, from SLURM's, or from Open MPI's, in this order.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping

from xaccel.errors import ConfigurationError

_TRUE = frozenset({"1", "true", "t", "yes", "y", "on"})
_FALSE = frozenset({"", "0", "false", "f", "no", "n", "off"})

RANK_NAMES = ("RANK", "XACCEL_PROCESS_INDEX", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")
WORLD_NAMES = ("WORLD_SIZE", "XACCEL_NUM_PROCESSES", "SLURM_NTASKS", "OMPI_COMM_WORLD_SIZE")
LOCAL_RANK_NAMES = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK")
LOCAL_WORLD_NAMES = ("LOCAL_WORLD_SIZE", "SLURM_NTASKS_PER_NODE", "OMPI_COMM_WORLD_LOCAL_SIZE")
MACHINE_RANK_NAMES = ("GROUP_RANK", "SLURM_NODEID", "XACCEL_MACHINE_RANK")

DEFAULT_COLLECTIVE_TIMEOUT_SECONDS = 1800.0
"""torch's own default for a gloo group; long enough for a slow first compilation on another rank."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LaunchEnvironment:
    """What the environment says about this process. `None` means that it says nothing.

    Attributes:
        backend: `XACCEL_BACKEND`, "torch" or "jax".
        process_index, num_processes, local_process_index, num_local_processes, machine_index: ranks, where a launcher set them.
        main_address, main_port: where process 0 listens (`MASTER_ADDR`, `MASTER_PORT`).
        mixed_precision: "no", "fp16", "bf16", "fp8".
        gradient_accumulation_steps: micro-steps a window.
        cpu: force CPU devices.
        debug: compare shapes, dtypes and structures across processes before each collective.
        collective_timeout_seconds: how long a collective waits for the others.
    """

    backend: str | None = None
    process_index: int | None = None
    num_processes: int | None = None
    local_process_index: int | None = None
    num_local_processes: int | None = None
    machine_index: int | None = None
    main_address: str | None = None
    main_port: int | None = None
    mixed_precision: str | None = None
    gradient_accumulation_steps: int | None = None
    cpu: bool = False
    debug: bool = False
    collective_timeout_seconds: float = DEFAULT_COLLECTIVE_TIMEOUT_SECONDS

    @property
    def is_launched(self) -> bool:
        """Whether a launcher gave this process a rank in a world of several."""
        return self.process_index is not None and (self.num_processes or 1) > 1


def read_environment(variables: Mapping[str, str] | None = None) -> LaunchEnvironment:
    """Read the environment once.

    Args:
        variables: the environment to read; this process's own by default.

    Raises:
        ConfigurationError: a variable holds something that is not of its kind; the message names variable and value.
    """
    source = _Variables(os.environ if variables is None else variables)
    return LaunchEnvironment(
        backend=source.text("XACCEL_BACKEND"),
        process_index=source.integer(*RANK_NAMES),
        num_processes=source.integer(*WORLD_NAMES),
        local_process_index=source.integer(*LOCAL_RANK_NAMES),
        num_local_processes=source.integer(*LOCAL_WORLD_NAMES),
        machine_index=source.integer(*MACHINE_RANK_NAMES),
        main_address=source.text("MASTER_ADDR", "XACCEL_COORDINATOR_ADDRESS"),
        main_port=source.integer("MASTER_PORT", "XACCEL_COORDINATOR_PORT"),
        mixed_precision=source.text("XACCEL_MIXED_PRECISION", "ACCELERATE_MIXED_PRECISION"),
        gradient_accumulation_steps=source.integer("XACCEL_GRADIENT_ACCUMULATION_STEPS", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"),
        cpu=source.flag("XACCEL_USE_CPU", "ACCELERATE_USE_CPU"),
        debug=source.flag("XACCEL_DEBUG_MODE", "ACCELERATE_DEBUG_MODE"),
        collective_timeout_seconds=source.seconds("XACCEL_COLLECTIVE_TIMEOUT_SECONDS", DEFAULT_COLLECTIVE_TIMEOUT_SECONDS),
    )


def cpu_pool_threads(variables: Mapping[str, str] | None = None) -> int:
    """Threads of XLA's CPU pool in this process: `NPROC`, else the cores that it may use."""
    given = _Variables(os.environ if variables is None else variables).integer("NPROC")
    return given if given is not None else len(os.sched_getaffinity(0))


class _Variables:
    """Typed look-ups: the first of several names that is set."""

    def __init__(self, variables: Mapping[str, str]):
        self._variables = variables

    def _first(self, names: tuple[str, ...]) -> tuple[str, str] | None:
        return next(((name, self._variables[name]) for name in names if self._variables.get(name, "") != ""), None)

    def text(self, *names: str) -> str | None:
        found = self._first(names)
        return found[1] if found else None

    def integer(self, *names: str) -> int | None:
        found = self._first(names)
        if found is None:
            return None
        # SLURM writes "4(x2)" for four tasks on each of two nodes.
        digits = found[1].split("(")[0].strip()
        if not digits.lstrip("-").isdigit():
            raise ConfigurationError(f"environment variable {found[0]}={found[1]!r} must be an integer")
        return int(digits)

    def seconds(self, name: str, default: float) -> float:
        found = self._first((name,))
        if found is None:
            return default
        try:
            return float(found[1])
        except ValueError:
            raise ConfigurationError(f"environment variable {name}={found[1]!r} must be a number of seconds") from None

    def flag(self, *names: str) -> bool:
        found = self._first(names)
        if found is None:
            return False
        value = found[1].strip().lower()
        if value not in _TRUE | _FALSE:
            raise ConfigurationError(f"environment variable {found[0]}={found[1]!r} must be one of {sorted(_TRUE | _FALSE - {''})}")
        return value in _TRUE
