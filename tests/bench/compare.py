"""pyedge against another program on the same files, in turn, as ratios:

    python tests/bench/compare.py MODEL.gguf... --peer "python peer.py" [--rounds 5] [-p 512] [-n 64] [--threads 2]

The peer is a command line; `{}` in it becomes the file, which else is put at its end. It prints one or more lines of
JSON with `prompt_tok_s` and `gen_tok_s`, whose medians count; what else it prints is passed over. Its own options must
tell it to read and write as many tokens on as many threads. MODEL may be SHAPE:TYPE of `pyedge bench --synthetic`
too, if the peer knows what to do with such a name.

Machines are shared and noisy: each round runs both, and what is reported is the median of the rounds' ratios, with the
lowest and the highest.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

FIELDS = {"prompt_tok_s": "prompt", "gen_tok_s": "generation"}


@dataclass(frozen=True)
class Result:
    """One model, one field."""

    model: str
    field: str
    ours: list[float]  # tokens per second, of each round
    theirs: list[float]

    @property
    def ratios(self) -> list[float]:
        return [a / b for a, b in zip(self.ours, self.theirs, strict=True)]


def speeds(command: Sequence[str]) -> dict[str, float]:
    """Runs a program once. SystemExit, with its last words, if it fails or prints no figures."""
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as e:
        sys.exit(f"error: {command[0]}: {e.strerror}; check --peer")
    found: list[dict[str, Any]] = []
    for line in done.stdout.splitlines():
        try:
            document = json.loads(line)
        except ValueError:
            continue
        if isinstance(document, dict) and FIELDS.keys() <= document.keys():
            found.append(document)
    if done.returncode or not found:
        words = (done.stderr.strip() or done.stdout.strip() or "nothing").splitlines()[-1]
        why = f"ended with {done.returncode}" if done.returncode else f"printed no JSON with {' and '.join(FIELDS)}"
        sys.exit(f"error: {shlex.join(command)}: {why}; its last words: {words}")
    return {field: median(float(document[field]) for document in found) for field in FIELDS}


def peer_command(peer: str, model: str) -> list[str]:
    words = shlex.split(peer)
    return [word.replace("{}", model) for word in words] if "{}" in peer else [*words, model]


def compare(model: str, ours: Sequence[str], peer: str, rounds: int) -> list[Result]:
    what = [model] if Path(model).exists() else ["--synthetic", model]
    pairs = []
    for _ in range(rounds):
        pairs.append((speeds([*ours, *what]), speeds(peer_command(peer, model))))
        print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return [Result(model, field, [a[field] for a, _ in pairs], [b[field] for _, b in pairs]) for field in FIELDS]


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+", metavar="MODEL")
    parser.add_argument("--peer", required=True, help="command line of the other program")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("-p", "--prompt", type=int, default=512)
    parser.add_argument("-n", "--gen", type=int, default=64)
    parser.add_argument("--runs", type=int, default=1, help="of pyedge in each round; their median counts")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    a = parser.parse_args(arguments)
    if a.rounds < 1:
        parser.error("--rounds must be at least 1")
    ours = [sys.executable, "-m", "pyedge", "bench", "--json", "--runs", str(a.runs), "-p", str(a.prompt)]
    ours += ["-n", str(a.gen), *(["--threads", str(a.threads)] if a.threads else [])]
    results = [result for model in a.models for result in compare(model, ours, a.peer, a.rounds)]
    if a.json:
        print(json.dumps([{**vars(r), "ratios": r.ratios, "ratio": median(r.ratios)} for r in results]))
        return
    width = max(len(Path(r.model).name) for r in results)
    print(f"{'':{width}} {'tokens/s':10} {'pyedge':>9} {'peer':>9} {'ratio':>7} {'lowest':>7} {'highest':>7}")
    for r in results:
        middle = f"{median(r.ours):9.1f} {median(r.theirs):9.1f} {median(r.ratios):6.2f}x"
        spread = f"{min(r.ratios):6.2f}x {max(r.ratios):6.2f}x"
        print(f"{Path(r.model).name:{width}} {FIELDS[r.field]:10} {middle} {spread}")


if __name__ == "__main__":
    main()
