"""The core's stand-alone test programs (tests/core/*_check.c): builds them from the core's objects, and runs them.

Owns what each program is given and how its answer is read. Flags of the core come from core/toolchain.py. Needs a C
compiler, numpy and gguf, and no built package.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "core"))
import toolchain

TESTS = Path(__file__).resolve().parents[1]
CORE = TESTS.parent / "core"
BUILD = TESTS.parent / "build" / "core-tests"  # kept, so that only what changed is compiled again
EMULATED_TILES = (f"-I{TESTS / 'core' / 'emulated' / 'amx'}",)  # AMX's instructions in plain C
PROGRAMS = ("kernel_check", "threads_check", "machine_check", "gguf_check", "plan_check")

try:
    ISAS = tuple(toolchain.isas())
except FileNotFoundError:  # no compiler: nothing of this can run
    ISAS = ()


def ops_of(isa: str) -> tuple[str, ...]:
    """What kernel_check is to check of an instruction set that extends another: what is its own. None: all."""
    return ("linear",) if isa in toolchain.EXTENSIONS else ()


@dataclass(frozen=True)
class Outcome:
    passed: int
    failed: int
    output: str


def build(
    name: str,
    extra: Sequence[str] = (),
    programs: Sequence[str] = PROGRAMS,
    *,
    cc: Sequence[str] = (),
    sets: Mapping[str, Sequence[str]] | None = None,
) -> Path:
    """Builds the programs with `extra` flags throughout, in a folder of that name, and returns it. `cc` and `sets` are
    toolchain.compile_all's.

    Raises FileNotFoundError where there is no compiler, CalledProcessError where something does not compile.
    """
    out = BUILD / name
    objects = toolchain.compile_all(CORE, out, bindings=False, extra=extra, cc=cc, sets=sets)
    flags = [*toolchain.COMMON, *toolchain.C_FLAGS, f"-I{CORE / 'include'}", f"-I{CORE / 'src'}", *extra]
    newest = max(p.stat().st_mtime for p in [*objects, *(TESTS / "core").rglob("*.h")])

    def link(program: str) -> None:
        source, made = TESTS / "core" / f"{program}.c", out / program
        if made.exists() and made.stat().st_mtime > max(newest, source.stat().st_mtime):
            return
        command = [*(cc or toolchain.compiler()), *flags, str(source), *map(str, objects)]
        subprocess.run([*command, "-lm", "-lpthread", "-o", str(made)], check=True)

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        list(pool.map(link, programs))
    return out


def make_inputs(built: Path, folder: Path) -> None:
    """Writes what the programs read: kernel vectors and GGUF files."""
    make_vectors([built / "kernel_check"], folder)
    subprocess.run([sys.executable, str(TESTS / "core" / "make_files.py"), str(folder)], check=True)


def make_vectors(kernel_check: Sequence[str | Path], folder: Path) -> None:
    """Writes what the command `kernel_check` reads."""
    formats = subprocess.run([*kernel_check, "formats"], check=True, capture_output=True).stdout
    make = [sys.executable, str(TESTS / "core" / "make_vectors.py"), str(folder / "vectors.bin")]
    subprocess.run(make, input=formats, check=True)


def arguments(program: str, folder: Path) -> list[str]:
    if program == "kernel_check":
        return [str(folder / "vectors.bin")]
    if program == "gguf_check":
        whole = (("whole", str(folder / f"{name}.gguf")) for name in ("small", "odd", "odd-"))
        return [*(word for pair in whole for word in pair), "split", str(folder / "parts")]
    if program == "machine_check":
        return [str(folder / "machine")]
    return [str(folder / "model.gguf")] if program == "plan_check" else []


def run(command: Sequence[str | Path], env: Mapping[str, str] | None = None, timeout: float = 240) -> Outcome:
    """Runs a program. One that does not come to its closing line has failed, whatever it counted before."""
    line = [str(c) for c in command]
    try:
        done = subprocess.run(line, env=os.environ | dict(env or {}), capture_output=True, timeout=timeout)
    except subprocess.TimeoutExpired as late:
        return Outcome(0, 1, f"{(late.stdout or b'').decode(errors='replace')}\nstill runs after {timeout:g} s")
    output = (done.stdout + done.stderr).decode(errors="replace")
    if "ThreadSanitizer: unexpected memory mapping" in output and line[0] != "setarch" and shutil.which("setarch"):
        return run(["setarch", "-R", *line], env, timeout)  # this kernel's random addresses are too far apart for it
    counts = re.search(r"^(\d+) passed, (\d+) failed$", done.stdout.decode(errors="replace"), re.MULTILINE)
    passed, failed = (int(counts[1]), int(counts[2])) if counts else (0, 1)
    if done.returncode != 0 and failed == 0:  # a sanitizer speaks at exit
        failed = 1
    return Outcome(passed, failed, output if counts else f"{output}\nended with status {done.returncode}")
