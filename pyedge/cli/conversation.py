"""A conversation of `pyedge chat`: the turns, the system message and the settings, and how they are kept in a file.

Owns the data and its rules; shows nothing and runs no model.
"""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyedge import store
from pyedge.engine.sampling_params import SamplingParams

FORMAT = 1  # of saved files
MAX_FILE = 64 << 20  # bytes; a conversation is text

SETTINGS = ("temperature", "top_k", "top_p", "min_p", "repeat_penalty", "max_tokens", "seed", "stop")

_ALIASES = {"temp": "temperature", "n": "max_tokens"}  # of options: what was typed at the start is typed again

Message = dict[str, str]


@dataclass
class Exchange:
    """What the user said, and the answer."""

    user: str
    answer: str
    stopped: bool = False  # the answer was cut by the user


@dataclass
class Conversation:
    system: str | None = None
    exchanges: list[Exchange] = field(default_factory=list)
    unanswered: str | None = None  # said last, but without an answer: an error, a full context, an early Ctrl-C
    settings: dict[str, Any] = field(default_factory=dict)  # those that differ from SamplingParams' defaults

    def messages(self, user: str | None = None) -> list[Message]:
        """What the chat template gets; `user` is said last."""
        messages = [] if self.system is None else [{"role": "system", "content": self.system}]
        for exchange in self.exchanges:
            messages.append({"role": "user", "content": exchange.user})
            messages.append({"role": "assistant", "content": exchange.answer})
        if user is not None:
            messages.append({"role": "user", "content": user})
        return messages

    def alone(self, user: str) -> list[Message]:
        """What the chat template would get if nothing had been said before."""
        return Conversation(self.system).messages(user)

    def params(self) -> SamplingParams:
        return SamplingParams(**self.settings)

    def set(self, name: str, text: str) -> None:
        """Changes a setting to what `text` says; `default` undoes that. ValueError if it says nothing sound."""
        option = name.lstrip("-").replace("-", "_")
        name = _ALIASES.get(option, option)
        if name not in SETTINGS:
            raise ValueError(f"{name}: is no setting; there are {', '.join(SETTINGS)}, stats")
        changed = {k: v for k, v in self.settings.items() if k != name}
        if text != "default":
            changed[name] = _value(name, text)
        SamplingParams(**changed)
        self.settings = changed

    def take_back(self) -> str | None:
        """What the user said last, taken out together with its answer, to be said again. None if nothing was said."""
        if self.unanswered is not None:
            said, self.unanswered = self.unanswered, None
            return said
        return self.exchanges.pop().user if self.exchanges else None

    def clear(self) -> None:
        """Forgets what was said; the system message and the settings stay."""
        self.exchanges, self.unanswered = [], None

    def trim(self, fits: Callable[[list[Message]], bool]) -> int:
        """Drops the oldest exchanges, at least one, until the rest fits. Returns how many."""
        dropped = 0
        while self.exchanges and (dropped == 0 or not fits(self.messages(self.unanswered))):
            del self.exchanges[0]
            dropped += 1
        return dropped

    # ---- files -------------------------------------------------------------------------------------------------------

    def save(self, path: Path, model: str) -> None:
        """Writes the conversation. A file that is none is not overwritten: a slip must not cost somebody's notes."""
        if path.exists():
            try:
                _read(path)
            except ValueError:
                raise ValueError(f"{path}: is there already and is no saved chat; give another name") from None
        document = {
            "pyedge_chat": FORMAT,
            "model": model,
            "system": self.system,
            "settings": self.settings,
            "messages": [
                message
                for e in self.exchanges
                for message in (
                    {"role": "user", "content": e.user},
                    {"role": "assistant", "content": e.answer} | ({"stopped": True} if e.stopped else {}),
                )
            ],
        }
        store.write_atomically(path, (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode())

    def load(self, path: Path) -> str | None:
        """Takes the place of what is here. Returns the model the file was saved with. Changes nothing on an error."""
        document = _read(path)
        system, settings, messages = (document.get(k) for k in ("system", "settings", "messages"))
        if not (system is None or isinstance(system, str)):
            raise ValueError(f"{path}: `system` is no text")
        if not isinstance(settings, dict) or not settings.keys() <= set(SETTINGS):
            raise ValueError(f"{path}: `settings` has names other than {', '.join(SETTINGS)}")
        try:
            SamplingParams(**settings)
        except ValueError as e:
            raise ValueError(f"{path}: `settings`: {e}") from None
        exchanges = []
        if not isinstance(messages, list) or len(messages) % 2:
            raise ValueError(f"{path}: `messages` is no list of pairs of user and assistant")
        for user, assistant in zip(messages[::2], messages[1::2], strict=True):
            if not (_is_message(user, "user") and _is_message(assistant, "assistant")):
                raise ValueError(f"{path}: `messages` do not alternate between user and assistant, each with a text")
            exchanges.append(Exchange(user["content"], assistant["content"], assistant.get("stopped") is True))
        self.system, self.settings, self.exchanges, self.unanswered = system, settings, exchanges, None
        model = document.get("model")
        return model if isinstance(model, str) else None


def _is_message(message: object, role: str) -> bool:
    return isinstance(message, dict) and message.get("role") == role and isinstance(message.get("content"), str)


def _read(path: Path) -> dict[str, Any]:
    """A saved file's document, if it is one. ValueError if not."""
    if not stat.S_ISREG(path.stat().st_mode):
        raise ValueError(f"{path}: is no regular file, and no saved chat")  # reading a device may never end
    if path.stat().st_size > MAX_FILE:
        raise ValueError(f"{path}: is larger than {MAX_FILE >> 20} MB and no saved chat")
    try:
        document = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict) or document.get("pyedge_chat") != FORMAT:
        raise ValueError(f"{path}: is no chat that this version saved")
    return document


def _value(name: str, text: str) -> Any:
    """A setting's value as typed: a number, `none`, or for `stop` a text or a JSON list of texts."""
    if name == "stop":
        if text[:1] in ('"', "["):
            try:
                return json.loads(text)
            except ValueError:
                raise ValueError(f'stop: {text} is no JSON; write it as "\\n\\n" or ["one", "two"]') from None
        return text
    if text == "none" and name in ("seed", "max_tokens"):
        return None
    kind = int if name in ("top_k", "max_tokens", "seed") else float
    try:
        return kind(text)
    except ValueError:
        raise ValueError(f"{name} must be {'an integer' if kind is int else 'a number'}, not {text!r}") from None
