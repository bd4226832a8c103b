"""The command line: `pyedge COMMAND`.

Owns the table of commands and what is the same for all: exit codes, one-line errors, logging. A command lives in the
module of its name and is imported when it runs, so that `pyedge --help` imports nothing but click.
"""

from __future__ import annotations

import gc
import os
import re
import sys
from importlib import import_module

import click

from pyedge.cli.streams import StreamError, dumb, prepare
from pyedge.errors import ModelError, NotBuiltError

COMMANDS = {  # name: its line in the help
    "pull": "Fetch a model and keep it.",
    "list": "List the models that are kept.",
    "rm": "Remove a model.",
    "show": "Show what a model is, and where it comes from.",
    "chat": "Talk with a model in the terminal.",
    "run": "Answer one prompt.",
    "serve": "Serve an HTTP API and a chat page.",
    "tokenize": "Turn a text into tokens.",
    "convert": "Make a GGUF file of a checkpoint in Hugging Face's form.",
    "quantize": "Make a smaller file of a model.",
    "imatrix": "Collect what goes into a model's matrices.",
    "perplexity": "Measure how well a model foretells a text.",
    "inspect": "Show what a file holds, and what is wrong with it.",
    "bench": "Measure the speed of reading and writing.",
    "capacity": "Say how many chats fit, and what limits them.",
    "profile": "Show where the time goes, and what would help.",
    "doctor": "Show this machine, and what runs on it.",
}

INTERRUPTED = 130
VERBOSE = "pyedge.verbose"  # in a context's meta, if `-v` was given


class Failure(click.ClickException):
    """An error meant for a person: one line on standard error, exit code 1."""

    exit_code = 1

    def show(self, file: object = None) -> None:
        click.echo(f"error: {self.message}", err=True)


_OPTIONS = {  # what a message of the API calls them, and what was typed
    "max_model_len": "--ctx", "kv_memory": "--kv-memory", "temperature": "--temp", "top_k": "--top-k",
    "top_p": "--top-p", "min_p": "--min-p", "repeat_penalty": "--repeat-penalty", "max_tokens": "-n",
    "seed": "--seed", "stop": "--stop", "logprobs": "--logprobs", "threads": "--threads", "device": "--device",
    "precision": "--precision", "kv_type": "--kv-type", "pre": "--pre",
    "tensor_type": "--tensor-type",
}  # fmt: skip


def in_options(text: str) -> str:
    """A message of the API with the names of options. What is a word of English too is a name where it begins one."""
    text = re.sub(r"\b[a-z]+(?:_[a-z]+)+\b", lambda match: _OPTIONS.get(match[0], match[0]), text)
    return re.sub(r"^[a-z]+\b", lambda match: _OPTIONS.get(match[0], match[0]), text)


def one_line(e: BaseException) -> str:
    """What an exception says, in one printable line: its text may quote a stranger's file."""
    if isinstance(e, OSError) and e.strerror:
        text = f"{os.fsdecode(e.filename)}: {e.strerror}" if isinstance(e.filename, (str, bytes)) else e.strerror
    else:
        text = str(e)
    if not text and isinstance(e, MemoryError):
        text = "not enough memory; close other programs, take a smaller model, or give a smaller --ctx"
    text = " ".join((text or type(e).__name__).split())
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


class Commands(click.Group):
    """A group that imports a command's module when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in COMMANDS:
            return None
        command: click.Command = import_module(f"pyedge.cli.{name}").command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            if sys.stderr.isatty():
                click.echo(err=True)  # the shell's prompt does not follow on `^C`
            ctx.exit(INTERRUPTED)
        except BrokenPipeError:
            raise  # click ends quietly
        except (ModelError, NotBuiltError, ValueError, MemoryError, OSError) as e:
            if "logging" in sys.modules:
                sys.modules["logging"].getLogger(__name__).debug("this is where it failed", exc_info=True)
            text = one_line(e)
            if isinstance(e, (ValueError, MemoryError)):
                if ctx.invoked_subcommand == "serve":  # it has an option for this
                    text = text.replace("kv_memory", "--kv-memory")
                text = in_options(text)
            raise Failure(text) from e


def _log(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    import logging

    if value:
        ctx.meta[VERBOSE] = True
    if value or ctx.parent is None:  # a command's unset `-v` leaves the one before it
        handler = logging.StreamHandler()
        layout = "%(relativeCreated)7.0f ms %(name)s: %(message)s" if value else "note: %(message)s"
        handler.setFormatter(logging.Formatter(layout))
        root = logging.getLogger("pyedge")
        root.handlers[:] = [handler]
        root.setLevel(logging.DEBUG if value else logging.WARNING)
        # What the engine warns of comes here as an exception too, and is said once.
        logging.getLogger("pyedge.engine").setLevel(logging.NOTSET if value else logging.ERROR)


def _version(ctx: click.Context, _: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        import pyedge

        click.echo(f"pyedge {pyedge.__version__}")
        ctx.exit()


def verbose(command: click.Command) -> click.Command:
    """Adds `-v`, which commands take as well as `pyedge` itself."""
    command.params.append(
        click.Option(
            ["-v", "--verbose"], is_flag=True, expose_value=False, callback=_log, help="Log to standard error."
        )
    )
    return command


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_version, help="Print the version."
)
def cli() -> None:
    """Quantized language models on the machine you own.

    \b
    Start with:  pyedge chat
    Help on one: pyedge COMMAND --help
    """


verbose(cli)


def main() -> None:
    """The program: runs a command line and exits with its code."""
    # A start makes 100,000 objects that stay. Every 700 of them the collector would look through the young ones, and
    # often through all: 25 ms of the 350 that a start takes.
    gc.set_threshold(50_000, 20, 100)
    prepare()
    try:
        code = cli.main(prog_name="pyedge", standalone_mode=False, color=False if dumb() else None)
        sys.stdout.flush()
    except click.ClickException as e:
        e.show()
        code = e.exit_code
        if isinstance(e.__cause__, StreamError):
            _drop_output()
    except StreamError as e:
        Failure(one_line(e)).show()
        _drop_output()
        code = 1
    except (click.Abort, KeyboardInterrupt):
        code = INTERRUPTED
    except BrokenPipeError:  # the reader went away
        _drop_output()
        code = 1
    gc.freeze()  # nothing that ends with the process is worth looking for
    # An interrupt that passed through an exec of source (dataclasses are made by it) leaves a mark, by which Python run
    # with -m ends by the signal instead of the code, although it was caught since. Another exec takes the mark away.
    exec("")
    sys.exit(code)


def _drop_output() -> None:
    """What could not be written is tried again when Python ends, and must not complain then."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
