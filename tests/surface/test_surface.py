"""Every member of the surface exists with its parameters, or stands in gaps.toml with the reason."""

from __future__ import annotations

import inspect
import tomllib
from pathlib import Path
from typing import Any

import pytest

import xaccel

HERE = Path(__file__).parent
REFERENCE: dict[str, dict[str, Any]] = tomllib.loads((HERE / "reference.toml").read_text())
GAPS: dict[str, dict[str, str]] = tomllib.loads((HERE / "gaps.toml").read_text())
MEMBERS = [(owner, name) for owner, members in REFERENCE.items() for name in members]

# Arguments of classes that come with strategies of their own; here they are refused or absent.
ABSENT_PARAMETERS = {
    ("AcceleratorState", "__init__"): {
        "dynamo_plugin",
        "deepspeed_plugin",
        "fsdp_plugin",
        "torch_tp_plugin",
        "megatron_lm_plugin",
        "parallelism_config",
        "**kwargs",
    },
    ("PartialState", "__init__"): {"**kwargs"},
    ("GradientState", "__init__"): {"gradient_accumulation_plugin"},
    ("PartialState", "destroy_process_group"): {"group"},
    ("AcceleratorState", "destroy_process_group"): {"group"},
}


@pytest.mark.parametrize(("owner", "name"), MEMBERS, ids=lambda part: str(part))
def test_member_exists_or_is_a_known_gap(owner: str, name: str) -> None:
    exists = inspect.getattr_static(getattr(xaccel, owner), name, None) is not None
    known_gap = name in GAPS.get(owner, {})
    assert exists != known_gap, f"{owner}.{name}: {'exists, so take it out of gaps.toml' if exists else 'is missing'}"


@pytest.mark.parametrize(
    ("owner", "name"), [(owner, name) for owner, name in MEMBERS if name not in GAPS.get(owner, {})], ids=lambda part: str(part)
)
def test_parameters(owner: str, name: str) -> None:
    expected = REFERENCE[owner][name]
    member = inspect.getattr_static(getattr(xaccel, owner), name)
    if expected == "property":
        assert isinstance(member, property) or owner != "Accelerator", f"{owner}.{name} is a property on the surface"
        return
    function = getattr(getattr(xaccel, owner), name)
    parameters = inspect.signature(function).parameters
    takes_anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    wanted = [each for each in expected if each not in ABSENT_PARAMETERS.get((owner, name), set())]
    missing = [each for each in wanted if each.lstrip("*") not in parameters and not (takes_anything and not each.startswith("*"))]
    assert not [each for each in missing if not each.startswith("*")], f"{owner}.{name} lacks {missing}"
    positional = [each for each in parameters if each in wanted]
    assert positional == [each for each in wanted if each in positional], f"{owner}.{name}: order of parameters"


def test_gaps_name_only_members_of_the_surface() -> None:
    for owner, names in GAPS.items():
        assert not set(names) - set(REFERENCE[owner])


def test_all_is_sorted_and_resolves() -> None:
    assert list(xaccel.__all__) == sorted(xaccel.__all__)
    for name in xaccel.__all__:
        assert getattr(xaccel, name) is not None


def test_every_member_of_accelerator_has_a_contract() -> None:
    undocumented = [
        name
        for name, member in inspect.getmembers(xaccel.Accelerator)
        if not name.startswith("_") and callable(member) and not inspect.getdoc(member)
    ]
    assert not undocumented
