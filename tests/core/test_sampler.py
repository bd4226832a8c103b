"""The sampler against a plain reimplementation in float64, and against the rules that users rely on.

Owns the meaning of every sampling setting. The oracle sorts the whole vocabulary and knows no bins; it shares with the
core only the definition of Philox, which the published vectors check.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pyedge import ModelError
from pyedge._core import Sampled, Sampler, isas

Row = npt.NDArray[np.float32]
INF = float("inf")
NAN = float("nan")
F32_MAX = float(np.finfo(np.float32).max)

# ---- the oracle ------------------------------------------------------------------------------------------------------


def philox4x32_10(counter: tuple[int, ...], key: tuple[int, ...]) -> tuple[int, int, int, int]:
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        a, b = 0xD2511F53 * c0, 0xCD9E8D57 * c2
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & 0xFFFFFFFF, (a >> 32) ^ c3 ^ k1, a & 0xFFFFFFFF
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3


def uniform(seed: int, position: int) -> float:
    a, b, _, _ = philox4x32_10(
        (position & 0xFFFFFFFF, position >> 32, 0, 0), (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF)
    )
    return ((a << 32 | b) >> 11) * 2.0**-53


@dataclass(frozen=True)
class Settings:
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repeat_last_n: int = 64
    seed: int = 0
    n_logprobs: int = -1
    logit_bias: dict[int, float] = field(default_factory=dict)

    def sampler(self, n_vocab: int) -> Sampler:
        return Sampler(n_vocab, **asdict(self))


History = list[tuple[int, bool]]  # (token, generated), oldest first


def f32(value: float) -> float:
    """Settings reach the core as float32: 0.95 is 0.949999988."""
    return float(np.float32(value))


def adjusted(logits: Row, s: Settings, history: History) -> npt.NDArray[np.float64]:
    x = logits.astype(np.float64)
    for token, bias in s.logit_bias.items():
        x[token] = np.float32(x[token] + f32(bias))
    n = len(history) if s.repeat_last_n == -1 else s.repeat_last_n
    for token in {token for token, _ in history[len(history) - min(n, len(history)) :]}:
        x[token] = x[token] / f32(s.repeat_penalty) if x[token] > 0 else x[token] * f32(s.repeat_penalty)
    for token, generated in history:
        x[token] -= f32(s.frequency_penalty) if generated else 0
    for token in {token for token, generated in history if generated}:
        x[token] -= f32(s.presence_penalty)
    return x.astype(np.float32).astype(np.float64)


def descending(x: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """Tokens that are not masked, by logit descending, then token ascending."""
    order = np.argsort(-x, kind="stable")
    return order[x[order] > -np.inf]


def kept(x: npt.NDArray[np.float64], s: Settings, slack: float = 0.0) -> npt.NDArray[np.int64]:
    """What the filters leave, sorted. `slack` moves both probability bounds, towards more tokens when positive."""
    order = descending(x)
    if s.top_k > 0:
        order = order[: s.top_k]
    p = np.exp(x[order] - x[order[0]])
    p /= p.sum()
    if s.top_p < 1:
        before = np.cumsum(p) - p
        order = order[: max(1, int((before < f32(s.top_p) + slack).sum()))]
        p = p[: len(order)] / p[: len(order)].sum()
    if s.min_p > 0:
        order = order[p >= f32(s.min_p) * p[0] * (1 - slack)]
    return order


def acceptable(logits: Row, s: Settings, history: History, position: int) -> set[int]:
    """The token to draw; several only where the float32 weights of the core may round to the other side of a bound."""
    x = adjusted(logits, s, history)
    if s.temperature < 1e-5 or s.top_k == 1 or s.top_p == 0 or s.min_p == 1:
        return {int(descending(x)[0])}
    tokens: set[int] = set()
    u = uniform(s.seed, position)
    for slack in (-2e-6, 0, 2e-6):
        order = np.sort(kept(x, s, slack))  # a draw walks the vocabulary
        w = np.exp((x[order] - x[order].max()) / f32(s.temperature))
        sums = np.cumsum(w)
        for v in (u - 2e-6, u, u + 2e-6):
            tokens.add(int(order[min(int(np.searchsorted(sums, v * sums[-1], side="right")), len(order) - 1)]))
    return tokens


def fed(s: Settings, n_vocab: int, history: History = []) -> Sampler:  # noqa: B006 (never changed)
    sampler = s.sampler(n_vocab)
    for token, generated in history:
        sampler.accept([token], generated)
    return sampler


def random_row(n: int, seed: int, scale: float = 3.0, *, ties: bool = False, masked: float = 0.0) -> Row:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(n) * scale
    if ties:
        x = np.round(x)
    x[rng.random(n) < masked] = -np.inf
    x[rng.integers(n)] = 1.0
    return x.astype(np.float32)


# ---- random numbers --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ((0,) * 4, (0,) * 2, (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_known_answers(counter: tuple[int, ...], key: tuple[int, ...], expected: tuple[int, ...]) -> None:
    """The oracle's generator against Random123's published vectors."""
    assert philox4x32_10(counter, key) == expected


def test_draw_uses_philox_of_seed_and_position() -> None:
    """Over 2^16 equal logits the token is the top 16 bits of the uniform number: all of Philox shows in them."""
    row = np.zeros(1 << 16, np.float32)
    assert Sampler(1 << 16, seed=0).sample(row, 0).token == 0x6627  # Random123's first vector
    rng = np.random.default_rng(1)
    for seed, position in [(0, 1), (1, 0), (2**64 - 1, 2**62), *rng.integers(0, 2**62, (40, 2)).tolist()]:
        assert Sampler(1 << 16, seed=seed).sample(row, position).token == int(uniform(seed, position) * 2**16)


def test_seed_counts_modulo_2_to_64() -> None:
    row = np.zeros(4096, np.float32)
    for seed in (-1, 2**64 + 5):
        assert Sampler(4096, seed=seed).sample(row, 3).token == Sampler(4096, seed=seed % 2**64).sample(row, 3).token


def test_draws_depend_on_nothing_but_their_own_position() -> None:
    """Order of calls, repeated calls and what the scratch memory held before leave no trace."""
    rows = [random_row(5000, i, scale) for i, scale in enumerate((0.0, 0.01, 1.0, 3.0, 30.0))]
    for s in (Settings(), Settings(top_p=0.9), Settings(top_k=70, n_logprobs=3), Settings(temperature=2, min_p=0.01)):
        alone = [s.sampler(5000).sample(row, 7).token for row in rows]
        shared = s.sampler(5000)
        for _ in range(2):
            assert [shared.sample(row, 7).token for row in rows] == alone
        assert [shared.sample(row, 7).token for row in reversed(rows)] == alone[::-1]


# ---- the whole chain -------------------------------------------------------------------------------------------------

rows = st.builds(
    random_row,
    st.sampled_from([1, 2, 5, 16, 17, 63, 64, 300, 2500]),
    st.integers(0, 2**32),
    st.sampled_from([0.0, 1e-4, 0.3, 1.0, 3.0, 10.0, 100.0, 1e30]),
    ties=st.booleans(),
    masked=st.sampled_from([0.0, 0.0, 0.3, 0.99]),
)
chains = st.builds(
    Settings,
    temperature=st.sampled_from([0.0, 1e-6, 0.1, 0.7, 1.0, 1.0, 1.5, 5.0, 1e3, 1e30]),
    top_k=st.sampled_from([0, 0, 0, 1, 2, 10, 40, 65, 1000, 2**31 - 1]),
    top_p=st.sampled_from([1.0, 1.0, 0.0, 1e-3, 0.5, 0.9, 0.95, 0.999, f32(1 - 2**-24)]),
    min_p=st.sampled_from([0.0, 0.0, 1e-30, 0.001, 0.05, 0.3, 1.0]),
    seed=st.integers(0, 2**64 - 1),
)


@settings(max_examples=400)
@given(rows, chains, st.integers(0, 2**40))
def test_chain_matches_the_oracle(row: Row, s: Settings, position: int) -> None:
    sampler = s.sampler(len(row))
    for p in range(position, position + 5):
        assert sampler.sample(row, p).token in acceptable(row, s, [], p)


@pytest.mark.parametrize("scale", [0.0, 0.5, 1.0, 3.0])
def test_flat_rows_match_the_oracle(scale: float) -> None:
    """Where thousands of tokens share the weight, the rules cut in one bin and the draw falls into another."""
    row = random_row(30_000, 4, scale, ties=scale == 3.0, masked=0.1)
    for s in (Settings(), Settings(top_p=0.9, temperature=0.7), Settings(min_p=0.02), Settings(top_p=0.8, min_p=0.1)):
        sampler = s.sampler(len(row))
        for position in range(12):
            assert sampler.sample(row, position).token in acceptable(row, s, [], position), s


def large_rows(n: int) -> dict[str, Row]:
    """Rows on which top-p's cut is estimated well, badly, or among equals."""
    rng = np.random.default_rng(3)
    flat = rng.standard_normal(n).astype(np.float32)
    looked_at = np.arange(n) % 128 // 8 == np.arange(n) // 128 % 16  # by the estimate
    few = np.full(n, -np.inf, np.float32)
    few[rng.integers(0, n, 90)] = rng.standard_normal(90)
    peaked = 3 * flat
    peaked[rng.integers(0, n, 20)] += np.linspace(15, 22, 20, dtype=np.float32)
    middle = np.where(looked_at, flat + 1, flat - 6).astype(np.float32)
    middle[rng.integers(0, n, 30)] = 5
    far = 1e30 * flat
    far[77] = F32_MAX
    return {
        "flat": flat,
        "spread": 3 * flat,
        "peaked": peaked,
        "level": flat * np.float32(0.01),
        "sorted": np.sort(flat * 2),
        "sample too low": np.where(looked_at, flat - 4, flat).astype(np.float32),
        "sample too high": np.where(looked_at, flat + 4, flat).astype(np.float32),
        "sample of the middle": middle,
        "equal": np.full(n, 2.5, np.float32),
        "two values": np.where(flat > 1.5, 1, -1).astype(np.float32),
        "rounded": np.round(2 * flat),
        "few": few,
        "far": far,
    }


LARGE = [
    Settings(temperature=0.8),
    *(Settings(temperature=0.7, top_p=p) for p in (0.05, 0.5, 0.9, 0.95, 0.99)),
    Settings(top_p=0.9, min_p=0.01),
    Settings(temperature=1.3, min_p=0.05),
    Settings(top_k=40, top_p=0.95),
    Settings(top_k=3000, temperature=1.5),
]


@pytest.mark.parametrize("kind", large_rows(128))
def test_large_vocabularies_match_the_oracle(kind: str) -> None:
    row = large_rows(20_003)[kind]
    for s in LARGE:
        sampler = s.sampler(len(row))
        for position in range(2):
            assert sampler.sample(row, position).token in acceptable(row, s, [], position), s


def test_every_instruction_set_draws_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = list(large_rows(20_003).values())
    drawn: dict[str, list[tuple[int, float | None, list[tuple[int, float]]]]] = {}
    for isa, supported in isas():
        if not supported:
            continue
        monkeypatch.setenv("PYEDGE_ISA", isa)
        drawn[isa] = []
        for s in (replace(s, n_logprobs=5) for s in LARGE):
            sampler = s.sampler(20_003)
            for out in (sampler.sample(row, position) for row in rows for position in range(3)):
                drawn[isa].append((out.token, out.logprob, out.top))
    assert all(tokens == drawn["scalar"] for tokens in drawn.values())


@settings(max_examples=200)
@given(
    rows,
    chains,
    st.sampled_from([0.5, 1.0, 1.1, 2.0]),
    st.sampled_from([-1.0, 0.0, 0.5, 2.0, 50.0]),
    st.sampled_from([-1.0, 0.0, 0.3, 2.0]),
    st.sampled_from([-1, 0, 1, 3, 64]),
    st.integers(0, 2**32),
)
def test_penalties_and_bias_match_the_oracle(
    row: Row, s: Settings, repeat: float, presence: float, frequency: float, last_n: int, seed: int
) -> None:
    n = len(row)
    rng = np.random.default_rng(seed)
    history = [(int(t), i >= 10) for i, t in enumerate(rng.integers(0, min(n, 30), rng.integers(0, 80)))]
    s = replace(
        s,
        repeat_penalty=repeat,
        presence_penalty=presence,
        frequency_penalty=frequency,
        repeat_last_n=last_n,
        logit_bias={int(t): float(b) for t, b in zip(rng.integers(0, n, 3), (5.0, -100.0, -2.5), strict=True)},
    )
    sampler = fed(s, n, history)
    for position in range(3):
        assert sampler.sample(row, position).token in acceptable(row, s, history, position)


@settings(max_examples=150)
@given(rows, chains, st.sampled_from([1.0, 1.3]), st.sampled_from([0.02, 0.5, 0.98]), st.integers(0, 2**32))
def test_a_mask_comes_before_all_rules(row: Row, s: Settings, repeat: float, share: float, seed: int) -> None:
    """As if the model had given minus infinity to what the mask leaves out, save for the log-probabilities."""
    n = len(row)
    rng = np.random.default_rng(seed)
    allowed = rng.random(n) < share
    allowed[rng.choice(np.flatnonzero(row > -np.inf))] = True
    history = [(int(t), True) for t in rng.integers(0, n, 5)]
    s = replace(s, repeat_penalty=repeat, n_logprobs=2, logit_bias={int(rng.integers(n)): 5.0})
    masked = Sampler(n, **asdict(s), masked=True)
    masked.accept([t for t, _ in history])
    for position in range(3):
        got = masked.sample(row, position, mask_of(allowed))
        assert got.token in acceptable(np.where(allowed, row, -np.inf).astype(np.float32), s, history, position)
        unmasked = masked.sample(row, position)  # the same sampler, and no trace of the mask
        assert unmasked.token == fed(s, n, history).sample(row, position).token
        assert got.top == unmasked.top
        if got.token == unmasked.token:
            assert got.logprob == unmasked.logprob


def mask_of(allowed: npt.NDArray[np.bool_]) -> bytes:
    """With ones for the tokens that are none, at the end, which change nothing."""
    bits = np.ones(-(-len(allowed) // 32) * 32, np.bool_)
    bits[: len(allowed)] = allowed
    return np.packbits(bits, bitorder="little").tobytes()


@pytest.mark.parametrize(
    "s",
    [
        Settings(),
        Settings(temperature=0.7),
        Settings(temperature=3.0),
        Settings(top_k=5),
        Settings(top_p=0.8),
        Settings(min_p=0.1, temperature=1.4),
        Settings(top_k=9, top_p=0.9, min_p=0.02, temperature=1.2),
    ],
    ids=str,
)
def test_frequencies_follow_the_distribution(s: Settings) -> None:
    """Chi-square over positions; the bound is the 99.9 % point (Wilson and Hilferty's approximation)."""
    row = random_row(12, 5, 1.5)
    x = row.astype(np.float64)
    order = kept(x, s)
    w = np.exp(x[order] / s.temperature)
    n = 20_000
    sampler = s.sampler(len(row))
    seen = np.bincount([sampler.sample(row, i).token for i in range(n)], minlength=len(row))
    assert seen.sum() == seen[order].sum(), "a token that the filters drop was drawn"
    expected = n * w / w.sum()
    chi2 = float(((seen[order] - expected) ** 2 / expected).sum())
    k = len(order) - 1
    assert chi2 < k * (1 - 2 / (9 * k) + 3.09 * math.sqrt(2 / (9 * k))) ** 3


# ---- greedy ----------------------------------------------------------------------------------------------------------

GREEDY = [
    *(Settings(temperature=0, seed=seed) for seed in (0, 1, 2)),
    Settings(temperature=0, top_p=0.0),
    Settings(temperature=0, top_k=0),
    Settings(temperature=0, top_k=1),
    Settings(temperature=0, min_p=1.0),
    Settings(temperature=1e-6),
    Settings(temperature=5, top_k=1),
    Settings(temperature=5, top_p=0.0),
    Settings(temperature=5, min_p=1.0),
]


@pytest.mark.parametrize("s", GREEDY, ids=str)
def test_greedy_by_any_name(s: Settings) -> None:
    """Case B21: none of these is random, divides by zero or comes back empty. Ties go to the lowest token."""
    sampler = s.sampler(1000)
    for i in range(20):
        for row in (random_row(1000, i), random_row(1000, i, ties=True), random_row(1000, i, 1e37)):
            assert sampler.sample(row, i).token == int(np.argmax(row))


def test_small_temperature_is_greedy_where_there_is_a_margin() -> None:
    row = random_row(1000, 3)
    row[17] = row.max() + 0.01
    sampler = Settings(temperature=1e-4).sampler(1000)
    assert {sampler.sample(row, i).token for i in range(100)} == {17}


def test_signed_zeros_tie() -> None:
    row = np.full(100, -0.0, np.float32)
    row[50:] = 0.0
    assert Sampler(100, temperature=0).sample(row, 0).token == 0
    sampler = Sampler(100, top_k=10, n_logprobs=3)
    assert {sampler.sample(row, i).token for i in range(300)} == set(range(10))
    assert [t for t, _ in sampler.sample(row, 0).top] == [0, 1, 2]


# ---- extremes --------------------------------------------------------------------------------------------------------


def test_largest_floats() -> None:
    row = np.array([-F32_MAX, F32_MAX, 0, -np.inf], np.float32)
    for s in (Settings(), Settings(top_k=2), Settings(top_p=0.5), Settings(min_p=0.1), Settings(temperature=1e-30)):
        assert s.sampler(4).sample(row, 0).token == 1
    hot = Settings(temperature=F32_MAX).sampler(4)
    assert 3 not in {hot.sample(row, i).token for i in range(200)}
    assert Sampler(4, temperature=0, logit_bias={2: F32_MAX}).sample(row, 0).token == 1
    assert Sampler(4, temperature=0, logit_bias={1: F32_MAX}).sample(row, 0).token == 1  # overflow stays finite


@pytest.mark.parametrize("bias", [-100.0, -INF])
def test_negative_bias_bans(bias: float) -> None:
    row = np.array([0, 20, 1, 2], np.float32)
    sampler = Sampler(4, logit_bias={1: bias})
    assert 1 not in {sampler.sample(row, i).token for i in range(300)}


def test_masked_tokens_are_never_drawn_nor_reported() -> None:
    row = np.full(500, -np.inf, np.float32)
    row[[3, 400]] = [0.0, 1.0]
    for s in (Settings(temperature=1e30), Settings(top_k=100), Settings(top_p=f32(1 - 2**-24)), Settings(min_p=1e-38)):
        sampler = replace(s, n_logprobs=5).sampler(500)
        drawn = [sampler.sample(row, i) for i in range(50)]
        assert {d.token for d in drawn} == {3, 400}
        assert [t for t, _ in drawn[0].top] == [400, 3]


@pytest.mark.parametrize("bad", [NAN, INF])
@pytest.mark.parametrize("at", [0, 15, 16, 99, 100])
def test_unsound_logits_are_an_error(bad: float, at: int) -> None:
    row = random_row(101, 1)
    row[at] = bad
    for s in (Settings(temperature=0), Settings(), Settings(logit_bias={at: -INF})):
        with pytest.raises(ModelError, match=rf"logit of token {at} is (NaN|\+Inf)"):
            s.sampler(101).sample(row, 0)


def test_nothing_left_is_an_error() -> None:
    with pytest.raises(ModelError, match=r"every logit is -Inf$"):
        Sampler(3).sample(np.full(3, -np.inf, np.float32), 0)
    with pytest.raises(ModelError, match="every logit is -Inf after logit_bias"):
        Sampler(3, logit_bias=dict.fromkeys(range(3), -INF)).sample(np.zeros(3, np.float32), 0)


# ---- log-probabilities -----------------------------------------------------------------------------------------------


def log_softmax(row: Row) -> npt.NDArray[np.float64]:
    x = row.astype(np.float64)
    result: npt.NDArray[np.float64] = x - x.max() - np.log(np.exp(x - x.max()).sum())
    return result


@settings(max_examples=100)
@given(rows.filter(lambda row: bool(np.abs(row[np.isfinite(row)]).max() < 1e6)), st.sampled_from([0, 1, 5, 63, 64]))
def test_logprobs_are_the_models_own(row: Row, n: int) -> None:
    """Whatever the rules do to the draw, the report is the log-softmax of the row as it came."""
    s = Settings(temperature=0.5, top_k=3, repeat_penalty=2.0, logit_bias={0: 3.0}, n_logprobs=n)
    drawn = fed(s, len(row), [(0, False), (len(row) - 1, True)]).sample(row, 1)
    expected = log_softmax(row)
    assert drawn.logprob == pytest.approx(expected[drawn.token], rel=1e-6, abs=1e-6)
    order = descending(row.astype(np.float64))[:n]
    assert [t for t, _ in drawn.top] == order.tolist()
    assert [p for _, p in drawn.top] == pytest.approx(expected[order].tolist(), rel=1e-6, abs=1e-6)


def test_logprobs_over_a_large_vocabulary() -> None:
    row = random_row(262_144, 9)
    drawn = Sampler(len(row), top_p=0.9, n_logprobs=20).sample(row, 0)
    expected = log_softmax(row)
    assert drawn.logprob == pytest.approx(expected[drawn.token], abs=2e-6)
    assert [t for t, _ in drawn.top] == descending(row.astype(np.float64))[:20].tolist()


def test_no_logprobs_unless_asked() -> None:
    drawn: Sampled = Sampler(10).sample(random_row(10, 0), 0)
    assert drawn.logprob is None
    assert drawn.top == []
    counted = Sampler(10, n_logprobs=0).sample(random_row(10, 0), 0)
    assert counted.logprob is not None
    assert counted.top == []


# ---- history ---------------------------------------------------------------------------------------------------------


def test_prompt_counts_for_repeat_penalty_alone() -> None:
    row = np.array([2.0, 1.9, 0.0], np.float32)
    for s, expected in [
        (Settings(temperature=0, repeat_penalty=1.5), 1),
        (Settings(temperature=0, presence_penalty=1.0), 0),
        (Settings(temperature=0, frequency_penalty=1.0), 0),
    ]:
        assert fed(s, 3, [(0, False)]).sample(row, 1).token == expected
        assert fed(s, 3, [(0, True)]).sample(row, 1).token == 1


def test_tokens_leave_the_repeat_window() -> None:
    row = np.array([2.0, 1.9, 0.0], np.float32)
    sampler = Sampler(3, temperature=0, repeat_penalty=1.5, repeat_last_n=2)
    sampler.accept([0, 0, 2], generated=False)
    assert sampler.sample(row, 3).token == 1
    sampler.accept([2])
    assert sampler.sample(row, 4).token == 0


def test_repeat_penalty_pushes_negative_logits_down() -> None:
    row = np.array([-1.0, -1.1], np.float32)
    assert fed(Settings(temperature=0, repeat_penalty=1.5), 2, [(0, True)]).sample(row, 1).token == 1


def test_accept_in_one_call_or_many() -> None:
    row = random_row(50, 2)
    s = Settings(repeat_penalty=1.3, frequency_penalty=0.2, presence_penalty=0.1, repeat_last_n=7)
    tokens = np.random.default_rng(0).integers(0, 50, 40).tolist()
    at_once = s.sampler(50)
    at_once.accept(tokens, True)
    one_by_one = fed(s, 50, [(t, True) for t in tokens])
    assert [at_once.sample(row, i).token for i in range(50)] == [one_by_one.sample(row, i).token for i in range(50)]


# ---- arguments -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [
        {"temperature": -1.0},
        {"temperature": NAN},
        {"temperature": INF},
        {"top_k": -1},
        {"top_p": -0.1},
        {"top_p": 1.1},
        {"top_p": NAN},
        {"min_p": -0.1},
        {"min_p": 1.1},
        {"min_p": NAN},
        {"repeat_penalty": 0.0},
        {"repeat_penalty": -1.0},
        {"repeat_penalty": NAN},
        {"presence_penalty": NAN},
        {"presence_penalty": INF},
        {"frequency_penalty": -INF},
        {"repeat_last_n": -2},
        {"repeat_last_n": 2**31 - 1},
        {"n_logprobs": -2},
        {"n_logprobs": 65},
        {"logit_bias": {10: 1.0}},
        {"logit_bias": {-1: 1.0}},
        {"logit_bias": {2**40: 1.0}},
        {"logit_bias": {1: NAN}},
        {"logit_bias": {1: INF}},
        {"n_vocab": 0},
    ],
    ids=str,
)
def test_settings_out_of_range_are_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))) as error:
        Sampler(**{"n_vocab": 10, **wrong})
    assert "\n" not in str(error.value)


def test_wrong_calls_are_refused() -> None:
    sampler = Sampler(10)
    row = np.zeros(10, np.float32)
    with pytest.raises(ValueError, match="one row of 10"):
        sampler.sample(np.zeros(9, np.float32), 0)
    with pytest.raises(ValueError, match="one row of 10"):
        sampler.sample(np.zeros((1, 10), np.float32), 0)
    with pytest.raises(ValueError, match="position -1"):
        sampler.sample(row, -1)
    with pytest.raises(ValueError, match="token 10 is not in the vocabulary"):
        sampler.accept([10])


def test_wrong_masks_are_refused() -> None:
    row, sampler = np.zeros(33, np.float32), Sampler(33, masked=True)
    for wrong in (
        bytes(4),
        bytes(9),
        np.zeros((1, 2), np.uint32),
        np.zeros(4, np.uint32)[::2],
        memoryview(bytes(9))[1:],
    ):
        with pytest.raises(ValueError, match="row of 8 bytes"):
            sampler.sample(row, 0, wrong)
    with pytest.raises(ModelError, match="after the mask"):
        sampler.sample(row, 0, bytes(8))
    with pytest.raises(ValueError, match="masked"):
        Sampler(33).sample(row, 0, bytes(8))
    assert sampler.sample(row, 0, np.array([0, 1], np.uint32)).token == 32
