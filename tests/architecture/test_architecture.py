"""What linters cannot say about the house."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FRAMEWORKS = ("torch", "torch_xla", "jax", "jaxlib", "flax", "optax", "orbax")
PACKAGES = ("xaccel", "xaccel_torch", "xaccel_jax")

# Files that only one adapter has, each for a thing that only its framework has.
ONLY_IN_TORCH = {"batch_norm.py"}
ONLY_IN_JAX = {"definitions.py", "functions.py", "lazy.py", "losses.py", "model.py", "placement.py", "program.py", "schedule.py", "step.py"}


def sources(package: str) -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted((ROOT / package).rglob("*.py")):
        yield path, ast.parse(path.read_text())


def imported(tree: ast.Module) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names.add(node.module)
    return {name.partition(".")[0] for name in names}


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT).stdout.strip()


@pytest.mark.parametrize(
    "code", ["import xaccel", "import xaccel, xaccel.utils", "from xaccel.cli import main", "from xaccel import Accelerator"]
)
def test_no_framework_is_loaded(code: str) -> None:
    """Cases C-97 and C-120."""
    loaded = run(f"{code}; import sys; print([n for n in {[*FRAMEWORKS, *PACKAGES[1:]]} if n in sys.modules])")
    assert loaded == "[]"


def test_import_xaccel_loads_next_to_nothing() -> None:
    before = int(run("import sys; print(len(sys.modules))"))
    after = int(run("import xaccel, sys; print(len(sys.modules), file=sys.stderr); print(len(sys.modules))"))
    # Names are loaded at first use; a module or two of the standard library come along with importlib.
    assert after - before <= 10
    assert run("import xaccel, sys; print('numpy' in sys.modules)") == "False"


def test_core_names_no_framework_in_an_import() -> None:
    for path, tree in sources("xaccel"):
        assert not imported(tree) & {*FRAMEWORKS, *PACKAGES[1:]}, path


def test_adapters_do_not_import_each_other() -> None:
    for package, other in (("xaccel_torch", "xaccel_jax"), ("xaccel_jax", "xaccel_torch")):
        for path, tree in sources(package):
            assert other not in imported(tree), path


def test_torch_adapter_imports_no_jax_and_the_other_way() -> None:
    for package, foreign in (("xaccel_torch", {"jax", "flax", "optax", "orbax"}), ("xaccel_jax", {"torch"})):
        for path, tree in sources(package):
            assert not imported(tree) & foreign, path


def test_both_adapters_have_the_same_files() -> None:
    torch_files, jax_files = ({path.name for path in (ROOT / package).glob("*.py")} for package in PACKAGES[1:])
    assert torch_files - jax_files == ONLY_IN_TORCH
    assert jax_files - torch_files == ONLY_IN_JAX


@pytest.mark.parametrize("package", PACKAGES)
def test_no_hasattr(package: str) -> None:
    for path, tree in sources(package):
        calls = [
            node.lineno
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "hasattr"
        ]
        assert not calls, f"{path}:{calls}: declare the attribute"


@pytest.mark.parametrize("package", PACKAGES)
def test_nobody_branches_on_the_distributed_type(package: str) -> None:
    for path in sorted((ROOT / package).rglob("*.py")):
        for number, line in enumerate(path.read_text().splitlines(), 1):
            assert not re.search(r"(==|!=|\bin\b|\bis\b)\s*\(?\s*DistributedType\.", line), f"{path}:{number}"
            assert not re.search(r"distributed_type\s*(==|!=|in\b)", line), f"{path}:{number}"


@pytest.mark.parametrize("package", PACKAGES)
def test_the_environment_is_read_in_one_module(package: str) -> None:
    allowed = {"xaccel/environment.py", "xaccel/launch/processes.py", "xaccel/testing/ranks.py"}
    for path, _ in sources(package):
        if str(path.relative_to(ROOT)) not in allowed:
            assert not re.search(r"os\.(environ|getenv)", path.read_text()), path


@pytest.mark.parametrize("package", PACKAGES)
def test_files_are_small(package: str) -> None:
    for path in sorted((ROOT / package).rglob("*.py")):
        assert len(path.read_text().splitlines()) <= 500, path


@pytest.mark.parametrize("package", PACKAGES)
def test_every_module_says_what_it_is(package: str) -> None:
    for path, tree in sources(package):
        assert (ast.get_docstring(tree) or "").strip(". \n"), f"{path} has no docstring"
