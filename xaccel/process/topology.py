"""Where this process stands among the others. Made once for a process, frozen, and passed on."""

from __future__ import annotations

import dataclasses
from typing import Any

from xaccel.errors import ConfigurationError


@dataclasses.dataclass(frozen=True, kw_only=True)
class ProcessTopology:
    """The operating-system processes of one run, and the devices that they drive.

    A process is an operating-system process, also in JAX, where one process drives many devices. How a batch is divided is another
    matter: see `ReplicaLayout`.

    Attributes:
        process_index: this process among all, from 0.
        num_processes: all processes of the run.
        local_process_index: this process among those of its machine, from 0.
        num_local_processes: processes on this machine.
        machine_index: this machine among all, from 0.
        num_machines: machines of the run.
        num_devices: devices of the whole run.
        num_local_devices: devices that this process drives.
        device: the framework's own object for this process's (first) device.
        device_kind: "cpu", "cuda", "tpu", "xla", …
        backend: name of the adapter: "torch", "jax", "loopback".
        communication: what carries collectives: "gloo", "nccl", "xla", "threads", or "none" for a single process.
    """

    process_index: int = 0
    num_processes: int = 1
    local_process_index: int = 0
    num_local_processes: int = 1
    machine_index: int = 0
    num_machines: int = 1
    num_devices: int = 1
    num_local_devices: int = 1
    device: Any = "cpu"
    device_kind: str = "cpu"
    backend: str = "loopback"
    communication: str = "none"

    def __post_init__(self) -> None:
        for index, count in (
            ("process_index", "num_processes"),
            ("local_process_index", "num_local_processes"),
            ("machine_index", "num_machines"),
        ):
            if not 0 <= getattr(self, index) < getattr(self, count):
                raise ConfigurationError(
                    f"{index}={getattr(self, index)} is not in range({count}={getattr(self, count)}): check the launcher's rank variables"
                )

    @property
    def is_main_process(self) -> bool:
        """Whether this is process 0 of the run."""
        return self.process_index == 0

    @property
    def is_local_main_process(self) -> bool:
        """Whether this is the first process of its machine."""
        return self.local_process_index == 0

    @property
    def is_last_process(self) -> bool:
        """Whether this is the last process of the run."""
        return self.process_index == self.num_processes - 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReplicaLayout:
    """The data-parallel dimension: how many replicas there are, and which of them this process feeds.

    Attributes:
        num_replicas: replicas of the whole run; a global batch is split over these.
        local_replicas: indices of the replicas whose samples this process reads, ascending. Under torch DDP `(process_index,)`;
            a JAX process holds `num_replicas / num_processes` of them; tensor-parallel peers hold the same ones.
    """

    num_replicas: int = 1
    local_replicas: tuple[int, ...] = (0,)

    def __post_init__(self) -> None:
        outside = [index for index in self.local_replicas if not 0 <= index < self.num_replicas]
        if outside or not self.local_replicas:
            raise ConfigurationError(f"local_replicas={self.local_replicas} must name at least one of {self.num_replicas} replicas")


_current: ProcessTopology | None = None


def current_topology() -> ProcessTopology | None:
    """The topology of this process, or `None` before the first `Accelerator` or `PartialState`."""
    return _current


def set_current_topology(topology: ProcessTopology | None) -> None:
    """Record the topology of this process; `None` forgets it (after the process group is torn down)."""
    global _current
    _current = topology
