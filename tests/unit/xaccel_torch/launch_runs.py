"""Joining and leaving a run, for `test_launch_multiprocess.py`."""

from __future__ import annotations

import datetime
import warnings
from typing import Any

import torch
import torch.distributed as dist

from xaccel.config.handlers import HandlerSet, InitProcessGroupKwargs
from xaccel.config.settings import Settings
from xaccel.environment import read_environment
from xaccel_torch.backend import TorchBackend


def own_group() -> tuple[Any, ...]:
    """Made by us, twice started, twice stopped."""
    backend, settings = TorchBackend(), Settings(cpu=True)
    topology = backend.start(read_environment(), settings)
    assert backend.start(read_environment(), settings) == topology
    total = torch.ones(1)
    dist.all_reduce(total)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        backend.stop()
        backend.stop()
    return topology.process_index, topology.num_processes, topology.communication, float(total), dist.is_initialized()


def foreign_group() -> bool:
    """Made by the user: used, and left alone."""
    dist.init_process_group("gloo")
    backend = TorchBackend()
    topology = backend.start(read_environment(), Settings(cpu=True))
    backend.stop()
    alive = dist.is_initialized() and topology.num_processes == 2
    dist.destroy_process_group()
    return alive


def meeting_in_a_file(path: str) -> tuple[int, str]:
    """`InitProcessGroupKwargs`: another place to meet, another time limit."""
    handler = InitProcessGroupKwargs(backend="gloo", init_method=f"file://{path}", timeout=datetime.timedelta(seconds=17))
    backend = TorchBackend()
    settings = Settings(cpu=True, handlers=HandlerSet(init_process_group=handler), collective_timeout_seconds=17.0)
    topology = backend.start(read_environment(), settings)
    limit = str(dist.distributed_c10d._get_default_group()._get_backend(torch.device("cpu")).options._timeout)
    backend.stop()
    return topology.num_processes, limit


def nccl_on_the_cpu() -> str:
    """The message."""
    from xaccel.errors import ConfigurationError

    settings = Settings(cpu=True, handlers=HandlerSet(init_process_group=InitProcessGroupKwargs(backend="nccl")))
    try:
        TorchBackend().start(read_environment(), settings)
    except ConfigurationError as error:
        return str(error)
    return "no error"
