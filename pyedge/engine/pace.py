"""How long a step takes, learned from the steps that were taken; and how much of a prompt fits into the time of one.

Owns the estimate and the rule that keeps the others' next token from waiting for a long prompt. Knows no requests and
imports no numpy: the scheduler asks it, the engine tells it.

A step takes so long for itself (weights are read once), for each token, for each row of logits, and for each key that
a token looks at. The four numbers are fitted to the steps' times as they come, the last ones counting most: least
squares of the relative error, none below zero, and where the steps tell nothing they keep the ratios that were counted
from the model's plan. Steps that only write wait for memory and steps that read as well wait for arithmetic, so each of
the two kinds has its own fit.

How much longer than before a step may take is corrected by how long steps took: see `Pace.slowdown`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

# While someone's tokens come, a step that reads prompts as well is to take less than MOST times what those streams'
# steps took before. Machines are noisy: it is planned to take `slowdown` times that, which sinks with each step that
# took too long and rises a little with each that did not, so that one in a hundred or fewer does, on any machine.
MOST = 4.0
SLOWDOWN = 2.5  # to begin with
_SLOWDOWNS = (1.5, 3.5)
_RARELY = 0.005  # of the steps
_CORRECTION = 0.15  # of the slowdown, for a step that took too long
_SLOWER = 0.75  # of what steps that read say writing takes: below it, what writing took was on a faster machine

CHUNK = 2  # tokens that a prompt gets on by in any case: behind thousands of others each takes a third of a quiet step
_DECAY = 0.97  # of what a step tells, with each step after it
_TRUST = 0.05  # in the plan's ratios, as a share of what one step tells
_OUTLIER = 3.0  # times what was expected: beyond it the machine was busy elsewhere
_REFIT = 8  # steps, where nobody asked meanwhile
_SWEEPS = 12
_N = 4


@dataclass(frozen=True)
class Work:
    """Of one step."""

    tokens: int = 0
    rows: int = 0  # of logits
    keys: int = 0  # that tokens look at, summed over tokens
    reads: bool = False  # not only one token of each sequence, whose next one is drawn

    def __add__(self, other: Work) -> Work:
        return Work(
            self.tokens + other.tokens, self.rows + other.rows, self.keys + other.keys, self.reads or other.reads
        )

    @staticmethod
    def piece(start: int, end: int, rows: int = 0) -> Work:
        """The tokens [start, end) of a sequence, each of which sees those before it and itself."""
        return Work(end - start, rows, (end * (end + 1) - start * (start + 1)) // 2, end - start > 1 or not rows)


@dataclass(frozen=True)
class StepCost:
    """Seconds; or, as long as no step was timed, their ratios."""

    step: float = 1.0
    token: float = 0.05
    row: float = 0.01
    key: float = 1e-5

    def seconds(self, work: Work) -> float:
        return self.step + self.token * work.tokens + self.row * work.rows + self.key * work.keys


class Fit:
    """What steps of one kind take."""

    def __init__(self) -> None:
        self._products = [[0.0] * _N for _ in range(_N)]  # of what steps had and took: sums of x x^T / t^2, and x / t
        self._sums = [0.0] * _N
        self._factors = [1.0] * _N  # to the prior
        self._cost: StepCost | None = None  # the last fit
        self.n = self._n_fitted = 0  # steps

    def cost(self, prior: StepCost) -> StepCost:
        if self._cost is None or self.n > self._n_fitted:
            self._cost = self._fit(prior)
            self._n_fitted = self.n
        return self._cost

    def observe(self, work: Work, seconds: float, prior: Callable[[], StepCost]) -> None:
        if self.n >= _REFIT:
            cost = self._cost
            if cost is None or self.n >= self._n_fitted + _REFIT:
                cost = self.cost(prior())
            seconds = min(seconds, _OUTLIER * cost.seconds(work))
        x = [1 / seconds, work.tokens / seconds, work.rows / seconds, work.keys / seconds]
        for i in range(_N):
            self._sums[i] = _DECAY * self._sums[i] + x[i]
            row = self._products[i]
            for j in range(_N):
                row[j] = _DECAY * row[j] + x[i] * x[j]
        self.n += 1

    def _fit(self, prior: StepCost) -> StepCost:
        p = [prior.step, prior.token, prior.row, prior.key]
        if self.n:
            a = [[p[i] * p[j] * self._products[i][j] for j in range(_N)] for i in range(_N)]
            b = [p[i] * self._sums[i] for i in range(_N)]
            scale = sum(b) / sum(map(sum, a))  # the one factor that fits best; each may differ from it
            trust, least, f = _TRUST / scale**2, 0.01 * scale, self._factors
            for _ in range(_SWEEPS):  # coordinate descent, each within its bound
                for i in range(_N):
                    rest = b[i] + trust * scale + a[i][i] * f[i]
                    for j in range(_N):
                        rest -= a[i][j] * f[j]
                    rest /= a[i][i] + trust
                    f[i] = rest if rest > least else least
        return StepCost(*(factor * each for factor, each in zip(self._factors, p, strict=True)))


class Pace:
    """prior: counted from the plan; asked for when an estimate is first needed. adapts: whether the slowdown is
    corrected."""

    def __init__(self, prior: Callable[[], StepCost] = StepCost, *, adapts: bool = True) -> None:
        self._ask = prior
        self._prior: StepCost | None = None
        self._writing, self._reading = Fit(), Fit()
        self._adapts = adapts
        self._grown = 0  # tokens that each stream has written in steps that read as well, since one that did not
        self._expected: tuple[Work, float] | None = None  # what the next step writes, and its seconds if it did no more
        self._slowdown = SLOWDOWN

    @property
    def slowdown(self) -> float:
        """Times what it would take without prompts that a step is planned to take."""
        return self._slowdown

    def observe(self, work: Work, seconds: float) -> None:
        """A step took so long."""
        if seconds > 0 and work.tokens:
            (self._reading if work.reads else self._writing).observe(work, seconds, self._counted)
            if not work.reads:
                self._grown = 0
            elif self._expected is not None:
                self._grown += 1
                self._correct(work, seconds, *self._expected)
        self._expected = None

    def forget(self) -> None:
        """The step that a limit was asked for is not taken, or not as a whole."""
        self._expected = None

    def _correct(self, work: Work, seconds: float, writing: Work, quiet: float) -> None:
        """Steps with the least of a prompt, or with less than there was time for, tell nothing of the slowdown."""
        if not self._adapts or work.tokens - writing.tokens <= CHUNK:
            return
        if seconds > MOST * quiet:
            change = _RARELY - 1
        elif seconds > 0.5 * self._slowdown * quiet:
            change = _RARELY
        else:
            return
        self._slowdown = min(max(self._slowdown + _CORRECTION * change, _SLOWDOWNS[0]), _SLOWDOWNS[1])

    def limit(self, writing: Work) -> float:
        """Seconds that the next step may take, which writes this. Streams grow while a prompt is read, and what that
        costs them is not the prompt's to add to: they count with the keys they had before, or half of those they have
        where others have come since, as long as that leaves time for a prompt."""
        keys = max(writing.keys - self._grown * writing.rows, writing.keys // 2)
        before = Work(writing.tokens, writing.rows, keys)
        # A machine that has become slower since shows in the steps that read: there may be no others for long.
        quiet = max(self.writing.seconds(before), _SLOWER * self.reading.seconds(before))
        self._expected = writing, quiet
        return max(self._slowdown * quiet, _SLOWDOWNS[0] * self.writing.seconds(writing))

    @property
    def writing(self) -> StepCost:
        """Of steps that only write."""
        return (self._writing if self._writing.n else self._reading).cost(self._counted())

    @property
    def reading(self) -> StepCost:
        """Of steps that read as well."""
        return (self._reading if self._reading.n else self._writing).cost(self._counted())

    def _counted(self) -> StepCost:
        if self._prior is None:
            self._prior = self._ask()
        return self._prior


class Budget:
    """What a step may still take of prompts. rows: of logits; pace: None if nobody waits for a next token."""

    def __init__(self, tokens: int, rows: int, pace: Pace | None, work: Work) -> None:
        self._tokens = tokens
        self._rows = rows
        self._cost: StepCost | None = None
        self._left = 0.0  # seconds
        if pace is not None:
            self._cost = pace.reading
            self._left = pace.limit(work) - self._cost.seconds(work)
        self._begun = False
        self.spent = tokens <= 0

    def take(self, start: int, end: int, rows_from: int) -> int:
        """How many of a prompt's tokens [start, end) the step takes, if those from rows_from on make rows of logits.
        The first prompt gets on in any case."""
        # One that wants many rows leaves as many to others, whose prompts may end in this step.
        rows = self._rows if rows_from == end - 1 else min(self._rows, max(CHUNK, self._rows // 2))
        fits = min(end - start, max(rows_from - start, 0) + rows)
        n = min(fits, self._tokens)
        if self._cost is not None and self._seconds(start, start + n, rows_from) > self._left:
            low, high = 0, n - 1  # the most that fit
            while low < high:
                middle = (low + high + 1) // 2
                enough = self._seconds(start, start + middle, rows_from) <= self._left
                low, high = (middle, high) if enough else (low, middle - 1)
            n = min(n, max(low, CHUNK)) if not self._begun else low if low >= CHUNK else 0
        self.spent = n < fits or n == self._tokens
        self._tokens -= n
        self._rows -= _rows(start, start + n, rows_from)
        if self._cost is not None and n:
            self._left -= self._seconds(start, start + n, rows_from)
        self._begun = True
        return n

    def _seconds(self, start: int, stop: int, rows_from: int) -> float:
        """That tokens [start, stop) add to a step."""
        assert self._cost is not None
        return self._cost.seconds(Work.piece(start, stop, _rows(start, stop, rows_from))) - self._cost.step


def _rows(start: int, stop: int, rows_from: int) -> int:
    return max(0, stop - max(start, rows_from))
