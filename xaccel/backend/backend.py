"""The only door to a framework."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from xaccel.backend.arrays import Arrays
from xaccel.backend.collectives import Collectives
from xaccel.backend.strategy import Strategy
from xaccel.process.topology import ProcessTopology

if TYPE_CHECKING:
    from xaccel.accelerator import Accelerator
    from xaccel.backend.strategy import StrategyRequest
    from xaccel.config.handlers import ProfileKwargs
    from xaccel.config.settings import Settings
    from xaccel.environment import LaunchEnvironment
    from xaccel.preparation.plan import Preparer


class Backend(Protocol):
    """One instance per framework and process, made by the entry point in the group `xaccel.backends`."""

    name: str
    arrays: Arrays
    strategies: tuple[type[Strategy], ...]
    preparers: tuple["Preparer", ...]
    accelerator_class: type["Accelerator"]

    def owns(self, value: Any) -> bool:
        """Whether `value` (an array, a model, an optimizer) belongs to this framework."""

    def start(self, environment: "LaunchEnvironment", settings: "Settings") -> ProcessTopology:
        """Join the run (process group, `jax.distributed`) unless already joined, and say where this process stands."""

    def stop(self) -> None:
        """Tear down what `start` made; safe to call twice."""

    def strategy(self, request: "StrategyRequest") -> Strategy:
        """The first strategy class that claims the request, built; `UnsupportedError` with the reason if it refuses."""

    def collectives(self, topology: ProcessTopology) -> Collectives:
        """Collectives between the processes, before and without any strategy (`PartialState`)."""

    def initial_seed(self) -> int:
        """The seed that this process's default generator was last given (drawn at start where nobody gave one)."""

    def set_seed(self, seed: int, deterministic: bool = False) -> None:
        """Seed the framework's own generators."""

    def synchronise_generators(self, kinds: Sequence[str], collectives: Collectives) -> None:
        """Give process 0's state of these generators ("torch", "cuda", "xla") to all; a collective call.

        "generator" needs nothing: the order of samples is a function of seed and epoch, equal on all processes.

        Raises:
            UnsupportedError: the framework has no such generator.
        """

    def empty_cache(self) -> None:
        """Give cached device memory back."""

    def save_object(self, value: Any, path: str) -> None:
        """Write any object in the framework's own way; `UnsupportedError` where there is none."""

    def profile(self, handler: "ProfileKwargs", topology: ProcessTopology) -> AbstractContextManager[Any]:
        """Profile a block with the framework's own profiler."""
