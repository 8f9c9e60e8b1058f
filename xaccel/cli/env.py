"""`xaccel env`: what a bug report needs."""

from __future__ import annotations

import json
import platform
import sys
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from xaccel.backend.registry import available
from xaccel.environment import read_environment

_PACKAGES = ("xaccel", "torch", "torch-xla", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy", "safetensors", "ml_dtypes")


def env(as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False) -> None:
    """Print versions and what the environment says; what a bug report needs.

    Example: xaccel env --json
    """
    import dataclasses

    facts = {
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "backends": ", ".join(available()),
        **{name: _version(name) for name in _PACKAGES},
        **{f"environment.{key}": value for key, value in dataclasses.asdict(read_environment()).items() if value not in (None, False)},
    }
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(show_header=False, box=None)
    for key, value in facts.items():
        table.add_row(key, str(value))
    Console().print(table)


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
