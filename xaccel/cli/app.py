"""The commands, one function each; a command's file is named after it."""

from __future__ import annotations

import typer

from xaccel.cli.env import env
from xaccel.cli.launch import launch

app = typer.Typer(
    no_args_is_help=True, pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]}, help=__doc__
)
app.command(context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})(launch)
app.command()(env)
app.info.help = "Distributed training that does not care which framework you chose."
