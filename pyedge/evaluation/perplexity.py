"""Perplexity of a text, and how near a model comes to another: Kullback-Leibler divergence, agreement, their ratio.

Owns the method, llama.cpp's: windows of n_ctx tokens (reader.py), of which the second half is scored, since its tokens
have at least half a window before them. Both models of a comparison read each window side by side, so that no logits
are kept. Errors are those of a mean over tokens, taken as independent: 1.96 standard errors on both sides are a 95 %
interval.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from pyedge.evaluation.reader import Reader

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

Progress = Callable[[int, int], None]  # windows read, and in all
Interval = tuple[float, float]  # of 95 %
_Z = 1.96


@dataclass(frozen=True)
class Score:
    """What one model makes of a text. Natural logarithms."""

    losses: npt.NDArray[np.float64]  # of each scored token: minus the log-probability that it was given

    @property
    def tokens(self) -> int:
        return len(self.losses)

    @property
    def ppl(self) -> float:
        return math.exp(self.losses.mean())

    @property
    def ppl_stderr(self) -> float:
        """Of the mean, carried through the exponential."""
        return self.ppl * _stderr(self.losses)


@dataclass(frozen=True)
class Comparison:
    """A model against a base."""

    score: Score
    base: Score
    divergences: npt.NDArray[np.float64]  # after each scored token: of the model's distribution from the base's
    agrees: npt.NDArray[np.bool_]  # whether both find the same token the likeliest
    kl_mean: float = field(init=False)
    kl_mean_ci95: Interval = field(init=False)
    kl_median: float = field(init=False)
    kl_p99: float = field(init=False)
    top1: float = field(init=False)
    top1_ci95: Interval = field(init=False)
    ppl_ratio: float = field(init=False)
    ppl_ratio_ci95: Interval = field(init=False)

    def __post_init__(self) -> None:
        import numpy as np

        def put(name: str, value: float | Interval) -> None:
            object.__setattr__(self, name, value)

        mean, error = float(self.divergences.mean()), _Z * _stderr(self.divergences)
        put("kl_mean", mean)
        put("kl_mean_ci95", (mean - error, mean + error))
        median, p99 = np.quantile(self.divergences, [0.5, 0.99])
        put("kl_median", float(median))
        put("kl_p99", float(p99))
        share = float(self.agrees.mean())
        put("top1", share)
        put("top1_ci95", _share_interval(share, len(self.agrees)))
        differences = self.score.losses - self.base.losses
        mean, error = float(differences.mean()), _Z * _stderr(differences)
        put("ppl_ratio", math.exp(mean))
        put("ppl_ratio_ci95", (math.exp(mean - error), math.exp(mean + error)))


def perplexity(reader: Reader, windows: Sequence[Sequence[int]], progress: Progress | None = None) -> Score:
    """Of windows that `reader.windows` made."""
    import numpy as np

    losses = []
    for i, window in enumerate(windows):
        first = len(window) // 2
        at = first
        for logits in reader.logits(window[:-1], first):
            at += len(logits)
            losses.append(_losses(*_normal(logits), window[at - len(logits) + 1 : at + 1]))
        if progress is not None:
            progress(i + 1, len(windows))
    return Score(np.concatenate(losses))


def compare(
    reader: Reader, base: Reader, windows: Sequence[Sequence[int]], progress: Progress | None = None
) -> Comparison:
    """The model against the base, which must have the same tokens (ValueError)."""
    import numpy as np

    if reader.n_vocab != base.n_vocab or list(reader.tokenizer.pieces) != list(base.tokenizer.pieces):
        raise ValueError(f"{reader.path} and {base.path} have other tokens, so they cannot be compared; take one model")
    rows = min(reader.rows, base.rows)
    losses, base_losses, divergences, agrees = [], [], [], []
    for i, window in enumerate(windows):
        first = len(window) // 2
        at = first
        pairs = (r.logits(window[:-1], first, rows) for r in (reader, base))
        for ours, theirs in zip(*pairs, strict=True):
            at += len(ours)
            targets = window[at - len(ours) + 1 : at + 1]
            agrees.append(ours.argmax(axis=1) == theirs.argmax(axis=1))
            (x, x_log), (y, y_log) = _normal(ours), _normal(theirs)
            losses.append(_losses(x, x_log, targets))
            base_losses.append(_losses(y, y_log, targets))
            divergences.append(_divergences(x, x_log, y, y_log))
        if progress is not None:
            progress(i + 1, len(windows))
    return Comparison(
        Score(np.concatenate(losses)),
        Score(np.concatenate(base_losses)),
        np.concatenate(divergences),
        np.concatenate(agrees),
    )


def _normal(logits: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float64]]:
    """Logits less their largest, and the logarithm of the sum of their exponentials."""
    import numpy as np

    logits -= logits.max(axis=1, keepdims=True)
    return logits, np.log(np.exp(logits).sum(axis=1, dtype=np.float64))


def _losses(
    x: npt.NDArray[np.float32], log_sum: npt.NDArray[np.float64], targets: Sequence[int]
) -> npt.NDArray[np.float64]:
    import numpy as np

    losses: npt.NDArray[np.float64] = log_sum - x[np.arange(len(x)), list(targets)]
    return losses


def _divergences(
    x: npt.NDArray[np.float32],
    x_log: npt.NDArray[np.float64],
    y: npt.NDArray[np.float32],
    y_log: npt.NDArray[np.float64],
) -> npt.NDArray[np.float64]:
    """sum of p_y (log p_y - log p_x), never below 0 but for rounding. x and y are used up."""
    import numpy as np

    np.subtract(y, x, out=x)
    np.exp(y, out=y)
    x *= y
    found: npt.NDArray[np.float64] = x.sum(axis=1, dtype=np.float64) / np.exp(y_log) + (x_log - y_log)
    return np.maximum(found, 0.0)


def _stderr(values: npt.NDArray[np.float64]) -> float:
    return float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.inf


def _share_interval(share: float, n: int) -> Interval:
    """Wilson 1927: it holds near 0 and 1 too, where shares of agreement are."""
    z2 = _Z * _Z / n
    middle = (share + z2 / 2) / (1 + z2)
    half = _Z / (1 + z2) * math.sqrt(share * (1 - share) / n + z2 / (4 * n))
    return max(middle - half, 0.0), min(middle + half, 1.0)
