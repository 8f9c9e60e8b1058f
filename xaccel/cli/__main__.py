"""`python -m xaccel.cli`."""

from xaccel.cli import main

main()
