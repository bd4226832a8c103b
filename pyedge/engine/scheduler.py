"""Which tokens of which requests run in the next step, and which pages they use.

Owns the queues, the slots and every request's block table; runs nothing and imports no numpy.

A step takes every running request's next token first, then prompt tokens, oldest request first, up to its budget: so
many tokens if nobody waits for a next one, or else as many as keep the step short (pace.py). A request is admitted when
the pages of all its tokens are free, and takes one more page each time it fills one. When there is none, the youngest
running request gives its pages back and is computed again later; what it has generated is part of its tokens by then,
so its output does not change. The oldest one always gets on, so all of them end.

"Oldest" is by priority, then by arrival: within one priority it is first come, first served, and nobody waits for ever;
a lower number goes first for as long as there are such.

Several answers to one prompt are a group. Its first one reads the prompt; the others, its heirs, draw their own first
tokens from the same logits and go on from the same pages. Where a page is shared and not full, whoever writes to it
takes a copy, and the last one that is left writes to the page itself. Heirs for whom there is no slot or page wait on
as anybody does, and find the prompt in the prefix cache.
"""

from __future__ import annotations

import logging
import time
from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from pyedge.engine.pace import Budget, Pace, Work
from pyedge.engine.pages import PagePool
from pyedge.engine.request import FinishReason, Request, Status

log = logging.getLogger("pyedge.engine")

_order = attrgetter("order")


@dataclass(frozen=True)
class Scheduled:
    """The tokens [start, end) of a request are to be computed, and logits after the last n_rows of them. If they are
    its last ones, the next one is sampled, by the request and by each of its heirs."""

    request: Request
    start: int
    end: int
    n_rows: int
    heirs: tuple[Request, ...] = ()

    @property
    def ends(self) -> bool:
        return self.end == self.request.n_tokens


def total(work: Sequence[Scheduled]) -> Work:
    """What a step has to do: the sum of its pieces."""
    tokens = rows = keys = 0
    reads = False
    for item in work:  # with no call for each: it is done in every step
        n = item.end - item.start
        tokens += n
        rows += item.n_rows
        keys += item.end * (item.end + 1) - item.start * (item.start + 1)
        reads = reads or n > 1 or not item.n_rows
    return Work(tokens, rows, keys // 2, reads)


class Scheduler:
    def __init__(
        self,
        pool: PagePool,
        *,
        max_model_len: int,  # tokens of one sequence, prompt and output
        max_sequences: int,  # that run at once
        max_tokens: int,  # per step
        max_rows: int | None = None,  # of logits, per step; None: one for each token
        prefix_cache: bool = True,
        pace: Pace | None = None,  # None: a step's tokens are all of its budget
        copy_page: Callable[[int, int], None] = lambda source, target: None,  # of the core
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        if not 1 <= max_sequences <= max_tokens:
            raise ValueError(f"a step of {max_tokens} tokens cannot hold one of each of {max_sequences} sequences")
        self.pool = pool
        self.max_model_len = max_model_len
        self.max_tokens = max_tokens
        self.max_rows = max_tokens if max_rows is None else max_rows
        self.prefix_cache = prefix_cache
        self._pace = pace
        self._copy_page = copy_page
        self._clock = clock
        self.waiting: list[Request] = []  # both in the requests' order
        self.running: list[Request] = []
        self.lent: tuple[int, list[int]] | None = None  # to work outside the queues: a slot and pages
        self._slots = list(reversed(range(max_sequences)))

    @property
    def capacity(self) -> int:
        """Tokens that a sequence can have when it is alone."""
        return min(self.max_model_len, self.pool.n_pages * self.pool.page_size)

    def room(self, n_prompt: int) -> int:
        """Tokens that can follow a prompt. ValueError if there are none: a prompt is never cut."""
        if n_prompt < self.capacity:
            return self.capacity - n_prompt
        if self.capacity == self.max_model_len:
            limit, remedy = f"the context is {self.max_model_len} tokens", "max_model_len"
        else:
            pages = f"{self.pool.n_pages} pages of {self.pool.page_size}"
            limit, remedy = f"the KV cache holds {self.capacity} ({pages})", "kv_memory"
        raise ValueError(
            f"the prompt has {n_prompt} tokens, {limit}, and an answer needs at least 1; "
            f"shorten the prompt or raise {remedy}"
        )

    def add(self, request: Request) -> None:
        """Queues a request whose tokens, prompt and output, stay within `capacity`."""
        request.group.append(request)
        insort(self.waiting, request, key=_order)

    def schedule(self) -> list[Scheduled]:
        """The work of the next step, with its pages and slots taken."""
        if self._pace is not None:
            self._pace.forget()
        work = []
        for request in [r for r in self.running if r.n_tokens - r.n_computed == 1]:
            # A request preempted here is the youngest, so it comes later in this loop and has no work yet.
            if request.status is Status.RUNNING and self._extend(request):
                work.append(Scheduled(request, request.n_computed, request.n_tokens, 1))
        readers = [r for r in self.running if r.n_tokens - r.n_computed > 1]
        if readers or self.waiting:
            self._add_prompts(readers, work)
        return self._with_heirs(work)

    def _add_prompts(self, readers: list[Request], work: list[Scheduled]) -> None:
        """Adds parts of prompts to the work: of those that are being read, and of those whose turn comes."""
        hurry = any(item.request.watched for item in work)
        left, rows = self.max_tokens - len(work), self.max_rows - len(work)
        budget = Budget(left, rows, self._pace if hurry else None, total(work))
        for request in readers:
            self._plan(request, budget, work)
        for request in list(self.waiting):
            if self._awaits_another(request):
                continue
            if budget.spent or not self._admit(request):
                break
            self.waiting.remove(request)
            self._plan(request, budget, work)

    def advance(self, request: Request, end: int) -> None:
        """The core has computed the request's tokens up to `end`: its full pages can be shared from now on."""
        size = self.pool.page_size
        first, last = request.n_computed // size, end // size
        request.n_computed = end
        if not self.prefix_cache:
            return
        for i in range(first, last):
            tokens = tuple(request.token_ids[i * size : (i + 1) * size])
            page = self.pool.publish(request.pages[i], request.pages[i - 1] if i else None, tokens, request.cache_salt)
            if page != request.pages[i]:
                request.pages[i] = page
                request.n_pages_written = min(request.n_pages_written, i)

    def inherit(self, request: Request, heir: Request) -> None:
        """The heir goes on from where the request is, on the same pages: its prompt was just computed."""
        self.waiting.remove(heir)
        heir.pages = list(request.pages)
        self.pool.hold(heir.pages)
        heir.n_computed = request.n_computed
        heir.metrics.cached_tokens = request.metrics.cached_tokens
        self._run(heir)

    def finish(self, request: Request, reason: FinishReason) -> None:
        if request.status is Status.RUNNING:
            self.running.remove(request)
            self._vacate(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        request.finish_reason = reason
        request.status = Status.FINISHED  # last: other threads look at it

    def borrow(self, n_pages: int) -> tuple[int, list[int]]:
        """A slot and pages for work outside the queues, at the cost of the youngest requests if need be."""
        while not self._slots or self.pool.n_free < n_pages:
            self._preempt(self.running[-1])
        self.lent = self._slots.pop(), [self.pool.allocate() for _ in range(n_pages)]
        return self.lent

    def give_back(self) -> None:
        """Takes back what `borrow` gave, if anything."""
        if self.lent is not None:
            slot, pages = self.lent
            self.lent = None
            self.pool.release(pages)
            self._slots.append(slot)

    def check_integrity(self) -> None:
        """Raises AssertionError unless pool, queues and slots agree; nothing may be lent."""
        self.pool.check_integrity(r.pages for r in self.running)
        slots = sorted([*self._slots, *(r.slot for r in self.running if r.slot is not None)])
        if slots != list(range(len(slots))) or len(slots) != len(self._slots) + len(self.running):
            raise AssertionError(f"slots are lost or held twice: {slots}")
        for queue, status in (self.waiting, Status.WAITING), (self.running, Status.RUNNING):
            if queue != sorted(queue, key=_order) or any(r.status is not status for r in queue):
                raise AssertionError(f"the {status.value} queue is out of order")
        for request in self.waiting:
            if request.pages or request.slot is not None or request.n_computed:
                raise AssertionError(f"request {request.id} holds pages while it waits")
        for request in self.running:
            held = len(request.pages) * self.pool.page_size
            if not request.n_computed < request.n_tokens or request.n_computed > held:
                raise AssertionError(f"request {request.id} has computed more than it has tokens or pages")

    def _plan(self, request: Request, budget: Budget, work: list[Scheduled]) -> None:
        """Plans as many of the request's tokens as the budget allows."""
        start = request.n_computed
        rows_from = request.rows_from
        n = 0 if budget.spent else budget.take(start, request.n_tokens, rows_from)
        if n:
            end = start + n
            work.append(Scheduled(request, start, end, max(0, end - max(start, rows_from))))

    def _awaits_another(self, request: Request) -> bool:
        """Whether another one of its group is to read the prompt for it."""
        if request.n_output:
            return False
        reader = next(r for r in request.group if r.status is not Status.FINISHED and not r.n_output)
        return reader is not request

    def _with_heirs(self, work: list[Scheduled]) -> list[Scheduled]:
        """The same work, with heirs as far as there are slots, and pages for them to go on with."""
        spare = max(0, min(len(self._slots), self.pool.n_free - len(self.running)))
        for i, item in enumerate(work):
            if item.ends and not item.request.n_output and item.request.max_tokens and len(item.request.group) > 1:
                heirs = [r for r in item.request.group if r.status is Status.WAITING and not r.n_output]
                work[i] = replace(item, heirs=tuple(heirs[:spare]))
                spare -= len(work[i].heirs)
        return work

    def _admit(self, request: Request) -> bool:
        """Gives the request a slot and the pages of all its tokens, if there are enough; it runs from now on."""
        pool = self.pool
        # Tokens whose logits are wanted are computed: the last one, or all that are still to have a log-probability.
        salt = request.cache_salt
        cached = pool.match(request.token_ids, request.rows_from, salt) if self.prefix_cache else []
        n_new = pool.pages_for(request.n_tokens) - len(cached)
        # One page more for each running request's next token, or the newcomer would soon be preempted for it.
        if not self._slots or n_new + pool.n_idle(cached) + len(self.running) > pool.n_free:
            return False
        if self.prefix_cache and not request.metrics.preemptions:
            self._report_hit(request, cached)
        pool.hold(cached)
        request.pages = cached + [pool.allocate() for _ in range(n_new)]
        request.n_computed = len(cached) * pool.page_size
        self._run(request)
        return True

    def _report_hit(self, request: Request, cached: list[int]) -> None:
        request.metrics.cached_tokens = len(cached) * self.pool.page_size
        if not log.isEnabledFor(logging.DEBUG):  # token ids are the prompt's own
            return
        found = self.pool.divergence(request.token_ids[: request.n_tokens - 1], cached, request.cache_salt)
        if found is not None:
            position, theirs = found
            log.debug(
                "request %d: %d of %d prompt tokens were cached; token %d is %d, and was %d in an earlier prompt",
                request.id,
                request.metrics.cached_tokens,
                request.n_tokens,
                position,
                request.token_ids[position],
                theirs,
            )

    def _run(self, request: Request) -> None:
        """Gives a slot to a request that has its pages; it runs from now on."""
        request.n_pages_written = 0
        request.slot = self._slots.pop()
        request.status = Status.RUNNING
        if request.metrics.scheduled is None:
            request.metrics.scheduled = self._clock()
        insort(self.running, request, key=_order)

    def _extend(self, request: Request) -> bool:
        """Makes sure of a page of the request's own for its last token. False: the request itself had to go."""
        pool, pages = self.pool, request.pages
        i = (request.n_tokens - 1) // pool.page_size
        while i == len(pages) or pool.is_shared(pages[i]):
            if pool.n_free == 0:
                youngest = self.running[-1]
                self._preempt(youngest)
                if youngest is request:
                    return False
                continue
            page = pool.allocate()
            if i == len(pages):
                pages.append(page)
            else:
                self._copy_page(pages[i], page)
                pool.release([pages[i]])
                pages[i] = page
                request.n_pages_written = min(request.n_pages_written, i)
        return True

    def _preempt(self, request: Request) -> None:
        self.running.remove(request)
        self._vacate(request)
        request.status = Status.WAITING
        request.metrics.preemptions += 1
        insort(self.waiting, request, key=_order)

    def _vacate(self, request: Request) -> None:
        assert request.slot is not None
        self.pool.release(request.pages)
        self._slots.append(request.slot)
        request.pages = []
        request.n_computed = 0
        request.slot = None
