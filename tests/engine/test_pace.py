"""How long steps take is learned from them, and a prompt takes its part of a step and no more."""

from random import Random
from statistics import median
from typing import Any, cast

import pytest

from pyedge.engine.pace import CHUNK, MOST, SLOWDOWN, Budget, Pace, StepCost, Work
from pyedge.engine.pages import PagePool
from pyedge.engine.request import Request
from pyedge.engine.sampling_params import SamplingParams
from pyedge.engine.scheduler import Scheduler, total

MACHINE = StepCost(step=4e-3, token=7e-4, row=1e-4, key=2e-8)
PRIOR = StepCost(step=2.0, token=0.2, row=0.05, key=1e-5)  # its ratios are off by a few times


def steps(random: Random, n: int) -> list[Work]:
    """Of an engine: some that only write, some that read as well."""
    found = []
    for _ in range(n):
        decodes = random.randint(1, 8)
        work = sum((Work.piece(d, d + 1, 1) for d in random.choices(range(10, 4000), k=decodes)), Work())
        if random.random() < 0.5:
            start = random.randint(0, 3500)
            work += Work.piece(start, start + random.randint(8, 64))
        found.append(work)
    return found


def test_keys_of_a_piece() -> None:
    assert Work.piece(0, 1, 1) == Work(1, 1, 1)
    assert Work.piece(3, 6) == Work(3, 0, 4 + 5 + 6, reads=True)


def test_costs_are_found_from_the_times_of_steps() -> None:
    random = Random(1)
    pace = Pace(lambda: PRIOR)
    for work in steps(random, 100):
        pace.observe(work, MACHINE.seconds(work) * random.uniform(0.9, 1.1))
    for work in steps(random, 50):
        cost = pace.writing if work.tokens == work.rows else pace.reading
        assert cost.seconds(work) == pytest.approx(MACHINE.seconds(work), rel=0.1)


def test_the_first_steps_set_the_scale() -> None:
    pace = Pace(lambda: PRIOR)
    pace.observe(Work.piece(0, 500, 1), 0.36)
    assert pace.reading.seconds(Work.piece(0, 500, 1)) == pytest.approx(0.36, rel=0.1)
    assert pace.writing == pace.reading  # there is nothing better yet
    pace.observe(Work.piece(500, 501, 1), 0.005)
    assert pace.writing.seconds(Work.piece(501, 502, 1)) == pytest.approx(0.005, rel=0.1)


def test_many_steps_alike_do_not_make_it_forget_what_prompts_cost() -> None:
    pace = Pace(lambda: PRIOR)
    for work in steps(Random(2), 60):
        pace.observe(work, MACHINE.seconds(work))
    alike = Work.piece(100, 101, 1)
    for _ in range(2000):
        pace.observe(alike, MACHINE.seconds(alike))
    assert pace.writing.seconds(alike) == pytest.approx(MACHINE.seconds(alike), rel=0.02)
    assert min(vars(pace.writing).values()) > 0
    chunk = Work.piece(100, 132)
    assert pace.reading.seconds(chunk) == pytest.approx(MACHINE.seconds(chunk), rel=0.3)


def test_a_machine_that_changes_is_followed_and_one_stall_is_not() -> None:
    pace = Pace(lambda: PRIOR)
    work = Work.piece(100, 101, 1)
    for _ in range(40):
        pace.observe(work, 0.005)
    pace.observe(work, 5.0)
    assert pace.writing.seconds(work) < 0.006
    for _ in range(200):
        pace.observe(work, 0.02)
    assert pace.writing.seconds(work) == pytest.approx(0.02, rel=0.1)


def test_times_of_nothing_tell_nothing() -> None:
    pace = Pace(lambda: PRIOR)
    pace.observe(Work(), 1.0)
    pace.observe(Work.piece(0, 5), 0.0)
    assert pace.writing == pace.reading == PRIOR


def test_steps_that_write_and_steps_that_read_as_well_are_told_apart() -> None:
    """A step that only writes waits for memory, however few its tokens are."""
    pace = Pace(lambda: PRIOR)
    decode, mixed = Work.piece(100, 101, 1), Work.piece(100, 101, 1) + Work.piece(0, 32)
    for _ in range(30):
        pace.observe(decode, 0.010)
        pace.observe(mixed, 0.033)
        pace.observe(mixed + Work.piece(32, 64), 0.065)
    assert pace.writing.seconds(decode) == pytest.approx(0.010, rel=0.02)
    assert pace.reading.seconds(mixed) == pytest.approx(0.033, rel=0.05)
    n = Budget(512, 64, pace, decode).take(0, 400, 399)
    assert abs(n - (10 * SLOWDOWN - 1)) <= 2  # a millisecond each, beside the one that is written


def known(cost: StepCost) -> Pace:
    return Pace(lambda: cost)  # and never told otherwise


@pytest.mark.parametrize("start", [0, 1000, 3000])
def test_a_prompt_takes_what_keeps_the_step_short(start: int) -> None:
    decode = Work.piece(500, 501, 1) + Work.piece(900, 901, 1)
    n = Budget(512, 64, known(MACHINE), decode).take(start, 4000, 3999)
    limit = SLOWDOWN * MACHINE.seconds(decode)
    assert MACHINE.seconds(decode + Work.piece(start, start + n)) <= limit
    assert MACHINE.seconds(decode + Work.piece(start, start + n + 1)) > limit


def test_prompts_share_a_step_and_only_the_first_gets_on_in_any_case() -> None:
    decode = sum((Work.piece(500 + i, 501 + i, 1) for i in range(4)), Work())
    budget = Budget(512, 64, known(MACHINE), decode)
    assert budget.take(0, 5, 4) == 5
    assert not budget.spent
    second = budget.take(0, 400, 399)
    assert budget.spent
    assert 0 < second < 400
    assert MACHINE.seconds(decode + Work.piece(0, 5, 1) + Work.piece(0, second)) <= SLOWDOWN * MACHINE.seconds(decode)
    slow = known(StepCost(step=0.01, token=1.0, row=0.0, key=0.0))
    budget = Budget(512, 64, slow, Work.piece(9, 10, 1))
    assert budget.take(0, 400, 399) == CHUNK
    assert budget.spent
    budget = Budget(512, 64, slow, decode)
    assert budget.take(0, 5, 4) == 5
    assert budget.take(0, 400, 399) == 0
    assert Budget(5, 64, slow, decode).take(0, 400, 399) == 5


def test_a_noisy_machine_is_given_less_and_a_quiet_one_more() -> None:
    """One step in a hundred, or fewer, takes more than 4 times a quiet one, however far steps vary."""
    decode = Work.piece(100, 101, 1)
    quiet = MACHINE.seconds(decode)
    for noise, random in (0.0, Random(1)), (0.5, Random(2)), (1.5, Random(3)):
        pace, over = Pace(lambda: MACHINE), 0
        for _ in range(20):
            pace.observe(decode, quiet)
        for i in range(6000):
            work = decode + Work.piece(100, 100 + Budget(512, 64, pace, decode).take(100, 4000, 3999))
            seconds = MACHINE.seconds(work) * (1 + noise * random.random() ** 8)
            over += i >= 1000 and seconds > MOST * quiet
            pace.observe(work, seconds)
        assert over <= 50
        assert (pace.slowdown > SLOWDOWN) is (noise < 1)


def test_what_streams_grew_by_meanwhile_is_not_the_prompts_to_add_to() -> None:
    pace = Pace(lambda: MACHINE)
    for i in range(20):
        pace.observe(Work.piece(380 + i, 381 + i, 1), MACHINE.seconds(Work.piece(380 + i, 381 + i, 1)))
    then = pace.limit(Work.piece(400, 401, 1))
    for i in range(100):
        mixed = Work.piece(400 + i, 401 + i, 1) + Work.piece(0, CHUNK)
        pace.observe(mixed, MACHINE.seconds(mixed))
        pace.limit(Work.piece(401 + i, 402 + i, 1))
    pace.forget()
    assert pace.limit(Work.piece(500, 501, 1)) == pytest.approx(then, rel=1e-3)
    assert pace.limit(Work.piece(20, 21, 1)) > pace.slowdown * MACHINE.step


def test_a_machine_that_becomes_slower_under_prompts_without_end_starves_none() -> None:
    decode = Work.piece(500, 501, 1) + Work.piece(900, 901, 1)
    pace = Pace(lambda: MACHINE)
    for _ in range(50):
        pace.observe(decode, MACHINE.seconds(decode))
    taken = [0, 0]
    for i in range(600):
        n = Budget(512, 64, pace, decode).take(100, 4000, 3999)
        work = decode + Work.piece(100, 100 + n)
        pace.observe(work, (3 if i >= 300 else 1) * MACHINE.seconds(work))
        taken[i // 300] += n
    assert taken[1] > 0.4 * taken[0]


def test_streams_that_grow_long_starve_no_prompt() -> None:
    costly = StepCost(step=0.005, token=0.0005, row=0.0, key=2e-5)
    pace = Pace(lambda: costly)
    for _ in range(50):
        pace.observe(Work.piece(30, 31, 1), costly.seconds(Work.piece(30, 31, 1)))
    for i in range(3000):
        decode = Work.piece(31 + i, 32 + i, 1)
        n = Budget(512, 64, pace, decode).take(100, 4000, 3999)
        work = decode + Work.piece(100, 100 + n)
        pace.observe(work, 5 * costly.seconds(work) if i % 20 == 0 else costly.seconds(work))  # and stall often
        assert costly.seconds(decode + Work.piece(100, 101 + n)) > 1.2 * costly.seconds(decode)


def test_steps_that_tell_nothing_of_the_slowdown_leave_it() -> None:
    decode = Work.piece(500, 501, 1)
    pace = Pace(lambda: MACHINE)
    for _ in range(50):
        pace.observe(decode, MACHINE.seconds(decode))
    for _ in range(500):  # short prompts, and the least of long ones
        pace.limit(decode)
        pace.observe(decode + Work.piece(0, CHUNK + 1), MACHINE.seconds(decode))
        pace.limit(decode)
        pace.observe(decode + Work.piece(0, CHUNK), 9 * MACHINE.seconds(decode))
    pace.limit(decode)
    pace.forget()  # that step was broken off
    pace.observe(decode + Work.piece(0, 512), 100 * MACHINE.seconds(decode))
    assert pace.slowdown == SLOWDOWN


def test_when_nobody_waits_the_tokens_are_all_of_the_budget() -> None:
    budget = Budget(512, 64, None, Work())
    assert [budget.take(0, 200, 199), budget.take(7, 400, 399), budget.spent] == [200, 312, True]
    budget = Budget(512, 64, None, Work())
    assert [budget.take(0, 512, 511), budget.spent] == [512, True]
    assert Budget(0, 64, None, Work()).spent


@pytest.mark.parametrize("n_writers", [1, 4, 16])
def test_others_wait_little_longer_while_a_long_prompt_is_read(n_writers: int) -> None:
    """On a machine whose steps vary by a fifth: the 99th percentile of their gaps is below 4 times the quiet median,
    and the prompt takes less than twice its time alone."""
    random, no = Random(3), cast(Any, None)  # no text is made
    pace = Pace(lambda: PRIOR)
    s = Scheduler(PagePool(600, 16), max_model_len=5000, max_sequences=20, max_tokens=512, pace=pace)

    def step() -> float:
        work = s.schedule()
        seconds = MACHINE.seconds(total(work)) * random.uniform(0.8, 1.2)
        pace.observe(total(work), seconds)
        for item in work:
            ends = item.ends
            s.advance(item.request, item.end)
            if ends:
                item.request.token_ids.append(7)
        return seconds

    for i in range(n_writers):
        s.add(Request(i, [i, *range(50)], SamplingParams(seed=0), 4000, no, no))
    step()
    quiet = [step() for _ in range(50)]
    prompt = Request(99, [99, *range(3999)], SamplingParams(seed=0), 10, no, no)
    s.add(prompt)
    busy = []
    while not prompt.n_output:
        busy.append(step())
    assert sorted(busy)[int(0.99 * len(busy))] < 4 * median(quiet)
    alone = sum(MACHINE.seconds(Work.piece(start, min(start + 512, 4000))) for start in range(0, 4000, 512))
    assert sum(busy) < 2 * alone
