"""Runs the core's C programs under the sanitizers: `python tests/core/sanitize.py [address|thread]`.

With the address and undefined-behaviour sanitizers all programs run, the kernels for the instruction sets of this
processor (but for those that are another one's vocabulary with a dot product of their own; of AMX the tiles are
emulated, since no sanitizer sees what assembly reads); with the thread sanitizer the thread pool and whole steps on
several threads, which are the same whatever the set. Ends with a line `N passed, N failed`. Needs a C compiler with its
sanitizers, numpy and gguf.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))
import coreprograms
from coreprograms import toolchain

# -O1: a sanitized -O2 of the kernels takes minutes to compile. -g1: lines in reports.
COMMON = ["-O1", "-g1", "-fno-omit-frame-pointer", "-Werror"]
FLAGS = {
    "address": [*COMMON, "-fsanitize=address,undefined,float-cast-overflow", "-fno-sanitize-recover=all"],
    "thread": [*COMMON, "-fsanitize=thread"],
}
RUNS: dict[str, dict[str, list[str]]] = {  # program: what it is told besides its input
    "address": {
        "kernel_check": [],
        "gguf_check": [],
        "plan_check": ["4000"],
        "threads_check": ["4000"],
        "machine_check": [],
    },
    "thread": {"threads_check": ["4000"], "plan_check": ["0"]},
}
ENVIRONMENT = {
    "ASAN_OPTIONS": "detect_stack_use_after_return=1:strict_string_checks=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
    "TSAN_OPTIONS": "halt_on_error=1",
}


def sets_of(sanitizer: str) -> dict[str, list[str]]:
    """Instruction sets, and their flags."""
    every = toolchain.isas()
    if sanitizer == "thread":
        return {"scalar": every["scalar"]}
    own = {name: flags for name, flags in every.items() if name not in toolchain.BASES}
    return own | {name: [*every[name], *coreprograms.EMULATED_TILES] for name in toolchain.EXTENSIONS if name in every}


def main(sanitizers: list[str]) -> int:
    passed = failed = 0
    with tempfile.TemporaryDirectory() as work:
        inputs = Path(work)
        for sanitizer in sanitizers:
            start = time.monotonic()
            try:
                sets = sets_of(sanitizer)
                programs = ["kernel_check", *RUNS[sanitizer]]
                built = coreprograms.build(sanitizer, FLAGS[sanitizer], programs, sets=sets)
            except (FileNotFoundError, subprocess.CalledProcessError) as e:
                print(f"error: {sanitizer} sanitizer: the core does not build: {e}", file=sys.stderr)
                return 1
            print(f"{sanitizer}: built in {time.monotonic() - start:.0f} s", flush=True)
            coreprograms.make_inputs(built, inputs)
            for program, more in RUNS[sanitizer].items():
                start = time.monotonic()
                command = [str(built / program), *coreprograms.arguments(program, inputs), *more]
                commands = [command]
                if program == "kernel_check":  # a process for each set, side by side
                    commands = [[*command, name, *coreprograms.ops_of(name)] for name in sets]
                with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
                    outcomes = list(pool.map(lambda c: coreprograms.run(c, ENVIRONMENT), commands))
                passed += sum(o.passed for o in outcomes)
                failed += sum(o.failed for o in outcomes)
                told = f"{sum(o.passed for o in outcomes)} passed, {sum(o.failed for o in outcomes)} failed"
                print(f"{sanitizer}: {program}: {told} in {time.monotonic() - start:.0f} s", flush=True)
                for outcome in outcomes:
                    if outcome.failed:
                        print(outcome.output[-8000:], flush=True)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    chosen = sys.argv[1:] or list(FLAGS)
    if any(c not in FLAGS for c in chosen):
        raise SystemExit("usage: python tests/core/sanitize.py [address|thread]")
    raise SystemExit(main(chosen))
