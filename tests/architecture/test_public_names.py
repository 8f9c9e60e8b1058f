"""The lists of public names are sorted, complete, and lead somewhere."""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def lists() -> list[tuple[Path, list[str]]]:
    found = []
    for package in ("xaccel", "xaccel_torch", "xaccel_jax"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.parse(path.read_text()).body:
                if isinstance(node, ast.Assign) and any(isinstance(target, ast.Name) and target.id == "__all__" for target in node.targets):
                    found.append((path, ast.literal_eval(node.value)))
    return found


def test_every_list_is_sorted_and_names_nothing_twice() -> None:
    assert lists()
    for path, names in lists():
        assert names == sorted(set(names)), path


@pytest.mark.parametrize("module", ["xaccel", "xaccel.utils"])
def test_lazy_names_are_the_public_ones_and_lead_somewhere(module: str) -> None:
    package = importlib.import_module(module)
    assert sorted(package._HOMES) == package.__all__
    for name in package.__all__:
        assert getattr(package, name) is not None
    assert set(package.__all__) <= set(dir(package))
    with pytest.raises(AttributeError, match="no_such_name"):
        package.no_such_name  # noqa: B018
