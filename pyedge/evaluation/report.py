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
    from pyedge.evaluation.trials import Trials

Progress = Callable[[int, int], None]  # candidates measured, and in all

MIXES = ("Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q4_K_S", "Q4_0", "IQ4_XS", "Q3_K_M", "Q2_K")
BY_SIZE = ("Q5_K_M", "Q4_K_M", "Q3_K_M")  # of these sizes others are made, with formats chosen by measuring
_MOST = 24  # windows
_NEAR = 0.005  # of a size: another choice by size as near as this says nothing new
_EXPECTED = len(MIXES) + len(BY_SIZE) + 1  # candidates, before it is known how many differ

# Mean divergences from the original, in nats per token: that nobody notices, that few tasks suffer from, and that is
# about where answers begin to go wrong.
CLOSE, GOOD, BEARABLE = 0.01, 0.05, 0.2
NEEDS = (("as good as the original", CLOSE), ("small and still good", GOOD), ("as small as can be used", BEARABLE))


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

    def beats(self, other: Candidate) -> bool:
        """It is no larger and no farther from the original, and one of the two less."""
        mine, its = (self.file_bytes, self.kl_mean), (other.file_bytes, other.kl_mean)
        return mine != its and mine[0] <= its[0] and mine[1] <= its[1]


@dataclass(frozen=True)
class Advice:
    need: str
    name: str | None  # of the candidate; None: there is none
    why: str


@dataclass(frozen=True)
class Command:
    """What makes the candidates again: `pyedge quantize SOURCE OUT.gguf TYPE OF_MIX`, or a target and OF_TARGET."""

    source: str
    of_mix: str
    of_target: str


@dataclass(frozen=True)
class Report:
    base: str
    source: str  # as a command has it
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
    original: tuple[Reader, Trials],
    costs: Costs,
    calibration: Calibration,
    folder: str | os.PathLike[str],
    command: Command,
    progress: Progress | None = None,
) -> Report:
    """wanted: name, arguments and plan of the file that was asked for; by_size: its formats were chosen by measuring.
    folder: for the files of candidates, which are gone afterwards."""
    windows = calibration.held_out[:_MOST]
    reader, trials = original
    plans = []
    for found in _plans(task, wanted, by_size, costs, calibration, trials):
        plans.append(found)
        if progress is not None:  # nothing is measured yet
            progress(0, _EXPECTED)
    candidates, tokens = [], 0
    with tempfile.TemporaryDirectory(dir=folder, prefix=".report-") as temporary:
        for i, (name, arguments, measured, plan) in enumerate(plans):
            path = Path(temporary) / "candidate.gguf"
            size = quantize.quantize(task.gguf, path, plan, threads=task.threads)
            with Reader(path, reader.n_ctx, threads=task.threads) as tried:
                path.unlink()  # what it has in memory needs no file
                result = compare(tried, reader, windows)
            tokens = result.score.tokens
            options = command.of_target if measured else command.of_mix
            arguments = f"{arguments} {options}".strip()
            candidates.append(_candidate(name, arguments, measured, plan is wanted[2], size, task, plan, costs, result))
            if progress is not None:
                progress(i + 1, len(plans))
    candidates.sort(key=lambda c: (-c.file_bytes, c.kl_mean))
    from pyedge import __version__

    return Report(
        base=os.path.basename(task.gguf.path),
        source=command.source,
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
    task: Task,
    wanted: tuple[str, str, quantize.Plan],
    by_size: bool,
    costs: Costs,
    calibration: Calibration,
    trials: Trials,
) -> Iterator[tuple[str, str, bool, quantize.Plan]]:
    """Name, arguments, whether chosen by size, plan."""
    yield wanted[0], wanted[1], by_size, wanted[2]
    seen, near = [wanted[2].choices], wanted[2].file_bytes if by_size else 0
    for mix in MIXES:
        wishes = dataclasses.replace(task.wishes, mix=mix, pure=False)
        plan = quantize.plan(task.gguf, wishes, calibration.imatrix, requantize=task.requantize)
        if plan.choices not in seen:  # in small models two mixes may be one
            seen.append(plan.choices)
            yield mix, mix, False, plan
        if mix in BY_SIZE and abs(plan.file_bytes - near) > _NEAR * near:
            size = Target(file_bytes=plan.file_bytes)
            try:
                chosen = task.best(size, costs, calibration, trials)[0].plan
            except ValueError:  # where nothing can be chosen, a mix may be out of bounds
                continue
            if chosen.choices not in seen:
                seen.append(chosen.choices)
                yield size.name, size.option, True, chosen


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
    """One candidate for each need: the smallest that keeps to a bound."""
    found = []
    for need, bound in NEEDS:
        enough = [c for c in candidates if c.kl_mean <= bound]
        if enough:
            c = min(enough, key=lambda c: (c.file_bytes, c.kl_mean))
            why = (
                f"The smallest with a divergence of at most {bound:g}: {c.kl_mean:.4f}; in {100 * c.top1:.0f} of 100"
                " places the next token is the original's"
            )
            found.append(Advice(need, c.name, why))
        else:
            nearest = min(c.kl_mean for c in candidates)
            why = f"No file has a divergence of at most {bound:g}; the nearest has {nearest:.4f}. Take a larger type"
            found.append(Advice(need, None, why))
    return found
