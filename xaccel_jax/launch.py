"""Joining a JAX run: `jax.distributed`, the devices, and where this process stands."""

from __future__ import annotations

import warnings
from typing import Any

import jax

from xaccel.config.settings import Settings
from xaccel.environment import LaunchEnvironment
from xaccel.errors import ConfigurationError
from xaccel.process.topology import ProcessTopology
from xaccel_jax.compat import backends_are_initialized, is_distributed


def join(environment: LaunchEnvironment, settings: Settings) -> tuple[ProcessTopology, bool]:
    """Join the run, unless this process has joined already.

    Returns:
        The topology, and whether `jax.distributed` was initialised here (and is ours to shut down).

    Raises:
        ConfigurationError: a device was touched before a run of several processes was joined.
    """
    if settings.cpu and not backends_are_initialized():
        jax.config.update("jax_platforms", "cpu")
    made = False
    if environment.is_launched and not is_distributed():
        _initialize(environment, settings)
        made = True
    return _topology(environment), made


def _initialize(environment: LaunchEnvironment, settings: Settings) -> None:
    if backends_are_initialized():
        raise ConfigurationError(
            f"this is process {environment.process_index} of {environment.num_processes}, but JAX's devices were already in use when the run was to be joined: "
            "make the Accelerator (or PartialState) before the first jax.devices(), jnp.… or jax.random.key(…)"
        )
    if environment.main_address is None or environment.main_port is None:
        raise ConfigurationError(
            "a run of several JAX processes needs MASTER_ADDR and MASTER_PORT (process 0's address): start it with `xaccel launch`"
        )
    jax.distributed.initialize(
        coordinator_address=f"{environment.main_address}:{environment.main_port}",
        num_processes=environment.num_processes,
        process_id=environment.process_index,
        initialization_timeout=int(min(settings.collective_timeout_seconds, 300)),
    )


def _topology(environment: LaunchEnvironment) -> ProcessTopology:
    devices: list[Any] = jax.local_devices()
    count = jax.process_count()
    num_local = environment.num_local_processes or (count if environment.is_launched else 1)
    _warn_of_small_pool(devices)
    return ProcessTopology(
        process_index=jax.process_index(),
        num_processes=count,
        local_process_index=environment.local_process_index or 0,
        num_local_processes=min(num_local, count),
        machine_index=environment.machine_index or 0,
        num_machines=max(1, count // num_local),
        num_devices=jax.device_count(),
        num_local_devices=len(devices),
        device=devices[0],
        device_kind=devices[0].platform,
        backend="jax",
        communication="xla" if jax.device_count() > 1 else "none",
    )


def _warn_of_small_pool(devices: list[Any]) -> None:
    """XLA's CPU pool is as large as the cores, or as `NPROC` says; collectives of more devices than threads never meet."""
    from xaccel.environment import cpu_pool_threads

    threads = cpu_pool_threads()
    if devices[0].platform == "cpu" and len(devices) > threads:
        warnings.warn(
            f"{len(devices)} CPU devices share a pool of {threads} threads, on which collectives can deadlock: "
            f"start with NPROC={2 * len(devices)} in the environment (`xaccel launch --devices {len(devices)}` sets it)",
            stacklevel=4,
        )
