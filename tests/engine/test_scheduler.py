"""The scheduler's decisions, one by one. That they add up is tested with a whole engine, in test_engine.py."""

from typing import Any

import pytest
from program import python

from pyedge.engine.pace import Pace, StepCost
from pyedge.engine.pages import PagePool
from pyedge.engine.request import Request, Status
from pyedge.engine.sampling_params import SamplingParams
from pyedge.engine.scheduler import Scheduled, Scheduler

SIZE = 4


def scheduler(n_pages: int = 100, **options: Any) -> Scheduler:
    return Scheduler(PagePool(n_pages, SIZE), **{"max_model_len": 64, "max_sequences": 4, "max_tokens": 8, **options})


def request(id: int, n_prompt: int, first: int = 1, **options: Any) -> Request:
    nothing: Any = None
    tokens = [first, *range(100 * id, 100 * id + n_prompt - 1)]
    return Request(id, tokens, SamplingParams(seed=0), 50, nothing, nothing, **options)


def run(s: Scheduler, work: list[Scheduled]) -> None:
    """Does what the engine does after a step."""
    for item in work:
        ends = item.ends
        s.advance(item.request, item.end)
        if ends:
            item.request.token_ids.append(7)
    s.check_integrity()


def pieces(work: list[Scheduled]) -> list[tuple[int, int, int]]:
    return [(w.request.id, w.start, w.end) for w in work]


def add(s: Scheduler, *requests: Request) -> None:
    for r in requests:
        s.add(r)


def test_imports_no_numpy() -> None:
    code = "import sys, pyedge.engine.scheduler; sys.exit('numpy' in sys.modules or 'pyedge._core' in sys.modules)"
    assert python("-c", code).returncode == 0


def test_long_prompts_are_cut_and_next_tokens_come_first() -> None:
    s = scheduler()
    add(s, request(0, 3), request(1, 12))
    for expected in (
        [(0, 0, 3), (1, 0, 5)],
        [(0, 3, 4), (1, 5, 12)],
        [(0, 4, 5), (1, 12, 13)],
    ):
        work = s.schedule()
        assert pieces(work) == expected
        run(s, work)


def test_a_long_prompt_takes_its_part_of_a_step_while_others_write() -> None:
    pace = Pace(lambda: StepCost(step=10.0, token=1.0, row=0.0, key=0.0))
    s = scheduler(max_tokens=40, max_model_len=200, pace=pace)
    writer = request(0, 3)
    add(s, writer)
    run(s, s.schedule())
    add(s, request(1, 120, first=2), request(2, 4, first=3))
    work = s.schedule()
    assert pieces(work) == [(0, 3, 4), (1, 0, 16)]  # 11 for the writer alone, so 16 more
    run(s, work)
    assert pieces(s.schedule()) == [(0, 4, 5), (1, 16, 32)]
    writer.watched = False
    assert pieces(s.schedule()) == [(0, 4, 5), (1, 16, 55)]  # nobody looks
    s.finish(writer, "stop")
    assert pieces(s.schedule()) == [(1, 16, 56)]


def test_a_step_takes_no_more_than_its_tokens_or_slots() -> None:
    s = scheduler(max_sequences=2)
    add(s, request(0, 2), request(1, 2), request(2, 2))
    work = s.schedule()
    assert pieces(work) == [(0, 0, 2), (1, 0, 2)]
    run(s, work)
    s.finish(work[0].request, "stop")
    assert pieces(s.schedule()) == [(1, 2, 3), (2, 0, 2)]


def test_order_is_by_priority_then_by_arrival() -> None:
    s = scheduler(max_tokens=4)
    add(s, request(0, 4), request(1, 4), request(2, 4, priority=-1))
    assert pieces(s.schedule()) == [(2, 0, 4)]
    assert [r.id for r in s.waiting] == [0, 1]


def test_a_prefix_is_shared_but_the_last_token_is_computed() -> None:
    s = scheduler(max_tokens=16)
    first = request(0, 8)
    add(s, first)
    run(s, s.schedule())
    second = request(1, 8)
    second.token_ids = second.prompt_token_ids = list(first.prompt_token_ids)
    add(s, second)
    assert pieces(s.schedule()) == [(0, 8, 9), (1, 4, 8)]
    assert second.pages[0] == first.pages[0]
    assert second.pages[1] != first.pages[1]
    assert second.metrics.cached_tokens == 4


def test_equal_prompts_of_one_step_end_up_on_one_page() -> None:
    s = scheduler(max_tokens=16)
    first, second = request(0, 6), request(1, 6)
    second.token_ids = list(first.token_ids)
    add(s, first, second)
    work = s.schedule()
    for item in work:
        item.request.n_pages_written = 2
    run(s, work)
    assert first.pages[0] == second.pages[0]
    assert first.pages[1] != second.pages[1]
    assert (first.n_pages_written, second.n_pages_written) == (2, 0)  # the core must be told


def group(n: int, n_prompt: int, id: int = 0) -> list[Request]:
    """n requests for answers to one prompt."""
    shared: list[Request] = []
    requests = [request(id + i, n_prompt, group=shared) for i in range(n)]
    for r in requests:
        r.token_ids = list(requests[0].prompt_token_ids)
        r.prompt_token_ids = list(requests[0].prompt_token_ids)
    return requests


@pytest.mark.parametrize("n_prompt", [6, 8])
def test_heirs_share_all_pages_of_the_prompt_and_write_to_none_of_them(n_prompt: int) -> None:
    copied: list[tuple[int, int]] = []
    s = scheduler(copy_page=lambda a, b: copied.append((a, b)))
    requests = group(3, n_prompt)
    add(s, *requests)
    (work,) = s.schedule()
    assert (work.request, work.heirs) == (requests[0], (requests[1], requests[2]))
    s.advance(work.request, work.end)
    for heir in work.heirs:
        s.inherit(work.request, heir)
        assert heir.pages == requests[0].pages
    for token, r in enumerate(requests):
        r.token_ids.append(token)
    s.check_integrity()
    last = requests[0].pages[-1]
    assert s.pool.n_used == 2
    work_now = s.schedule()
    assert [(w.request.id, w.start, w.end, w.heirs) for w in work_now] == [
        (i, n_prompt, n_prompt + 1, ()) for i in range(3)
    ]
    assert len({r.pages[n_prompt // SIZE] for r in requests}) == 3
    if n_prompt == 6:  # two copies; the last one that is left keeps the page
        assert copied == [(last, requests[0].pages[1]), (last, requests[1].pages[1])]
        assert requests[2].pages[1] == last
        assert [r.n_pages_written for r in requests] == [0, 0, 0]
    else:
        assert not copied
    run(s, work_now)
    for r in requests:
        s.finish(r, "stop")
    assert s.pool.n_used == 0


def test_heirs_without_a_slot_wait_as_anybody_does() -> None:
    s = scheduler(max_sequences=2, max_tokens=16)
    requests = group(3, 9)
    add(s, *requests, request(3, 2, first=2))
    (work,) = s.schedule()[:1]
    assert work.heirs == ()  # the only other slot went to the next in the queue, who reads at once
    run(s, [work])
    s.finish(s.running[-1], "stop")
    assert pieces(s.schedule()) == [(0, 9, 10), (1, 8, 9)]  # from the prefix cache


def test_the_next_one_reads_when_the_first_is_gone() -> None:
    s = scheduler(max_tokens=4)
    requests = group(3, 9)
    add(s, *requests)
    run(s, s.schedule())
    s.finish(requests[0], "abort")
    work = s.schedule()
    assert pieces(work) == [(1, 4, 8)]
    run(s, work)
    (last,) = s.schedule()
    assert last.heirs == (requests[2],)


def test_queue_time_is_until_the_first_turn() -> None:
    times = iter([5.0, 7.0, 9.0])
    s = scheduler(n_pages=4, max_tokens=16, clock=lambda: next(times))
    old, young = request(0, 3), request(1, 3, first=2)
    old.metrics.arrival = young.metrics.arrival = 1.0
    assert old.metrics.queue_time is None
    add(s, old, young)
    for _ in range(8):
        run(s, s.schedule())
    assert (old.metrics.queue_time, young.metrics.queue_time) == (4.0, 6.0)
    assert young.metrics.preemptions == 1


def test_without_the_prefix_cache_nothing_is_shared() -> None:
    s = scheduler(max_tokens=16, prefix_cache=False)
    first, second = request(0, 8), request(1, 8)
    second.token_ids = list(first.token_ids)
    add(s, first)
    run(s, s.schedule())
    add(s, second)
    assert pieces(s.schedule()) == [(0, 8, 9), (1, 0, 8)]
    assert not set(first.pages) & set(second.pages)


def test_admission_waits_for_all_pages_and_one_more_for_each_running_request() -> None:
    s = scheduler(n_pages=5, max_tokens=16)
    add(s, request(0, 5), request(1, 12, first=2), request(2, 1, first=3))
    assert pieces(s.schedule()) == [(0, 0, 5)]  # 2 of 5 pages; the next needs 3, and 1 is kept
    assert [r.id for r in s.waiting] == [1, 2]  # first come, first served


def test_the_youngest_gives_way_and_comes_back_first() -> None:
    s = scheduler(n_pages=4, max_tokens=16)
    old, young = request(0, 3), request(1, 3, first=2)
    add(s, old, young)
    for _ in range(6):
        run(s, s.schedule())
    assert (len(old.pages), len(young.pages)) == (2, 2)
    add(s, request(2, 1, first=3))
    tokens = list(young.token_ids)
    assert pieces(s.schedule()) == [(0, 8, 9)]
    assert (young.status, young.pages, young.slot, young.n_computed) == (Status.WAITING, [], None, 0)
    assert young.metrics.preemptions == 1
    assert [r.id for r in s.waiting] == [1, 2]
    s.finish(old, "stop")
    assert pieces(s.schedule())[0] == (1, 4, 9)  # its first page was still there
    assert young.token_ids == tokens
    assert young.metrics.cached_tokens == 0  # of the prompt


def test_borrowing_preempts_and_gives_back() -> None:
    s = scheduler(n_pages=3, max_sequences=1)
    r = request(0, 5)
    add(s, r)
    run(s, s.schedule())
    slot, pages = s.borrow(3)
    assert (slot, len(set(pages)), r.status) == (0, 3, Status.WAITING)
    s.give_back()
    s.give_back()
    assert pieces(s.schedule()) == [(0, 0, 6)]
    s.check_integrity()


@pytest.mark.parametrize(
    ("n_pages", "n_prompt", "said"),
    [(100, 64, "64 tokens, the context is 64.*max_model_len"), (4, 16, "16 tokens, the KV cache holds 16.*kv_memory")],
)
def test_what_can_never_fit_is_refused_with_the_numbers(n_pages: int, n_prompt: int, said: str) -> None:
    s = scheduler(n_pages=n_pages)
    assert s.room(n_prompt - 1) == 1
    with pytest.raises(ValueError, match=said):
        s.room(n_prompt)


def test_each_sequence_has_its_token_in_a_step() -> None:
    with pytest.raises(ValueError, match="8 tokens cannot hold one of each of 9"):
        scheduler(max_sequences=9, max_tokens=8)
