"""The page pool against a plain model of it: contents are found when and only when they are there."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from pyedge.engine.pages import PagePool

SIZE = 2


def fill(pool: PagePool, tokens: list[int]) -> list[int]:
    """The block table of a sequence: what is cached is held, the rest allocated and published."""
    pages = pool.match(tokens, len(tokens))
    pool.hold(pages)
    for i in range(len(pages), pool.pages_for(len(tokens))):
        pages.append(pool.allocate())
        part = tuple(tokens[i * SIZE : (i + 1) * SIZE])
        if len(part) == SIZE:
            pages[i] = pool.publish(pages[i], pages[i - 1] if i else None, part)
    return pages


def test_prefix_is_found_after_release() -> None:
    pool = PagePool(8, SIZE)
    pages = fill(pool, [1, 2, 3, 4, 5])
    assert len(pages) == 3
    pool.release(pages)
    assert pool.n_used == 0
    assert pool.match([1, 2, 3, 4, 5, 6], 6) == pages[:2]
    assert pool.match([1, 2, 9, 9], 4) == pages[:1]
    assert pool.match([3, 4], 2) == []  # the same tokens elsewhere are something else
    assert pool.match([1, 2, 3, 4], 3) == pages[:1]  # one token short of the second page


def test_pages_without_content_go_first_then_the_least_recent_then_ends_before_beginnings() -> None:
    pool = PagePool(6, SIZE)
    old, new = fill(pool, [1, 2, 3, 4, 5]), fill(pool, [6, 7, 8, 9])
    pool.release(old)
    pool.release(new)
    order = [pool.allocate() for _ in range(6)]
    assert order == [old[2], 5, old[1], old[0], new[1], new[0]]
    assert pool.n_published == 0


def test_one_content_has_one_page() -> None:
    pool = PagePool(4, SIZE)
    first, second = pool.allocate(), pool.allocate()
    assert pool.publish(first, None, (1, 2)) == first
    assert pool.publish(second, None, (1, 2)) == first
    assert pool.n_used == 1
    pool.check_integrity([[first], [first]])


def test_descendants_of_a_forgotten_page_are_not_found_under_its_successor() -> None:
    pool = PagePool(3, SIZE)
    pages = fill(pool, [1, 2, 3, 4])
    pool.release([pages[0]])  # its child is still held
    assert [pool.allocate(), pool.allocate()] == [2, pages[0]]
    assert pool.publish(pages[0], None, (9, 9)) == pages[0]
    assert pool.match([9, 9, 3, 4], 4) == [pages[0]]
    assert pool.publish(2, None, (1, 2)) == 2  # the same content again: a new one, whose child nobody knows
    assert pool.match([1, 2, 3, 4], 4) == [2]


def test_pages_are_found_under_their_salt_only() -> None:
    pool = PagePool(8, SIZE)
    plain, salted = pool.allocate(), pool.allocate()
    assert pool.publish(plain, None, (1, 2)) == plain
    assert pool.publish(salted, None, (1, 2), "a") == salted
    assert pool.match([1, 2], 2) == [plain]
    assert pool.match([1, 2], 2, "a") == [salted]
    assert pool.match([1, 2], 2, "b") == []
    child = pool.allocate()
    assert pool.publish(child, salted, (3, 4), "a") == child
    assert pool.match([1, 2, 3, 4], 4) == [plain]
    assert pool.divergence([1, 9], []) == (1, 2)
    assert pool.divergence([1, 9], [], "b") is None


def test_where_a_near_hit_ends() -> None:
    pool = PagePool(8, 4)
    first = pool.publish(pool.allocate(), None, (1, 2, 3, 4))
    pool.publish(pool.allocate(), first, (5, 6, 7, 8))
    pool.publish(pool.allocate(), first, (5, 9, 9, 9))
    for tokens, found in (
        ([1, 2, 3, 4, 5, 6, 7, 0], (7, 8)),  # of the longest that goes on like them
        ([1, 2, 3, 4, 5, 0, 7, 8], (5, 6)),
        ([1, 2, 3, 4, 0, 6, 7, 8], (4, 5)),
        ([1, 2, 3, 4, 5, 6], None),  # as far as they go, nothing differs
        ([1, 2, 3, 4], None),
        ([1, 2, 0, 4], (2, 3)),
        ([0, 2, 3, 4], None),  # nothing in common
    ):
        assert pool.divergence(tokens, pool.match(tokens, len(tokens))) == found


def test_equal_hashes_are_not_equal_contents() -> None:
    assert hash(-1) == hash(-2)  # CPython's own collision
    pool = PagePool(4, 1)
    page = pool.publish(pool.allocate(), None, (-1,))
    assert pool.match([-2], 1) == []
    assert pool.match([-1], 1) == [page]


def test_faults_are_found() -> None:
    pool = PagePool(2, SIZE)
    page = pool.allocate()
    with pytest.raises(AssertionError, match="holders"):
        pool.check_integrity([])
    pool.release([page])
    with pytest.raises(AssertionError, match="nobody"):
        pool.release([page])
    with pytest.raises(ValueError, match="at least one page"):
        PagePool(0, 16)


class PoolMachine(RuleBasedStateMachine):
    """Random sequences over few tokens, so that prefixes meet; `what` knows each page's whole beginning."""

    @initialize(n_pages=st.integers(3, 9))
    def begin(self, n_pages: int) -> None:
        self.pool = PagePool(n_pages, SIZE)
        self.held: list[list[int]] = []
        self.what: dict[int, list[int]] = {}

    @rule(tokens=st.lists(st.integers(0, 1), min_size=1, max_size=9))
    def arrive(self, tokens: list[int]) -> None:
        pool = self.pool
        cached = pool.match(tokens, len(tokens))
        for i, page in enumerate(cached):
            assert self.what[page] == tokens[: (i + 1) * SIZE]
        if pool.pages_for(len(tokens)) - len(cached) + pool.n_idle(cached) > pool.n_free:
            return
        before = pool.n_free
        idle = pool.n_idle(cached)
        pages = fill(pool, tokens)
        assert pages[: len(cached)] == cached
        assert pool.n_free == before - idle - len(set(pages) - set(cached))
        for i, page in enumerate(pages):
            self.what[page] = tokens[: (i + 1) * SIZE]
        self.held.append(pages)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        self.pool.release(self.held.pop(data.draw(st.integers(0, len(self.held) - 1))))

    @invariant()
    def sound(self) -> None:
        self.pool.check_integrity(self.held)
        assert self.pool.n_used == len({page for pages in self.held for page in pages})


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=40)
