"""`pyedge list`: the models that are on this machine."""

from __future__ import annotations

import click

from pyedge.cli import verbose
from pyedge.cli.streams import print_json
from pyedge.cli.terminal import harmless, in_bytes


@click.command(epilog="\b\nExamples:\n  pyedge list\n  pyedge list --json")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(as_json: bool) -> None:
    """List the models that are kept, and what interrupted pulls left."""
    from pyedge import store

    models, leftovers = store.kept(), store.leftovers()
    if as_json:
        document = {
            "folder": str(store.home()),
            "models": [
                {
                    "name": model.name,
                    "size": model.size,
                    "sha256": model.files[0].sha256,
                    "licence": model.licence,
                    "source": model.source,
                    "path": str(model.path),
                }
                for model in models
            ],
            "unfinished": [{"name": rest.name, "size": rest.size, "busy": rest.busy} for rest in leftovers],
        }
        print_json(document)
        return
    rows = [(harmless(m.name), in_bytes(m.size), harmless(m.licence or "-")) for m in models]
    widths = [max((len(row[i]) for row in rows), default=0) for i in (0, 1)]
    for name, size, licence in rows:
        click.echo(f"{name:{widths[0]}}  {size:>{widths[1]}}  {licence}")
    for rest in leftovers:
        what = (
            "is being fetched"
            if rest.busy
            else f'is unfinished: "pyedge pull {rest.name}" goes on, "pyedge rm {rest.name}" removes it'
        )
        click.echo(f"note: {harmless(rest.name)} ({in_bytes(rest.size)}) {harmless(what)}", err=True)
    if not models:
        click.echo(f'note: no models are here yet; "pyedge pull {store.DEFAULT_MODEL}" fetches one', err=True)


verbose(command)
