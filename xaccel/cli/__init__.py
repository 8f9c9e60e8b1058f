"""The `xaccel` command."""

from __future__ import annotations


def main() -> None:
    """Run the command line; exit status 0 fine, 1 failed, 2 misused."""
    from xaccel.cli.app import app

    app(prog_name="xaccel")
