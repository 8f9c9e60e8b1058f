"""`assemble(settings, backend) -> Parts`: the only place that chooses a strategy and puts the collaborators together."""

from __future__ import annotations

import dataclasses
import functools

from xaccel.backend.backend import Backend
from xaccel.backend.strategy import Strategy, StrategyRequest
from xaccel.collectives.communicator import Communicator
from xaccel.config.settings import Settings
from xaccel.data.active import ActiveLoaders
from xaccel.data.loader import LoaderContext
from xaccel.environment import LaunchEnvironment
from xaccel.preparation.pipeline import Pipeline
from xaccel.prepared import Prepared
from xaccel.process.scope import ProcessScope
from xaccel.process.topology import ProcessTopology, current_topology, set_current_topology
from xaccel.saving.manager import StateManager
from xaccel.stepping.accumulation import Accumulation
from xaccel.stepping.controller import StepController
from xaccel.stepping.trigger import Trigger
from xaccel.tracking.hub import TrackerHub


@dataclasses.dataclass(kw_only=True, eq=False)
class Parts:
    """The collaborators of one `Accelerator`. Each thing that changes at run time has one owner among them."""

    backend: Backend
    topology: ProcessTopology
    settings: Settings
    strategy: Strategy
    active: ActiveLoaders
    accumulation: Accumulation
    prepared: Prepared
    communicator: Communicator
    scope: ProcessScope
    pipeline: Pipeline
    controller: StepController
    trigger: Trigger
    saving: StateManager
    trackers: TrackerHub


def assemble(settings: Settings, backend: Backend, environment: LaunchEnvironment) -> Parts:
    """Join the run, choose the strategy, and build what works with it.

    Raises:
        UnsupportedError: no strategy of the backend serves the settings; the message gives the reason.
    """
    topology = current_topology() or backend.start(environment, settings)
    set_current_topology(topology)
    active = ActiveLoaders()
    accumulation = Accumulation(settings.accumulation, active)
    strategy = backend.strategy(StrategyRequest(topology=topology, settings=settings, accumulation=accumulation))
    prepared = Prepared()
    kinds = [kind for kind in settings.rng_types if kind != "generator"]

    def loader_context() -> LoaderContext:
        seed = settings.data.data_seed if settings.data.data_seed is not None else backend.initial_seed()
        return LoaderContext(
            replicas=strategy.replicas,
            config=settings.data,
            feed=strategy.feed,
            collectives=strategy.collectives,
            active=active,
            seed=strategy.collectives.broadcast_objects([seed], 0)[0],
            topology=topology,
            device_placement=settings.device_placement,
            on_start=functools.partial(backend.synchronise_generators, kinds, strategy.collectives) if kinds else None,
        )

    return Parts(
        backend=backend,
        topology=topology,
        settings=settings,
        strategy=strategy,
        active=active,
        accumulation=accumulation,
        prepared=prepared,
        communicator=Communicator(backend.arrays, strategy.collectives, topology, settings.debug),
        scope=ProcessScope(topology, strategy.collectives),
        pipeline=Pipeline(strategy, backend.preparers, prepared, settings, accumulation, loader_context),
        controller=StepController(strategy, accumulation, prepared),
        trigger=Trigger(strategy.collectives),
        saving=StateManager(
            state=strategy.state,
            arrays=backend.arrays,
            collectives=strategy.collectives,
            topology=topology,
            project=settings.project,
            prepared=prepared,
            precision=strategy.precision,
            replicas=strategy.replicas,
            backend=backend.name,
            full_state_dict=strategy.full_state_dict,
            save_object=backend.save_object,
        ),
        trackers=TrackerHub(topology, settings.project, settings.log_with),
    )
