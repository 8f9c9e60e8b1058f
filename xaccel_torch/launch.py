"""Joining a torch run: the process group, the device, and where this process stands."""

from __future__ import annotations

import datetime
from typing import Any

import torch
import torch.distributed as dist

from xaccel.config.settings import Settings
from xaccel.environment import LaunchEnvironment
from xaccel.errors import ConfigurationError
from xaccel.process.topology import ProcessTopology


def choose_device(environment: LaunchEnvironment, cpu: bool) -> tuple[Any, str]:
    """This process's device and its kind."""
    if cpu or not torch.cuda.is_available():
        return torch.device("cpu"), "cpu"
    local = environment.local_process_index or 0
    if local >= torch.cuda.device_count():
        raise ConfigurationError(
            f"local process {local} has no GPU of its own: this machine has {torch.cuda.device_count()}; start fewer processes"
        )
    device = torch.device("cuda", local)
    torch.cuda.set_device(device)
    return device, "cuda"


def join(environment: LaunchEnvironment, settings: Settings) -> tuple[ProcessTopology, bool]:
    """Join the run, unless this process has joined already.

    Returns:
        The topology, and whether the process group was made here (and is ours to destroy).
    """
    device, kind = choose_device(environment, settings.cpu)
    made = False
    if environment.is_launched and not dist.is_initialized():
        _init_process_group(environment, settings, kind)
        made = True
    if not dist.is_initialized():
        return ProcessTopology(device=device, device_kind=kind, backend="torch"), False
    index, count = dist.get_rank(), dist.get_world_size()
    num_local = environment.num_local_processes or count
    topology = ProcessTopology(
        process_index=index,
        num_processes=count,
        local_process_index=environment.local_process_index or 0,
        num_local_processes=num_local,
        machine_index=environment.machine_index or 0,
        num_machines=max(1, count // num_local),
        num_devices=count,
        device=device,
        device_kind=kind,
        backend="torch",
        communication=str(dist.get_backend()),
    )
    return topology, made


def _init_process_group(environment: LaunchEnvironment, settings: Settings, kind: str) -> None:
    handler = settings.handlers.init_process_group
    backend = handler.backend if handler is not None and handler.backend is not None else ("nccl" if kind == "cuda" else "gloo")
    if backend == "nccl" and kind == "cpu":
        raise ConfigurationError("InitProcessGroupKwargs(backend='nccl') needs CUDA devices; this run is on the CPU: use 'gloo'")
    timeout = datetime.timedelta(seconds=settings.collective_timeout_seconds)
    if handler is None or handler.init_method is None:
        dist.init_process_group(backend, timeout=timeout)
        return
    assert environment.process_index is not None, "a launched process has a rank"
    assert environment.num_processes is not None, "a launched process knows their number"
    dist.init_process_group(
        backend, init_method=handler.init_method, rank=environment.process_index, world_size=environment.num_processes, timeout=timeout
    )
