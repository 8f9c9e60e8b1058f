"""A way of distributing. Whoever adds one writes one file and registers it; nothing else changes.

Requirements, and why the interface is what it is:

* A strategy is chosen once, from a `StrategyRequest`, by asking each class of the adapter's ordered tuple `claims(request)`: the
  first that claims it is built. No caller ever asks *which* strategy it has; `distributed_type` is a label for scripts to print.
* Models and optimizers are seen *together* (`prepare(plan)`), since sharding re-points the optimizer to new parameters.
* What a strategy refuses, it refuses with a reason, before anything has moved (`refuses`).
* An ability that only some have is an object they return, or an interface of its own (`UnevenInputs`): "can you?", never "which are you?".
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, runtime_checkable

from xaccel.backend.collectives import Collectives
from xaccel.backend.feed import Feed
from xaccel.backend.gradients import Gradients
from xaccel.backend.precision import Precision
from xaccel.backend.state import StateAccess
from xaccel.process.topology import ProcessTopology, ReplicaLayout

if TYPE_CHECKING:
    from xaccel.config.settings import Settings
    from xaccel.mesh.mesh import Mesh
    from xaccel.preparation.plan import PreparationPlan
    from xaccel.stepping.accumulation import Accumulation


@dataclasses.dataclass(frozen=True, kw_only=True)
class StrategyRequest:
    """Everything that a strategy may look at when it is chosen and built."""

    topology: ProcessTopology
    settings: "Settings"
    accumulation: "Accumulation"


class Strategy(Protocol):
    """See the module's docstring."""

    name: ClassVar[str]
    distributed_type: str
    replicas: ReplicaLayout
    mesh: "Mesh"
    gradients: Gradients
    precision: Precision
    collectives: Collectives
    feed: Feed
    state: StateAccess

    @classmethod
    def claims(cls, request: StrategyRequest) -> bool:
        """Whether this is the strategy for the request."""

    @classmethod
    def refuses(cls, request: StrategyRequest) -> str | None:
        """The reason why the request cannot be served, for the error message; `None` if it can."""

    def __init__(self, request: StrategyRequest) -> None: ...

    def prepare(self, plan: "PreparationPlan") -> "PreparationPlan":
        """Place, convert, shard and wrap models and optimizers of the plan; both are seen together."""

    def unwrap(self, model: Any, *, keep_fp32_wrapper: bool = True, keep_torch_compile: bool = True) -> Any:
        """The user's own kind of model, with current values."""

    def full_state_dict(self, model: Any, unwrap: bool = True) -> dict[str, Any]:
        """Full, unsharded tensors by canonical name (`get_state_dict`)."""

    def release(self) -> None:
        """Drop references to prepared objects and device buffers that the strategy owns (`free_memory`)."""


@runtime_checkable
class UnevenInputs(Protocol):
    """A strategy under which processes may bring different numbers of batches."""

    def join(self, models: Sequence[Any]) -> AbstractContextManager[None]:
        """Within it, a process that ran out shadows the collectives of the others."""
