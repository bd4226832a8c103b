"""A model's thoughts, apart from what it says.

Owns `<think>...</think>` at the beginning of an answer, or a thought that the template has begun itself: it becomes
`reasoning_content`. What comes behind it is another parser's. A thought that never ends is all thought.
"""

from __future__ import annotations

from pyedge.server.message import Delta, MessageParser, merge_deltas

OPEN, CLOSE = "<think>", "</think>"


class ReasoningParser:
    def __init__(self, rest: MessageParser, *, thinking: bool = False) -> None:
        """rest: what reads the text behind the thought. thinking: the prompt ends inside of one."""
        self._rest = rest
        self._held = ""  # text that may yet turn out to be a mark, or white space before one
        self._state = "thought" if thinking else "start"
        self._said = False  # some of the thought was given out

    def push(self, text: str) -> Delta:
        if self._state == "rest":
            return self._rest.push(text)
        self._held += text
        delta: Delta = {}
        if self._state == "start":
            begun = self._held.lstrip()
            if begun.startswith(OPEN):
                self._state, self._held = "thought", begun[len(OPEN) :]
            elif OPEN.startswith(begun):
                return {}
            else:
                return self._leave(self._held)
        if self._state == "thought":
            end = self._held.find(CLOSE)
            if end < 0:
                return self._think(len(self._held) - pending(self._held, CLOSE))
            after = self._held[end + len(CLOSE) :]
            self._held = self._held[:end].rstrip()
            delta = self._think(len(self._held))
            self._state, self._held = "gap", after
        if self._state == "gap" and (after := self._held.lstrip()):  # the lines between are neither's
            return {**delta, **self._leave(after)}
        return delta

    def finish(self, reason: str) -> tuple[Delta, str]:
        delta: Delta = {}
        if self._state == "start":
            delta = self._leave(self._held)
        elif self._state == "thought" and (kept := self._held.rstrip()):
            delta = self._give(kept)
        rest, reason = self._rest.finish(reason)
        return merge_deltas([delta, rest]), reason

    def _think(self, end: int) -> Delta:
        """Gives out the thought up to there, but for white space at its end."""
        said = self._held[:end].rstrip()
        self._held = self._held[len(said) :]
        return self._give(said)

    def _give(self, thought: str) -> Delta:
        thought = thought if self._said else thought.lstrip()
        self._said = self._said or bool(thought)
        return {"reasoning_content": thought} if thought else {}

    def _leave(self, text: str) -> Delta:
        self._state, self._held = "rest", ""
        return self._rest.push(text) if text else {}


def pending(text: str, mark: str) -> int:
    """How many characters at the text's end may be the beginning of a mark."""
    for n in range(min(len(mark) - 1, len(text)), 0, -1):
        if text.endswith(mark[:n]):
            return n
    return 0
