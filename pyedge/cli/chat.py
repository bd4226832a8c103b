"""`pyedge chat`: a conversation in the terminal.

Owns the loop: reading what is said, showing the answer as it is written, and the slash commands. Without a terminal on
standard input it reads a line at a time and ends with the input; without one on standard output it writes plain text.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pyedge.cli import VERBOSE, one_line, verbose
from pyedge.cli.options import load, locate, model_options, sampling, sampling_options
from pyedge.cli.streams import StreamError, checked_line, dumb, text_of
from pyedge.errors import ModelError

if TYPE_CHECKING:
    from pyedge.cli.conversation import Conversation, Message
    from pyedge.llm import LLM

COMMANDS = {
    "/help": ("", "this list"),
    "/system": ("[TEXT]", "set the system message, which holds from the next answer on; `-` removes it"),
    "/retry": ("", "take back the last answer and have another, or say again what got none"),
    "/clear": ("", "forget what was said"),
    "/trim": ("", "forget the oldest turns, until half the context is free"),
    "/save": ("FILE", "write the conversation to a file"),
    "/load": ("FILE", "go on with one from a file"),
    "/set": ("[NAME VALUE]", "change a setting, or list them; VALUE `default` undoes a change"),
    "/exit": ("", "leave; so does Ctrl-D"),
}

KEYS = """\
Enter sends; Alt-Enter, or a backslash at the end of a line, begins another line. Ctrl-C stops an answer.
To say something that begins with /, put a space before it."""


@click.command(
    epilog="\b\nExamples:\n  pyedge chat\n  pyedge chat model.gguf --system 'Answer in one sentence.' --temp 0.3"
)
@click.argument("model", required=False)
@click.option("--system", metavar="TEXT", help="The system message.")
@sampling_options
@model_options
def command(model: str | None, system: str | None, **options: Any) -> None:
    """Talk with MODEL: a path to a GGUF, or a name. [smollm2:135m, fetched on first use]

    /help in the conversation lists its commands.
    """
    from pyedge import store
    from pyedge.cli.conversation import SETTINGS, Conversation

    model = store.DEFAULT_MODEL if model is None else model
    params = sampling(options)
    system = None if system is None else text_of(system, "--system")
    conversation = Conversation(
        system, settings={k: getattr(params, k) for k in SETTINGS if options[k] not in (None, ())}
    )
    llm = load(locate(model), options)
    if not llm.tokenizer.chat_template:
        raise ModelError(
            f'{model}: has no chat template, so it cannot chat; "pyedge run --raw {model} TEXT" continues a text'
        )
    chat = Chat(llm, model, conversation)
    if chat.on_terminal:
        click.echo(
            f"{click.style(model, bold=True)} ({llm.isa}, {llm.threads} thread{'s' * (llm.threads != 1)},"
            f" {llm.max_model_len} tokens). /help lists commands, Ctrl-D leaves."
        )
    chat.loop()
    if chat.failed and not chat.on_terminal:
        raise click.exceptions.Exit(1)


verbose(command)


class Chat:
    """A conversation under way."""

    def __init__(self, llm: LLM, model: str, conversation: Conversation) -> None:
        self._llm = llm
        self._model = model
        self._conversation = conversation
        self._stats = bool(click.get_current_context().meta.get(VERBOSE))
        self.on_terminal = sys.stdin.isatty()
        self.failed = False

    def loop(self) -> None:
        read = _terminal_reader() if self.on_terminal and sys.stdout.isatty() and not dumb() else _plain_reader
        while True:
            try:
                said = read()
                if said.startswith("/"):
                    if self._obey(said.strip()):
                        return
                elif said.strip():
                    self._say(said.strip())
            except EOFError:
                return
            except KeyboardInterrupt:
                if not self.on_terminal:
                    raise
                self._note("/exit or Ctrl-D leaves")
            except (BrokenPipeError, StreamError):
                raise
            except (ModelError, ValueError, MemoryError, OSError) as e:
                self._fail(one_line(e))

    # ---- answers -----------------------------------------------------------------------------------------------------

    def _say(self, said: str) -> None:
        """Has the model answer, shows that, and keeps both."""
        conversation, llm = self._conversation, self._llm
        messages, params = conversation.messages(said), conversation.params()
        conversation.unanswered = None
        if (n := self._n_tokens(conversation.alone(said))) >= (most := llm.max_model_len):
            with_system = " with the system message" if conversation.system is not None else ""
            self._fail(f"this message{with_system} has {n} tokens, the context {most}: shorten it{self._more()}")
            return
        conversation.unanswered = said
        if self._n_tokens(messages) >= most:
            self._fail(f"{self._full()}; then /retry says this again")
            return
        answer, reason, stopped, times = "", None, False, [time.perf_counter()]
        events = llm.stream_chat(messages, params)
        try:
            with self._display() as show:
                for event in events:
                    if event.token_id is not None:
                        times.append(time.perf_counter())
                    answer += event.text
                    show(event.text)
                    reason = event.finish_reason or reason
        except KeyboardInterrupt:
            stopped = True
            if not self.on_terminal:
                raise
        finally:
            events.close()  # ends the request, if that is still needed
        if not answer and stopped:
            self._note("stopped; /retry says it again")
            return
        from pyedge.cli.conversation import Exchange

        conversation.exchanges.append(Exchange(said, answer, stopped))
        conversation.unanswered = None
        n_tokens = len(times) - 1
        if stopped:
            self._note("stopped; what there is stays in the conversation")
        elif reason == "length" and n_tokens == params.max_tokens:
            self._note(f"cut at {n_tokens} tokens, which is what max_tokens allows")
        elif reason == "length":
            self._note(self._full())
        if self._stats and n_tokens:
            speed = f", then {(n_tokens - 1) / (times[-1] - times[1]):.1f} tokens/s" if n_tokens > 1 else ""
            self._note(f"{n_tokens} tokens, the first after {times[1] - times[0]:.2f} s{speed}")

    def _full(self) -> str:
        n = self._llm.max_model_len
        return f"the context of {n} tokens is full: /trim forgets the oldest turns, /clear all of them{self._more()}"

    def _more(self) -> str:
        n, most = self._llm.max_model_len, self._llm.plan.hparams.context_length
        return f"; --ctx {most} at the start gives more" if n < most else ""

    def _n_tokens(self, messages: list[Message]) -> int:
        return len(self._llm.tokenizer.apply_chat_template(messages)) if messages else 0

    @contextmanager
    def _display(self) -> Iterator[Callable[[str], None]]:
        """Shows the pieces of an answer: Markdown on a terminal, else the text as it is."""
        from pyedge.cli.terminal import harmless, silent_keys

        if sys.stdout.isatty() and not dumb():
            from rich.console import Console

            from pyedge.cli.markdown import MarkdownStream

            console = Console()
            try:
                with silent_keys(), MarkdownStream(console) as stream:
                    yield stream.feed
            finally:
                console.print()
            return

        def write(text: str) -> None:
            sys.stdout.write(harmless(text) if sys.stdout.isatty() else text)
            sys.stdout.flush()

        try:
            yield write
        finally:
            write("\n")

    def _note(self, text: str) -> None:
        click.secho(text, dim=True, err=True)

    def _fail(self, text: str) -> None:
        self.failed = True
        click.echo(f"error: {text}", err=True)

    # ---- commands ----------------------------------------------------------------------------------------------------

    def _obey(self, line: str) -> bool:
        """Does what a slash command says; true if that is to leave."""
        name, *rest = line.split(maxsplit=1)
        argument = rest[0] if rest else ""
        if name == "/exit":
            return True
        if name not in COMMANDS:
            self._fail(f"{name}: is no command; /help lists them, and a space before the / makes it something said")
            return False
        getattr(self, "_" + name[1:])(argument)
        return False

    def _help(self, _: str) -> None:
        for name, (argument, text) in COMMANDS.items():
            click.echo(f"{f'{name} {argument}':20} {text}")
        click.echo(KEYS)

    def _system(self, text: str) -> None:
        if text:
            self._conversation.system = None if text == "-" else text
        elif self._conversation.system is None:
            self._note("there is no system message")
        else:
            click.echo(self._conversation.system)

    def _retry(self, _: str) -> None:
        said = self._conversation.take_back()
        if said is None:
            self._note("nothing was said yet")
        else:
            self._say(said)

    def _clear(self, _: str) -> None:
        self._conversation.clear()
        self._note("all is forgotten, but for the system message and the settings")

    def _trim(self, _: str) -> None:
        conversation = self._conversation
        dropped = conversation.trim(lambda messages: self._n_tokens(messages) <= self._llm.max_model_len // 2)
        if dropped == 0:
            self._note("there is no turn to forget")
            return
        used = self._n_tokens(conversation.messages(conversation.unanswered))
        again = "; /retry says again what got no answer" if conversation.unanswered is not None else ""
        self._note(f"the oldest {dropped} of the answers are forgotten, {used} tokens of context are used{again}")

    def _save(self, name: str) -> None:
        path = _path(name)
        self._conversation.save(path, self._model)
        self._note(f"saved {self._turns()} to {path}")

    def _load(self, name: str) -> None:
        path = _path(name)
        model = self._conversation.load(path)
        other = f"; it was had with {model}" if model not in (None, self._model) else ""
        self._note(f"loaded {self._turns()} from {path}{other}")

    def _turns(self) -> str:
        n = len(self._conversation.exchanges)
        return f"{n} answer{'s' * (n != 1)}"

    def _set(self, argument: str) -> None:
        from pyedge.cli.conversation import SETTINGS

        name, _, value = argument.partition(" ")
        if not argument:
            params = self._conversation.params()
            for setting in SETTINGS:
                current = getattr(params, setting)
                click.echo(f"{setting:15} {list(current) if setting == 'stop' else current}")
            click.echo(f"{'stats':15} {'on' if self._stats else 'off'}")
        elif not value.strip():
            raise ValueError(f"/set {name}: has no value; write /set NAME VALUE")
        elif name == "stats":
            if value.strip() not in ("on", "off"):
                raise ValueError(f"stats is on or off, not {value.strip()}")
            self._stats = value.strip() == "on"
        else:
            self._conversation.set(name, value.strip())


def _path(name: str) -> Path:
    if not name:
        raise ValueError("the command needs the name of a file")
    return Path(name).expanduser()


# ---- reading ---------------------------------------------------------------------------------------------------------


def _plain_reader() -> str:
    """A line of standard input, and those that a backslash at its end joins to it."""
    lines = []
    if sys.stdin.isatty():
        click.echo("> ", nl=False, err=True)
    while line := sys.stdin.readline():
        lines.append(line.removesuffix("\n"))
        if not lines[-1].endswith("\\"):
            break
        lines[-1] = lines[-1][:-1]
    if not lines:
        raise EOFError
    return checked_line("\n".join(lines))


def _terminal_reader() -> Callable[[], str]:
    """Several lines with editing, a history that lasts, and completion of commands."""
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import WordCompleter
    from prompt_toolkit.formatted_text import FormattedText
    from prompt_toolkit.history import FileHistory, History, InMemoryHistory
    from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent

    from pyedge import store
    from pyedge.cli.conversation import SETTINGS

    keys = KeyBindings()

    @keys.add("enter")
    def _(event: KeyPressEvent) -> None:
        buffer = event.current_buffer
        if buffer.complete_state is not None and buffer.complete_state.current_completion is not None:
            buffer.complete_state = None  # takes the completion; the next Enter sends
        elif buffer.document.char_before_cursor == "\\" and buffer.document.is_cursor_at_the_end:
            buffer.delete_before_cursor()
            buffer.insert_text("\n")
        else:
            buffer.validate_and_handle()

    @keys.add("escape", "enter")
    def _(event: KeyPressEvent) -> None:
        event.current_buffer.insert_text("\n")

    @keys.add("c-c")
    @keys.add("<sigint>")
    def _(event: KeyPressEvent) -> None:
        if event.current_buffer.text:
            event.current_buffer.reset()
        else:
            event.app.exit(exception=KeyboardInterrupt)

    history: History
    try:
        path = store.history_file()
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # what people say is theirs alone
        history = FileHistory(path)
    except OSError:
        history = InMemoryHistory()
    session: PromptSession[str] = PromptSession(
        multiline=True,
        key_bindings=keys,
        history=history,
        completer=WordCompleter([*COMMANDS, *(f"/set {name}" for name in (*SETTINGS, "stats"))], sentence=True),
        complete_while_typing=False,
        prompt_continuation=lambda width, line, wraps: "" if wraps else "... ",
    )
    return lambda: session.prompt(FormattedText([("bold", ">>> ")]))
