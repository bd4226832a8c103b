"""`pyedge rm`: remove models from this machine."""

from __future__ import annotations

import os

import click

from pyedge.cli import verbose
from pyedge.cli.terminal import in_bytes
from pyedge.errors import ModelError


@click.command(epilog="\b\nExample:\n  pyedge rm gemma3:270m")
@click.argument("models", nargs=-1, required=True, metavar="MODEL...")
def command(models: tuple[str, ...]) -> None:
    """Remove MODEL, or what an interrupted pull left of it.

    A program that is running the model is not disturbed: after loading it has no need of the file.
    """
    from pyedge import store

    for model in models:
        if model and not store.is_name(model) and os.path.lexists(model):
            raise ModelError(f"{model}: is a path and no name of a model that is kept; remove it with rm")
        size = store.remove(model)
        click.echo(f"{model}: removed, {in_bytes(size)} are free again", err=True)


verbose(command)
