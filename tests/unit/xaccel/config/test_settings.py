"""Argument, then environment, then default; contradictions are errors."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from xaccel.config.accumulation import GradientAccumulationPlugin
from xaccel.config.data import DataLoaderConfiguration
from xaccel.config.handlers import AutocastKwargs, DistributedDataParallelKwargs, InitProcessGroupKwargs, sort_handlers
from xaccel.config.project import ProjectConfiguration
from xaccel.config.settings import UNSET, Settings, merge_settings, refuse_unbuilt
from xaccel.environment import LaunchEnvironment
from xaccel.errors import ConfigurationError, UnsupportedError


def merge(environment: LaunchEnvironment | None = None, **changed: Any) -> Settings:
    arguments: dict[str, Any] = {
        "device_placement": True,
        "split_batches": UNSET,
        "mixed_precision": None,
        "gradient_accumulation_steps": 1,
        "cpu": False,
        "dataloader_config": None,
        "rng_types": None,
        "log_with": None,
        "project_dir": None,
        "project_config": None,
        "gradient_accumulation_plugin": None,
        "step_scheduler_with_optimizer": True,
        "kwargs_handlers": None,
        "parallelism_config": None,
        "batch_statistics": "replica",
    }
    return merge_settings(environment or LaunchEnvironment(), **{**arguments, **changed})


def test_defaults() -> None:
    settings = merge()
    assert (settings.mixed_precision, settings.accumulation.num_steps, settings.data.split_batches, settings.log_with) == (
        "no",
        1,
        False,
        (),
    )


def test_argument_before_environment_before_default() -> None:
    environment = LaunchEnvironment(mixed_precision="bf16", gradient_accumulation_steps=4, cpu=True, debug=True)
    settings = merge(environment)
    assert (settings.mixed_precision, settings.accumulation.num_steps, settings.cpu, settings.debug) == ("bf16", 4, True, True)
    settings = merge(environment, mixed_precision="no", gradient_accumulation_steps=2)
    assert (settings.mixed_precision, settings.accumulation.num_steps) == ("no", 2)


def test_timeout_of_the_handler_comes_first() -> None:
    handler = InitProcessGroupKwargs(timeout=timedelta(seconds=7))
    assert merge(LaunchEnvironment(collective_timeout_seconds=30), kwargs_handlers=[handler]).collective_timeout_seconds == 7


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"mixed_precision": "fp64"}, "fp64"),
        ({"batch_statistics": "machine"}, "machine"),
        ({"rng_types": ["dice"]}, "dice"),
        ({"gradient_accumulation_steps": 2, "gradient_accumulation_plugin": GradientAccumulationPlugin(num_steps=4)}, "4"),
        ({"split_batches": True, "dataloader_config": DataLoaderConfiguration()}, "split_batches=False"),
        ({"project_dir": "a", "project_config": ProjectConfiguration(project_dir="b")}, "'b'"),
        ({"kwargs_handlers": [AutocastKwargs(), AutocastKwargs(enabled=False)]}, "two AutocastKwargs"),
        ({"kwargs_handlers": ["ddp"]}, "'ddp'"),
    ],
)
def test_wrong_and_contradictory_arguments_are_named(changed: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigurationError, match=named):
        merge(**changed)


def test_project_dir_fills_an_empty_configuration() -> None:
    assert merge(project_dir="runs", project_config=ProjectConfiguration()).project.project_dir == "runs"


def test_what_is_not_built_is_refused_and_not_ignored() -> None:
    refuse_unbuilt({"fsdp_plugin": None})
    with pytest.raises(UnsupportedError, match="fsdp_plugin"):
        refuse_unbuilt({"fsdp_plugin": object()})


def test_handlers_find_their_places() -> None:
    handlers = sort_handlers([DistributedDataParallelKwargs(static_graph=True), AutocastKwargs()])
    assert handlers.ddp is not None
    assert handlers.ddp.static_graph
    assert handlers.scaler is None


def test_to_kwargs_gives_what_differs_from_the_defaults() -> None:
    assert DistributedDataParallelKwargs(find_unused_parameters=True).to_kwargs() == {"find_unused_parameters": True}


def test_a_limit_without_automatic_naming_warns_that_it_does_nothing() -> None:
    """Case C-57."""
    with pytest.warns(UserWarning, match="automatic_checkpoint_naming"):
        ProjectConfiguration(total_limit=2)


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="total_limit=0"):
        ProjectConfiguration(total_limit=0, automatic_checkpoint_naming=True)
