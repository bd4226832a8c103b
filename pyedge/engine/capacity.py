"""How many chats a model serves at once on this machine: what steps cost is measured, and what becomes of a crowd of
chats is played through by the scheduler itself, in a time that is added up from these costs.

Owns the measuring of steps, the play and what is concluded from it. The scheduling is the scheduler's, so what is
predicted follows its rules.

The crowd is the hardest there is: all chats send their prompts at the same moment, and the prompts have nothing in
common. TTFT is that of the chat that waits longest, TPOT that of the slowest.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import median
from time import perf_counter
from typing import TYPE_CHECKING, Any

from psutil import Process  # type: ignore[import-untyped]

from pyedge import _core
from pyedge.engine.engine import Engine, EngineConfig
from pyedge.engine.pace import Pace, StepCost, Work
from pyedge.engine.pages import PagePool
from pyedge.engine.request import Request
from pyedge.engine.sampling_params import SamplingParams
from pyedge.engine.scheduler import Scheduler, total

if TYPE_CHECKING:
    from pyedge.tokenizers import Tokenizer

READS = (1, 8, 16, 32, 64, 128, 256, 512)  # tokens of one prompt in a step
WRITES = (1, 2, 4, 8, 16, 32, 64)  # sequences in a step
SECONDS = 0.5  # that one figure may take, if once is not enough
_PROBE = 64  # tokens that are read behind others
_ANSWER = 8
_WRITERS = 4  # whose keys are looked at together: threads share them out better than those of one

# Seconds of a step: of the sequences that write in it, and of the prompts that are read in it.
Cost = Callable[[Work, Work], float]


@dataclass(frozen=True)
class Chat:
    prompt: int  # tokens
    output: int

    @property
    def tokens(self) -> int:
        """That have keys and values at its end: the last one that is written needs none."""
        return self.prompt + self.output - 1


@dataclass(frozen=True)
class Curve:
    """Seconds or bytes by a number of tokens, straight between what was measured and on from it."""

    at: Sequence[int]
    values: Sequence[float]

    def __call__(self, n: int) -> float:
        if len(self.at) == 1:
            return self.values[0] * n / self.at[0]
        i = min(max(bisect_left(self.at, n), 1), len(self.at) - 1)
        (a, b), (s, t) = self.at[i - 1 : i + 1], self.values[i - 1 : i + 1]
        return s + (t - s) * (n - a) / (b - a)


@dataclass(frozen=True)
class Measured:
    """What steps take. Steps that read have a curve of their own: more tokens, each with its keys in the same cache.
    A key that a writing sequence looks at costs several times as much as one that many tokens of a prompt share, in the
    same step too."""

    read: Curve  # of one prompt's first tokens
    read_key: float  # seconds for each key that a prompt's token looks at
    write: Curve  # of sequences that are one token long
    looking: Curve  # what the same take more, if each is `depth` tokens long
    depth: int
    row: float  # of logits and a draw from them; one is in both curves
    resident: Curve  # bytes of this process with what so many sequences need in their steps, but for keys and values

    def seconds(self, writing: Work, reading: Work, step_factor: float = 1.0) -> float:
        """step_factor: of what a step takes for itself, were the weights so much smaller."""
        seconds = (step_factor - 1) * self.write(0)
        if n := writing.tokens:
            seconds += self.looking(n) * (writing.keys - n) / (n * self.depth)
        if not reading.tokens:
            return seconds + self.write(n)
        work = writing + reading
        behind = max(0, reading.keys - reading.tokens * (reading.tokens + 1) // 2)
        return seconds + self.read(work.tokens) + self.row * max(0, work.rows - 1) + self.read_key * behind


@dataclass(frozen=True)
class Times:
    """Of a crowd."""

    ttft: float  # seconds, of who waits longest
    tpot: float  # of who is slowest; 0 if answers have one token


def measure(
    model: _core.Model,
    tokenizer: Tokenizer,
    config: EngineConfig,
    chat: Chat,
    advance: Callable[[], None] = lambda: None,
) -> Measured:
    """Takes the times of an engine's steps, with all that belongs to them: prompts of several lengths, and answers to
    several at once, as far as the pages reach. advance: called after each."""
    size = config.page_size
    deep = (chat.tokens - _PROBE) // config.max_tokens * config.max_tokens  # whole steps before the last one
    deep = max(deep, 0) or max(0, (min(chat.tokens, config.max_tokens) // 2) // size * size)
    longest = max(1, min(chat.tokens, config.max_tokens))
    n_sequences = max(1, min(config.max_sequences, WRITES[-1], config.n_pages // 3))
    depth = min(deep, config.max_tokens)

    def output(n: int, behind: int) -> int:
        """Of each of n sequences: the first ones write while the last ones are read."""
        return _ANSWER + n * behind // config.max_tokens

    each = -(-(depth + output(_WRITERS, depth)) // size) + 1
    n_writers = max(1, min(_WRITERS, n_sequences, config.n_pages // each))
    most = max(-(-max(deep + _PROBE, longest) // size) + 3, 3 * n_sequences, each * n_writers)
    pages = min(config.n_pages, most)
    engine = Engine(model, tokenizer, replace(config, n_pages=pages, prefix_cache=False))

    page_bytes = _core.page_bytes(model, size, config.kv_type)
    held = touched = 0  # pages, now and at most: those that are freed are taken first

    def begin(n: int, output: int) -> None:
        nonlocal held, touched
        held = (held if engine.has_work else 0) + -(-(n + output - 1) // size)
        touched = max(touched, held)
        words = [31 * t % engine.n_vocab for t in range(n)]
        engine.add(engine.request(words, SamplingParams(seed=1, max_tokens=output, ignore_eos=True), watched=False))

    def without_pages() -> int:
        return (
            int(Process().memory_info().rss) - touched * page_bytes
        )  # up to 2 MiB more, where pages of memory are huge

    def step() -> float:
        start = perf_counter()
        for event in engine.step():
            if event.error is not None:
                raise event.error
        return perf_counter() - start

    def repeated(once: Callable[[], float]) -> float:
        """The middle one of several times, or of fewer if they take long."""
        times = [once()]
        while len(times) < 5 and sum(times) < SECONDS:
            times.append(once())
        advance()
        return median(times)

    def reading(n: int) -> float:
        begin(n, 1)
        return step()

    def reading_behind() -> float:
        begin(deep + _PROBE, 1)
        return [step() for _ in range(-(-(deep + _PROBE) // config.max_tokens))][-1]

    def writing(n: int, behind: int = 1) -> float:
        for _ in range(n):
            begin(behind, output(n, behind))
        while engine.n_waiting or any(not r.n_output for r in engine.scheduler.running):
            step()
        times = []
        while engine.n_running == n and engine.has_work:
            times.append(step())
        while engine.has_work:
            step()
        return median(times)

    reading(longest)  # the first step touches memory that later ones find
    reads = sorted({n for n in READS if n < longest} | {longest})
    read = Curve(reads, [repeated(partial(reading, n)) for n in reads])
    writes = [n for n in WRITES if n <= n_sequences]
    write, resident = [], []
    for n in writes:
        write.append(repeated(partial(writing, n)))
        resident.append(without_pages())
    written = Curve(writes, write)
    read_key, looking = 0.0, Curve([1], [0.0])
    if deep > _PROBE and deep % config.max_tokens == 0:
        read_key = max(0.0, repeated(reading_behind) - read(_PROBE)) / (_PROBE * deep)
    if depth:
        several = sorted({1, n_writers})
        deeper = [repeated(partial(writing, n, depth)) for n in several]
        looking = Curve(several, [max(0.0, t - written(n)) for n, t in zip(several, deeper, strict=True)])
    later = max(0, without_pages() - resident[-1])  # than when so many sequences were seen
    memory = Curve([0, *writes], [each + later for each in (resident[0], *resident)])
    row = max(0.0, written(8) - written(1) - read(8) + read(1)) / 7
    return Measured(read, read_key, written, looking, max(1, depth), row, memory)


def n_measures(config: EngineConfig, chat: Chat) -> int:
    """At most."""
    return len(READS) + len(WRITES) + 4


def play(cost: Cost, config: EngineConfig, chat: Chat, chats: int, prior: StepCost) -> Times:
    """What comes of so many chats at once."""
    now = [0.0]
    pace = Pace(lambda: prior, adapts=False)  # these times do not vary as a machine's do
    scheduler = Scheduler(
        PagePool(config.n_pages, config.page_size),
        max_model_len=config.max_model_len,
        max_sequences=config.max_sequences,
        max_tokens=config.max_tokens,
        prefix_cache=False,
        pace=pace,
        clock=lambda: now[0],
    )
    nothing: Any = None  # no text is made
    rules = SamplingParams(seed=0)
    requests = [Request(i, [0] * chat.prompt, rules, chat.output, nothing, nothing) for i in range(chats)]
    for request in requests:
        request.metrics.arrival = 0.0
        scheduler.add(request)
    while scheduler.running or scheduler.waiting:
        work = scheduler.schedule()
        writers = [item for item in work if item.end - item.start == 1]
        seconds = cost(total(writers), total([item for item in work if item.end - item.start > 1]))
        now[0] += seconds
        pace.observe(total(work), seconds)
        for item in work:
            request, ends = item.request, item.ends
            scheduler.advance(request, item.end)
            if ends:
                request.token_ids.append(0)
                request.metrics.count_token(now[0])
                if request.n_output == chat.output:
                    scheduler.finish(request, "length")
    return Times(
        ttft=max(request.metrics.ttft or 0.0 for request in requests),
        tpot=max(request.metrics.tpot or 0.0 for request in requests),
    )


@dataclass(frozen=True)
class Capacity:
    """How many chats fit by each measure alone, the times' up to `sequences`; `chats` by all of them."""

    memory: int
    sequences: int  # that the engine runs at once
    reading: int  # TTFT
    writing: int  # TPOT

    @property
    def chats(self) -> int:
        return min(self.memory, self.sequences, self.reading, self.writing)

    @property
    def limited_by(self) -> str:
        return next(name for name, n in vars(self).items() if n == self.chats)


def capacity(cost: Cost, config: EngineConfig, chat: Chat, ttft: float, tpot: float, prior: StepCost) -> Capacity:
    """ttft, tpot: seconds, of the slowest chat."""
    each = -(-chat.tokens // config.page_size)
    roomy = replace(
        config, n_pages=each * config.max_sequences, max_model_len=max(config.max_model_len, chat.tokens + 1)
    )

    def most(fits: Callable[[Times], bool]) -> int:
        low, high = 0, config.max_sequences
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if fits(times(middle)) else (low, middle - 1)
        return low

    known: dict[int, Times] = {}

    def times(chats: int) -> Times:
        if chats not in known:
            known[chats] = play(cost, roomy, chat, chats, prior)
        return known[chats]

    return Capacity(
        memory=config.n_pages // each,
        sequences=config.max_sequences,
        reading=most(lambda t: t.ttft <= ttft),
        writing=most(lambda t: t.tpot <= tpot),
    )
