"""Stop strings in a stream of text.

Owns the text that is held back because a stop string may have begun in it. The stop string that is complete first
wins, and of two that end together the longer, so the result does not depend on how the text was cut into pushes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable


class StopMatcher:
    """An Aho-Corasick automaton over the stop strings: a character costs the same for one string as for many.

    A state is the longest end of the text so far that begins a stop string; its length is what must be held back.
    """

    def __init__(self, stops: Iterable[str]) -> None:
        self.stopped = False
        self._held = ""  # not yet given out; its end is the state
        self._state = 0
        self._next: list[dict[str, int]] = [{}]
        self._shorter = [0]  # the state of the longest proper suffix
        self._length = [0]
        self._match = [0]  # length of the longest stop string that ends here, 0: none
        if not isinstance(stops, Iterable):
            raise ValueError(f"the stop strings must be a list of texts, not {type(stops).__name__}")
        for stop in [stops] if isinstance(stops, str) else stops:
            self._add(stop)
        self._link()

    def push(self, text: str) -> str:
        """What can be given out now: nothing of a stop string, and nothing after one."""
        if self.stopped:
            return ""
        if len(self._next) == 1:  # no stop strings
            return text
        self._held += text
        for end, character in enumerate(text, len(self._held) - len(text) + 1):
            state = self._state
            while state and character not in self._next[state]:
                state = self._shorter[state]
            self._state = state = self._next[state].get(character, 0)
            if self._match[state]:
                self.stopped = True
                return self._give(end - self._match[state], drop=True)
        return self._give(len(self._held) - self._length[self._state])

    def finish(self) -> str:
        """What was held back, if the text ends here."""
        self._state = 0
        return self._give(len(self._held))

    def _give(self, end: int, drop: bool = False) -> str:
        given, self._held = self._held[:end], "" if drop else self._held[end:]
        return given

    def _add(self, stop: str) -> None:
        if not isinstance(stop, str) or not stop:
            raise ValueError(f"a stop string must be text of at least one character, not {stop!r}")
        state = 0
        for character in stop:
            if character not in self._next[state]:
                self._next[state][character] = len(self._next)
                self._next.append({})
                self._shorter.append(0)
                self._length.append(self._length[state] + 1)
                self._match.append(0)
            state = self._next[state][character]
        self._match[state] = len(stop)

    def _link(self) -> None:
        """Fills in shorter states and their matches, shortest states first."""
        queue = deque(self._next[0].values())
        while queue:
            state = queue.popleft()
            shorter = self._shorter[state]
            self._match[state] = self._match[state] or self._match[shorter]
            for character, child in self._next[state].items():
                back = shorter
                while back and character not in self._next[back]:
                    back = self._shorter[back]
                self._shorter[child] = self._next[back].get(character, 0)
                queue.append(child)
