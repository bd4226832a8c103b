"""`python -m pyedge`: the command line."""

from pyedge.cli import main

main()
