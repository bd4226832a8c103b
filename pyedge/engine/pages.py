"""The page pool: which pages of the KV cache are held, by how many requests, and what the full ones contain.

Owns page numbers and their contents' identity; knows no requests, and the keys and values themselves are the core's.

A full page is identified by the chain of tokens up to its end: its own tokens and the page before it. `publish` enters
that identity once the page is computed, `match` finds a prefix's pages again. The index is keyed by the tokens
themselves, so a hit is a comparison of tokens and never of hashes alone. One content has one page: publishing what is
already there returns the page that has it, which holds the same bits (DESIGN 4).

Contents begin at a root, named by a salt: pages are found only by sequences of the same salt.

Released pages keep their content until they are handed out again, least recently released first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence

# (the content before this page, or a salt where nothing is; this page's tokens)
_Identity = tuple[int | str, tuple[int, ...]]


class PagePool:
    """`n_pages` pages of `page_size` tokens each. Every operation takes constant time per page."""

    def __init__(self, n_pages: int, page_size: int) -> None:
        if n_pages < 1 or page_size < 1:
            raise ValueError(f"a page pool needs at least one page of one token, not {n_pages} of {page_size}")
        self.n_pages = n_pages
        self.page_size = page_size
        self._holders = [0] * n_pages
        self._content = [0] * n_pages  # of published pages: a number from 1 up that no other content ever had
        self._identity: list[_Identity | None] = [None] * n_pages  # None: not published
        self._index: dict[_Identity, int] = {}
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(n_pages))  # the next to hand out comes first
        self._last_content = 0

    @property
    def n_free(self) -> int:
        """Pages that nobody holds, with or without content."""
        return len(self._free)

    @property
    def n_used(self) -> int:
        return self.n_pages - len(self._free)

    @property
    def n_published(self) -> int:
        """Pages whose content can be found again."""
        return len(self._index)

    def pages_for(self, n_tokens: int) -> int:
        return -(-n_tokens // self.page_size)

    def match(self, tokens: Sequence[int], n_tokens: int, salt: str = "") -> list[int]:
        """The published pages that hold the longest beginning of tokens[:n_tokens]. They are not yet held."""
        pages: list[int] = []
        before: int | str = salt
        for start in range(0, n_tokens - self.page_size + 1, self.page_size):
            page = self._index.get((before, tuple(tokens[start : start + self.page_size])))
            if page is None:
                break
            pages.append(page)
            before = self._content[page]
        return pages

    def divergence(self, tokens: Sequence[int], matched: Sequence[int], salt: str = "") -> tuple[int, int] | None:
        """Where tokens first differ from the published page that goes on longest like them behind those that `match`
        found: the position, and the token there. None: nothing goes on like them for a single token. It looks at every
        page, so it is for a log that someone reads."""
        start = len(matched) * self.page_size
        ours = tuple(tokens[start : start + self.page_size])
        before = self._content[matched[-1]] if matched else salt
        longest, found = -1 if matched else 0, None
        for came_before, theirs in self._index:
            if came_before == before:
                equal = (a == b for a, b in zip(ours, theirs, strict=False))
                n = next((i for i, same in enumerate(equal) if not same), len(ours))
                if n == len(ours):
                    return None
                if n > longest:
                    longest, found = n, (start + n, theirs[n])
        return found

    def is_shared(self, page: int) -> bool:
        """Whether it has several holders: none of them may write to it."""
        return self._holders[page] > 1

    def n_idle(self, pages: Iterable[int]) -> int:
        """How many of these pages nobody holds: holding them takes as many from the free ones."""
        return sum(self._holders[page] == 0 for page in pages)

    def hold(self, pages: Iterable[int]) -> None:
        """One more holder for each of these pages."""
        for page in pages:
            if self._holders[page] == 0:
                del self._free[page]
            self._holders[page] += 1

    def allocate(self) -> int:
        """A page with one holder and nothing in it; what it held is forgotten. The caller knows that one is free."""
        page, _ = self._free.popitem(last=False)
        self._forget(page)
        self._holders[page] = 1
        return page

    def release(self, pages: Sequence[int]) -> None:
        """One holder less for each of these pages of one sequence."""
        for page in reversed(pages):  # a prefix is worth nothing without its beginning, so its end is reused first
            if self._holders[page] < 1:
                raise AssertionError(f"page {page} is released but nobody holds it")
            self._holders[page] -= 1
            if self._holders[page] == 0:
                self._free[page] = None
                if self._identity[page] is None:
                    self._free.move_to_end(page, last=False)

    def publish(self, page: int, previous: int | None, tokens: tuple[int, ...], salt: str = "") -> int:
        """Enters a held page that was just filled with `tokens` and follows the page `previous` (None: the salt).

        Returns the page that has this content. If that is another one, the caller's hold has moved to it.
        """
        if previous is not None and self._identity[previous] is None:
            return page  # nobody could find it
        identity = (salt if previous is None else self._content[previous], tokens)
        other = self._index.setdefault(identity, page)
        if other == page:
            self._last_content += 1
            self._content[page] = self._last_content
            self._identity[page] = identity
        else:
            self.hold([other])
            self.release([page])
        return other

    def check_integrity(self, tables: Iterable[Sequence[int]]) -> None:
        """Raises AssertionError unless the books agree with each other and with the block tables of all holders."""
        counts = [0] * self.n_pages
        for table in tables:
            for page in table:
                counts[page] += 1
        for page in range(self.n_pages):
            if counts[page] != self._holders[page]:
                raise AssertionError(f"page {page}: {self._holders[page]} holders, but {counts[page]} tables list it")
            if (page in self._free) != (counts[page] == 0):
                raise AssertionError(f"page {page}: {counts[page]} holders, free: {page in self._free}")
            identity = self._identity[page]
            if identity is not None and self._index.get(identity) != page:
                raise AssertionError(f"page {page} is published, but the index does not lead to it")
        if len(self._index) != sum(identity is not None for identity in self._identity):
            raise AssertionError("the index leads to pages that are not published")

    def _forget(self, page: int) -> None:
        identity = self._identity[page]
        if identity is not None:
            del self._index[identity]
            self._identity[page] = None
            self._content[page] = 0
