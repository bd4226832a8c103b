"""`pyedge pull`: fetch a model and keep it."""

from __future__ import annotations

import click

from pyedge.cli import verbose


@click.command(epilog="\b\nExample:\n  pyedge pull smollm2:135m")
@click.argument("model")
def command(model: str) -> None:
    """Fetch MODEL into the user's cache and print its path.

    A model that is there already is checked, and fetched again if its file was damaged. One that was interrupted starts
    again.
    """
    from pyedge import store
    from pyedge.cli.terminal import download_bar

    with download_bar(model) as progress:
        path = store.fetch(model, progress, check=True) if model in store.CATALOGUE else store.resolve(model, pull=True)
    click.echo(path)
    if (entry := store.CATALOGUE.get(model)) is not None:
        click.echo(f"{model}: {entry.size / 1e6:.0f} MB, licence {entry.licence}, SHA-256 checked", err=True)


verbose(command)
