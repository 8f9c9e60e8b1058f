"""Shared fixtures: pools of ranks, started once; tests that leak are failed; folders of absent frameworks are skipped."""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

# Before anything imports jax: eight virtual CPU devices, and more pool threads than devices (see xaccel/launch/ranks.py).
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("NPROC", "16")
os.environ.setdefault("OMP_NUM_THREADS", "1")
if "xla_force_host_platform_device_count" not in os.environ.get("XLA_FLAGS", ""):
    os.environ["XLA_FLAGS"] = (os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8").strip()

import pytest

from xaccel.process.topology import current_topology, set_current_topology
from xaccel.testing.ranks import RankPool

HAS = {name: importlib.util.find_spec(name) is not None for name in ("torch", "jax")}
MAX_POOLS = 2
"""Pools alive at a time: each holds a framework in memory for every rank."""

collect_ignore_glob: list[str] = []
if not HAS["torch"]:
    collect_ignore_glob += ["unit/xaccel_torch/*", "multiprocess/test_torch*", "interop/*"]
if not HAS["jax"]:
    collect_ignore_glob += ["unit/xaccel_jax/*", "multiprocess/test_jax*", "interop/*"]


@pytest.fixture(scope="session")
def ranks() -> Iterator[Callable[..., RankPool]]:
    """`ranks("torch", 2)` or `ranks("jax", 2, 4)`: a pool of ranks, kept for later tests; skips where the framework is absent."""
    pools: dict[tuple[Any, ...], RankPool] = {}

    def get(kind: Any, num_processes: int = 1, devices_per_process: int = 1, **env: str) -> RankPool:
        if not HAS[kind]:
            pytest.skip(f"{kind} is not installed")
        key = (kind, num_processes, devices_per_process, *sorted(env.items()))
        if key in pools:
            pools[key] = pools.pop(key)  # most recently used last
        else:
            while len(pools) >= MAX_POOLS:
                pools.pop(next(iter(pools))).close()
            pools[key] = RankPool(kind, num_processes, devices_per_process, env=env)
        return pools[key]

    yield get
    for pool in pools.values():
        pool.close()


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """Fail a test that leaves behind environment variables, threads or a process group; forget the topology it made."""
    variables = dict(os.environ)
    threads = set(threading.enumerate())
    yield
    if current_topology() is not None:
        set_current_topology(None)
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()
        pytest.fail("the test left a torch process group behind")
    # torch names its compiler's cache when the first optimizer is made, compiled or not.
    # Set by pytest, and by torch and jax when they are first used.
    allowed = {
        "PYTEST_CURRENT_TEST",
        "TORCHINDUCTOR_CACHE_DIR",
        "TF_CPP_MIN_LOG_LEVEL",
        "TPU_SKIP_MDS_QUERY",
        "TPU_ML_PLATFORM",
        "TPU_ML_PLATFORM_VERSION",
    }
    leaked = {name for name in {*variables, *os.environ} if variables.get(name) != os.environ.get(name)} - allowed
    assert not leaked, f"the test changed environment variables: {sorted(leaked)}"
    alive = [thread for thread in threading.enumerate() if thread not in threads and not thread.daemon]
    for thread in alive:
        thread.join(5)
    assert not any(thread.is_alive() for thread in alive), f"the test left threads behind: {alive}"
