"""Which file of a model to take: candidates made, measured on text that none was made for, and weighed.

Owns the list of candidates, what is measured of each, and which one is advised for what. Does not own how it is shown
(report_page.py). Each candidate is a file for as long as it is measured, beside the one that is wanted; one at a time.
"""

from __future__ import annotations

import dataclasses
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyedge.evaluation.perplexity import Comparison, compare
from pyedge.evaluation.reader import Reader
from pyedge.evaluation.target import Costs, Target, Task, by_format
from pyedge.tools import quantize

if TYPE_CHECKING:
    from pyedge.evaluation.calibration import Calibration

Progress = Callable[[int, int], None]  # candidates measured, and in all

MIXES = ("Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q4_K_S", "Q4_0", "IQ4_XS", "Q3_K_M", "Q2_K")
BY_SIZE = ("Q5_K_M", "Q4_K_M", "Q3_K_M")  # of these sizes others are made, with formats chosen by measuring
_MOST = 24  # windows

# Mean divergences from the original, in nats per token, that nobody notices, and that few tasks suffer from.
CLOSE, GOOD = 0.01, 0.05


@dataclass(frozen=True)
class Candidate:
    name: str
    arguments: str  # of the command that makes it
    by_size: bool  # its formats were chosen by measuring
    wanted: bool  # it is the file that was asked for
    file_bytes: int
    bits_per_weight: float
    error: float  # mean over its matrices, of the relative squared error of their outputs
    formats: Sequence[tuple[str, int, int]]  # (format, tensors, bytes)
    tensors: Sequence[tuple[str, str, float]]  # (name, format, error) of matrices
    kl_mean: float
    kl_mean_ci95: tuple[float, float]
    kl_p99: float
    top1: float
    top1_ci95: tuple[float, float]
    ppl_ratio: float


@dataclass(frozen=True)
class Advice:
    need: str
    name: str | None  # of the candidate; None: there is none
    why: str


@dataclass(frozen=True)
class Report:
    base: str
    base_bytes: int
    text: str
    calibrated_by: str  # the importance matrix, or the text
    tokens: int  # scored
    windows: int
    n_ctx: int
    version: str
    isa: str
    candidates: Sequence[Candidate]  # the largest first
    advice: Sequence[Advice]

    def facts(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def make(
    task: Task,
    wanted: tuple[str, str, quantize.Plan],
    by_size: bool,
    reader: Reader,
    costs: Costs,
    calibration: Calibration,
    folder: str | os.PathLike[str],
    progress: Progress | None = None,
) -> Report:
    """wanted: name, arguments and plan of the file that was asked for; by_size: its formats were chosen by measuring.
    reader: of the original. folder: for the files of candidates, which are gone afterwards."""
    windows = calibration.held_out[:_MOST]
    plans = list(_plans(task, wanted, by_size, costs, calibration))
    candidates, tokens = [], 0
    with tempfile.TemporaryDirectory(dir=folder, prefix=".report-") as temporary:
        for i, (name, arguments, measured, plan) in enumerate(plans):
            path = Path(temporary) / "candidate.gguf"
            size = quantize.quantize(task.gguf, path, plan, threads=task.threads)
            with Reader(path, reader.n_ctx, threads=task.threads) as tried:
                path.unlink()  # what it has in memory needs no file
                result = compare(tried, reader, windows)
            tokens = result.score.tokens
            candidates.append(_candidate(name, arguments, measured, plan is wanted[2], size, task, plan, costs, result))
            if progress is not None:
                progress(i + 1, len(plans))
    candidates.sort(key=lambda c: (-c.file_bytes, c.kl_mean))
    from pyedge import __version__

    return Report(
        base=os.path.basename(task.gguf.path),
        base_bytes=task.gguf.file_size,
        text=calibration.name,
        calibrated_by=os.path.basename(calibration.imatrix.path) or calibration.name,
        tokens=tokens,
        windows=len(windows),
        n_ctx=reader.n_ctx,
        version=__version__,
        isa=reader.model.isa,
        candidates=candidates,
        advice=advise(candidates),
    )


def _plans(
    task: Task, wanted: tuple[str, str, quantize.Plan], by_size: bool, costs: Costs, calibration: Calibration
) -> Iterator[tuple[str, str, bool, quantize.Plan]]:
    """Name, arguments, whether chosen by size, plan."""
    yield wanted[0], wanted[1], by_size, wanted[2]
    seen = [wanted[2].choices]
    for mix in MIXES:
        wishes = dataclasses.replace(task.wishes, mix=mix, pure=False)
        plan = quantize.plan(task.gguf, wishes, calibration.imatrix, requantize=task.requantize)
        if plan.choices not in seen:  # in small models two mixes may be one
            seen.append(plan.choices)
            yield mix, mix, False, plan
        if mix in BY_SIZE:
            size = Target(file_bytes=plan.file_bytes)
            try:
                chosen = task.choose(size, costs, calibration)
            except ValueError:  # where nothing can be chosen, a mix may be out of bounds
                continue
            if chosen.choices not in seen:
                seen.append(chosen.choices)
                yield f"size of {mix}", f"--target-size {plan.file_bytes}", True, chosen


def _candidate(
    name: str,
    arguments: str,
    by_size: bool,
    wanted: bool,
    size: int,
    task: Task,
    plan: quantize.Plan,
    costs: Costs,
    result: Comparison,
) -> Candidate:
    errors = [
        (c.name, c.type, costs[c.name].errors[c.type])
        for c in plan.choices
        if c.name in costs and c.type in costs[c.name].errors
    ]
    return Candidate(
        name=name,
        arguments=arguments,
        by_size=by_size,
        wanted=wanted,
        file_bytes=size,
        bits_per_weight=quantize.facts(plan, task.gguf)["bits_per_weight"],
        error=sum(error for _, _, error in errors) / len(errors) if errors else 0.0,
        formats=by_format(plan),
        tensors=errors,
        kl_mean=result.kl_mean,
        kl_mean_ci95=result.kl_mean_ci95,
        kl_p99=result.kl_p99,
        top1=result.top1,
        top1_ci95=result.top1_ci95,
        ppl_ratio=result.ppl_ratio,
    )


def advise(candidates: Sequence[Candidate]) -> list[Advice]:
    """One candidate for each need: the smallest that keeps to a bound, and the best of all."""
    found = []
    for need, bound in (("as good as the original", CLOSE), ("small and still good", GOOD)):
        enough = [c for c in candidates if c.kl_mean <= bound]
        if enough:
            c = min(enough, key=lambda c: (c.file_bytes, c.kl_mean))
            why = f"it is the smallest whose divergence is at most {bound:g}; {_agreement(c)}"
            found.append(Advice(need, c.name, why))
        else:
            found.append(Advice(need, None, f"no candidate has a divergence of at most {bound:g}; take a larger type"))
    smallest = min(candidates, key=lambda c: (c.file_bytes, c.kl_mean))
    found.append(Advice("the smallest file", smallest.name, _agreement(smallest)))
    return found


def _agreement(c: Candidate) -> str:
    return f"it finds the original's likeliest token in {100 * c.top1:.1f} % of places"
