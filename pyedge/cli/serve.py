"""`pyedge serve`: the HTTP API and the chat page.

Owns the options, what may listen where, and what signals mean. The server itself is pyedge.server's.
"""

from __future__ import annotations

import logging
import signal
import sys
import threading
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from pyedge.cli import INTERRUPTED, verbose
from pyedge.cli.options import check_file, load_any, locate, model_options

if TYPE_CHECKING:
    from pyedge.server.settings import Settings

EXAMPLES = """\b
Examples:
  pyedge serve
  pyedge serve model.gguf --port 8000 --ctx 8192 --kv-memory 2GB
  PYEDGE_API_KEY=$(cat key) pyedge serve gemma3:270m --host 0.0.0.0
  curl 127.0.0.1:8080/v1/chat/completions -d '{"messages": [{"role": "user", "content": "Hi"}]}'
"""


@click.command(epilog=EXAMPLES)
@click.argument("model", required=False)
@click.option("--host", default="127.0.0.1", metavar="ADDRESS", help="Where to listen. [127.0.0.1]")
@click.option("--port", type=click.IntRange(0, 65535), metavar="N", help="0: any that is free. [8080]")
@click.option("--api-key", envvar="PYEDGE_API_KEY", metavar="KEY", help="What clients must send. [$PYEDGE_API_KEY]")
@click.option("--insecure", is_flag=True, help="Listen for other machines without a key.")
@click.option("--name", metavar="NAME", help="What clients call the model. [MODEL]")
@click.option("--cors-origin", multiple=True, metavar="URL", help="A site whose pages may use the API; * for all.")
@click.option("--allowed-host", multiple=True, metavar="NAME", help="A name, beside localhost, that this machine has.")
@click.option("--max-sequences", type=click.IntRange(1, 1024), metavar="N", help="That run at once. [64]")
@click.option("--max-queue", type=click.IntRange(0, 4096), metavar="N", help="That wait; more are sent away. [64]")
@click.option("--request-timeout", type=click.FloatRange(min=0.1), metavar="S", help="Seconds of an answer. [no limit]")
@model_options
def command(model: str | None, host: str, insecure: bool, **options: Any) -> None:
    """Serve MODEL, a path to a GGUF or a name [smollm2:135m], to OpenAI's clients and to a browser.

    Only this machine reaches it, unless --host says otherwise. Ctrl-C lets answers under way end; twice ends at once.
    """
    from pyedge import store
    from pyedge.server.settings import Settings

    given = {
        "port": options["port"],
        "api_key": options["api_key"] or None,
        "name": options["name"],
        "cors_origins": options["cors_origin"],
        "allowed_hosts": options["allowed_host"],
        "max_sequences": options["max_sequences"],
        "max_queue": options["max_queue"],
        "request_timeout": options["request_timeout"],
    }
    settings = Settings(host=host, **{name: value for name, value in given.items() if value is not None})
    _check(settings, insecure)
    _serve(store.DEFAULT_MODEL if model is None else model, settings, options)


verbose(command)


def _check(settings: Settings, insecure: bool) -> None:
    from pyedge.server.security import is_loopback

    key = settings.api_key
    if key is not None and not (key.isascii() and key.isprintable() and " " not in key):
        raise click.UsageError("--api-key: must be printable ASCII without spaces, since it travels in a header")
    if not is_loopback(settings.host) and key is None and not insecure:
        raise click.UsageError(
            f"--host {settings.host}: lets other machines in; give --api-key (or PYEDGE_API_KEY), or --insecure"
        )


def _serve(model: str, settings: Settings, options: dict[str, Any]) -> None:
    from pyedge.server.app import create_app
    from pyedge.server.listener import SPARE_THREADS, Listener, bind
    from pyedge.server.service import Service

    with bind(settings) as s:  # before anything takes its time: it might be in use
        path = locate(model)
        check_file(path, options)
        service = Service(settings, model)
        listener = Listener(create_app(service), s, settings, service.places.n + SPARE_THREADS)
        ended_by: list[int] = []

        def end(number: int, _: FrameType | None) -> None:
            service.draining = True
            ended_by.append(number)
            listener.stop(settings.drain_timeout if len(ended_by) == 1 and service.started else 0)
            if not service.started:
                raise KeyboardInterrupt

        _log()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, end)
        serving = threading.Thread(target=listener.run, name="pyedge-listener", daemon=True)
        serving.start()
        try:
            service.start(load_any(path, options, max_sequences=settings.max_sequences))
            click.echo(f"{service.name}: {listener.url}", err=True)
            while serving.is_alive():
                serving.join(1)
        except KeyboardInterrupt:
            pass  # nothing is under way yet
        finally:
            listener.stop(0)
            serving.join()
            service.close()
            listener.close()
    if ended_by[0] == signal.SIGINT:
        sys.exit(INTERRUPTED)


def _log() -> None:
    """The access log goes to standard error, a line for each request, whether or not the rest is to be logged."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    for name, level in (("pyedge.server.access", logging.INFO), ("waitress", logging.ERROR)):
        log = logging.getLogger(name)
        log.addHandler(handler)
        log.setLevel(level)
        log.propagate = False
