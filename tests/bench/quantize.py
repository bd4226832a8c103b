"""`pyedge quantize` against another program on the same file, in turn, as ratios:

    python tests/bench/quantize.py MODEL.gguf --peer llama-quantize [--types Q4_K_M,Q8_0] [--imatrix FILE] [--rounds 3]

The peer takes the arguments of llama.cpp's quantizer: [--imatrix FILE] IN OUT TYPE THREADS. For each type: the median
of the rounds' ratios of wall time until the file is on the disk, with the lowest and the highest (below 1x pyedge is
faster); the peak of memory of each; and the weighted error of pyedge's file over the peer's: sum of importance * (error
squared), over those tensors that both gave the same format, on the first --rows rows of each. The file is read once
before, so that neither finds it cold.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import numpy as np

from pyedge import ModelError, _core
from pyedge.tools import imatrix_file

TYPES = "Q8_0,Q6_K,Q5_K_M,Q5_1,Q5_0,Q4_K_M,Q4_1,Q4_0,IQ4_NL,IQ4_XS,Q3_K_M,Q2_K"


@dataclass
class Result:
    """One type."""

    type: str
    seconds: list[float] = field(default_factory=list)
    peer_seconds: list[float] = field(default_factory=list)
    peak_bytes: int = 0
    peer_peak_bytes: int = 0
    errors: dict[str, float] = field(default_factory=dict)  # ratio, by format

    @property
    def ratios(self) -> list[float]:
        return [a / b for a, b in zip(self.seconds, self.peer_seconds, strict=True)]


def run(command: Sequence[str], out: Path) -> tuple[float, int]:
    """Seconds until the file is on the disk, and the peak of memory in bytes. SystemExit, with the program's last
    words, if it fails."""
    with tempfile.TemporaryFile("w+") as said:
        start = time.perf_counter()
        try:
            child = subprocess.Popen(command, stdout=said, stderr=said)
        except OSError as e:
            sys.exit(f"error: {command[0]}: {e.strerror}; check --peer")
        _, status, usage = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            said.seek(0)
            words = (said.read().strip() or "nothing").splitlines()[-1]
            sys.exit(f"error: {shlex.join(command)}: ended with {child.returncode}; its last words: {words}")
    with out.open("rb") as f:  # pyedge has done so; others leave it to the system
        os.fsync(f.fileno())
    seconds = time.perf_counter() - start
    return seconds, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def errors(model: Path, ours: Path, theirs: Path, imatrix: imatrix_file.Imatrix | None, rows: int) -> dict[str, float]:
    """By format, the ratio of weighted errors."""
    sums: dict[str, list[float]] = {}
    with _core.Gguf(model) as exact, _core.Gguf(ours) as a, _core.Gguf(theirs) as b:
        kinds = {t.name: t.type for t in b.tensors}
        for t in a.tensors:
            if kinds[t.name] != t.type or t.type in ("F32", "F16", "BF16"):
                continue
            n = min(rows, int(np.prod(t.shape[1:])))
            x = exact.dequantize(t.name, 0, n).astype(np.float64)
            w = np.ones(t.shape[0])
            means = None if imatrix is None else imatrix.importance(t.name)
            if means is not None:
                w = means[0]
            scale = float((w * x**2).sum())  # so that each tensor counts alike
            both = sums.setdefault(t.type, [0, 0])
            for i, file in enumerate((a, b)):
                both[i] += float((w * (file.dequantize(t.name, 0, n) - x) ** 2).sum()) / scale if scale else 0
    return {kind: a / b if b else float(a == 0) for kind, (a, b) in sums.items()}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--peer", required=True, help="command line of the other program")
    parser.add_argument("--types", default=TYPES)
    parser.add_argument("--imatrix", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=_core.machine()["default_threads"])
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--folder", type=Path, help="for the files that are made [a temporary one]")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    a = parser.parse_args(arguments)
    if a.rounds < 1:
        parser.error("--rounds must be at least 1")
    imatrix = imatrix_file.read(a.imatrix) if a.imatrix else None
    given = ["--imatrix", str(a.imatrix)] if a.imatrix else []
    results = []
    with tempfile.TemporaryDirectory(dir=a.folder) as name:
        ours, theirs = Path(name) / "ours.gguf", Path(name) / "theirs.gguf"
        with a.model.open("rb") as f:
            while f.read(1 << 24):
                pass
        for kind in a.types.split(","):
            result = Result(kind)
            for _ in range(a.rounds):
                command = [sys.executable, "-m", "pyedge", "quantize", str(a.model), str(ours), kind]
                seconds, peak = run([*command, "--threads", str(a.threads), *given], ours)
                result.seconds.append(seconds)
                result.peak_bytes = max(result.peak_bytes, peak)
                command = [*shlex.split(a.peer), *given, str(a.model), str(theirs), kind, str(a.threads)]
                seconds, peak = run(command, theirs)
                result.peer_seconds.append(seconds)
                result.peer_peak_bytes = max(result.peer_peak_bytes, peak)
                print(".", end="", file=sys.stderr, flush=True)
            try:
                result.errors = errors(a.model, ours, theirs, imatrix, a.rows)
            except ModelError as e:  # some programs have formats of their own in their mixes; --pure may keep them out
                print(f"{kind}: {e}", file=sys.stderr)
            results.append(result)
    print(file=sys.stderr)
    if a.json:
        print(json.dumps([{**vars(r), "ratio": median(r.ratios)} for r in results]))
        return
    print(f"{'type':8} {'pyedge':>8} {'peer':>8} {'ratio':>7} {'lowest':>7} {'highest':>7} {'MB':>13}  error ratio")
    for r in results:
        times = f"{median(r.seconds):7.2f}s {median(r.peer_seconds):7.2f}s {median(r.ratios):6.2f}x"
        memory = f"{r.peak_bytes / 1e6:.0f} / {r.peer_peak_bytes / 1e6:.0f}"
        by_format = ", ".join(f"{kind} {ratio:.3f}" for kind, ratio in r.errors.items())
        print(f"{r.type:8} {times} {min(r.ratios):6.2f}x {max(r.ratios):6.2f}x {memory:>13}  {by_format}")


if __name__ == "__main__":
    main()
