"""`xaccel launch`: start a script on several processes or devices of this machine."""

from __future__ import annotations

import enum
import sys
from typing import Annotated

import typer

from xaccel.backend.registry import choose_name
from xaccel.environment import read_environment
from xaccel.errors import XaccelError
from xaccel.launch.processes import launch as start
from xaccel.launch.ranks import LaunchRequest


class PrecisionChoice(enum.StrEnum):
    """What `--mixed_precision` takes."""

    no = "no"
    fp16 = "fp16"
    bf16 = "bf16"
    fp8 = "fp8"


def launch(
    script: Annotated[str, typer.Argument(help="The script, or with --module a module's name.")],
    arguments: Annotated[list[str] | None, typer.Argument(help="The script's own arguments.")] = None,
    backend: Annotated[str | None, typer.Option(help="torch or jax; the installed one if not given.")] = None,
    num_processes: Annotated[int, typer.Option("--num_processes", "--num-processes", help="Processes on this machine.")] = 1,
    devices: Annotated[int, typer.Option(help="JAX on CPU: virtual devices of each process.")] = 1,
    mixed_precision: Annotated[PrecisionChoice | None, typer.Option("--mixed_precision", "--mixed-precision")] = None,
    gradient_accumulation_steps: Annotated[
        int | None, typer.Option("--gradient_accumulation_steps", "--gradient-accumulation-steps", min=1)
    ] = None,
    cpu: Annotated[bool, typer.Option("--cpu", help="Use the CPU even where there is another device.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Compare shapes across processes before each collective.")] = False,
    main_process_port: Annotated[
        int | None, typer.Option("--main_process_port", "--main-process-port", help="A free one if not given.")
    ] = None,
    module: Annotated[bool, typer.Option("--module", "-m", help="SCRIPT is a module, run as python -m does.")] = False,
) -> None:
    """Start a script on several processes or devices of this machine.

    Example: xaccel launch --backend torch --num_processes 2 train.py --epochs 3
    """
    try:
        name = choose_name(backend or read_environment().backend)
        request = LaunchRequest(
            backend=name,
            num_processes=num_processes,
            num_devices=devices,
            cpu=cpu,
            mixed_precision=mixed_precision.value if mixed_precision else None,
            gradient_accumulation_steps=gradient_accumulation_steps,
            debug=debug,
            main_port=main_process_port,
        )
    except XaccelError as error:
        typer.echo(f"xaccel launch: {error}", err=True)
        raise typer.Exit(2) from None
    command = [sys.executable, *(["-m"] if module else []), script, *(arguments or [])]
    raise typer.Exit(start(request, command))
