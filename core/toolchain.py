"""What the core is compiled from and with: the one owner of sources, instruction sets and flags.

setup.py, the sanitizer build and the stand-alone kernel test all build through this file, so that they cannot drift.
Kernel sources (`src/cpu/*.c`) are compiled once per instruction set, each time against that set's `vec.h` and `dot.h`;
everything else is compiled once, for the baseline of the machine's architecture. Nothing uses -march=native: a wheel
must run on any processor of its architecture, and the best set is chosen at run time.
"""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

# Flags that each instruction set of an architecture needs beyond the baseline, worst set first. The folder
# `src/isa/<name>` holds its vocabulary. Every architecture has `scalar` besides.
_AVX2 = ["-mavx2", "-mfma", "-mf16c"]
_AVX512 = [*_AVX2, "-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni"]
_FLAGS: dict[str, dict[str, list[str]]] = {
    "x86_64": {
        "avx2": _AVX2,
        "avxvnni": [*_AVX2, "-mavxvnni"],
        "avx512": _AVX512,
        "amx": [*_AVX512, "-mamx-tile", "-mamx-int8"],
    },
    # gcc for ARM otherwise moves loads up before it gives out registers, and spills: 14 vector accesses to the stack in
    # the loop of a u4 tile of 4 tokens, none without.
    "aarch64": {"neon": ["-march=armv8.2-a+dotprod", "-fno-schedule-insns"]},
}
_ALIASES = {"amd64": "x86_64", "arm64": "aarch64"}

# Where a set's kernels find the headers that its own folder lacks.
BASES = {"avxvnni": "avx2", "amx": "avx512"}

# What the assembler must know of a set whose instructions the compiler does not make.
_ASSEMBLY = {"amx": 'void f(void) { __asm__("tilerelease"); }'}

# Sets that take their base's functions but for those of their own folder's sources.
EXTENSIONS = {"amx"}

# Kernels that take another set's vocabulary, and only the flags from their own. The cache is written and unpacked by
# whole vectors, and heads and pages may be 8 wide.
BORROWED = {("avx512", "kv"): "avx2"}

# -fno-tree-ter: gcc otherwise sinks each product of a tile to its use, past the sixteen registers there are, and spills
# them (98 vector accesses to the stack in the u4 tile of 4 tokens, 26 without, most of them outside its main loop).
# clang has no such pass and says so.
# -ffp-contract=off: a compiler that fuses at will gives different bits in two copies of one loop (the invariance rule).
COMMON = [
    "-O2", "-fPIC", "-fvisibility=hidden", "-ffp-contract=off", "-fno-math-errno", "-fno-trapping-math",
    "-fno-tree-ter", "-Wno-ignored-optimization-argument",
    "-Wall", "-Wextra", "-D_GNU_SOURCE",
]  # fmt: skip
C_FLAGS = ["-std=c11", "-Wshadow", "-Wstrict-prototypes", "-Wmissing-prototypes"]
CXX_FLAGS = ["-std=c++17"]


def compiler() -> list[str]:
    """The C compiler, as a command."""
    return shlex.split(os.environ.get("CC", "cc"))


def isas(machine: str | None = None, cc: Sequence[str] = ()) -> dict[str, list[str]]:
    """The instruction sets of `machine` (as in platform.machine(); None: this one), worst first, with their flags.

    Sets that the compiler `cc` is too old for are left out. Raises FileNotFoundError where it is not there.
    """
    name = (machine or platform.machine()).lower()
    sets = {"scalar": []} | _FLAGS.get(_ALIASES.get(name, name), {})
    return {
        isa: flags
        for isa, flags in sets.items()
        if not flags or _knows(cc or compiler(), flags, _ASSEMBLY.get(isa, ""))
    }


def compile_all(
    core: Path,
    out: Path,
    *,
    bindings: bool,
    includes: Sequence[str] = (),
    extra: Sequence[str] = (),
    cc: Sequence[str] = (),
    sets: Mapping[str, Sequence[str]] | None = None,
) -> list[Path]:
    """Compiles the core under `core` into objects under `out`, in parallel, and returns them.

    `bindings` adds core/bindings (C++, needs the include folders of Python and pybind11 in `includes`); `extra` flags
    (sanitizers, -Werror) go to every file. `cc` and `sets` (instruction sets and their flags) are given for
    another machine than this one. An object newer than its source and every header is kept.
    """
    extra = [*extra, *shlex.split(os.environ.get("PYEDGE_CFLAGS", ""))]
    cc, cxx = cc or compiler(), shlex.split(os.environ.get("CXX", "c++"))
    sets = isas(cc=cc) if sets is None else sets
    c = [*cc, *COMMON, *C_FLAGS, f"-I{core / 'include'}", f"-I{core / 'src'}", *extra]
    jobs = [(s, out / "core" / f"{s.stem}.o", [*c, *isa_defines(sets)]) for s in sorted((core / "src").glob("*.c"))]
    for isa, flags in sets.items():
        for s in kernels(core, isa):
            isa_command = [*c, *flags, *vocabulary(core, isa, s.stem), *names(isa)]
            jobs.append((s, out / isa / f"{s.stem}.o", isa_command))
    if bindings:
        cpp = [*cxx, *COMMON, *CXX_FLAGS, f"-I{core / 'include'}", *(f"-isystem{i}" for i in includes), *extra]
        jobs += [(s, out / "bindings" / f"{s.stem}.o", cpp) for s in sorted((core / "bindings").glob("*.cpp"))]
    newest = max(p.stat().st_mtime for p in core.rglob("*") if p.suffix in (".h", ".hpp", ".def", ".py"))
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        list(pool.map(lambda job: _compile(*job, newest), jobs))
    return [obj for _, obj, _ in jobs]


def kernels(core: Path, isa: str) -> list[Path]:
    """The sources that are compiled for one instruction set."""
    shared = core / "src" / "cpu"
    own = sorted((core / "src" / "isa" / isa).glob("*.c"))
    return [*own, shared / "table.c"] if isa in EXTENSIONS else sorted(shared.glob("*.c"))


def names(isa: str) -> list[str]:
    """The defines by which kernels name functions: PE_ISA's, and those few that are PE_SET's own."""
    return [f"-DPE_ISA={BASES[isa] if isa in EXTENSIONS else isa}", f"-DPE_SET={isa}"]


def vocabulary(core: Path, isa: str, kernel: str) -> list[str]:
    """The include flags under which `src/cpu/<kernel>.c` finds what it is written in, for one instruction set."""
    name = BORROWED.get((isa, kernel), isa)
    return [f"-I{core / 'src' / 'isa' / folder}" for folder in (name, BASES.get(name)) if folder]


def isa_defines(sets: Iterable[str]) -> list[str]:
    """One -D per instruction set in this build, for the table in src/isa.c."""
    return [f"-DPE_HAVE_{isa.upper()}" for isa in sets]


def _knows(cc: Sequence[str], flags: Sequence[str], source: str) -> bool:
    command = [*cc, *flags, "-c", "-x", "c", "-", "-o", os.devnull]
    return subprocess.run(command, input=source.encode(), capture_output=True).returncode == 0


def _compile(source: Path, obj: Path, command: Sequence[str], newest_header: float) -> None:
    stamp = obj.with_suffix(".cmd")  # a change of flags or compiler rebuilds too
    line = shlex.join(command)
    if obj.exists() and stamp.exists() and stamp.read_text() == line:
        made = obj.stat().st_mtime
        if made > source.stat().st_mtime and made > newest_header:
            return
    obj.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run([*command, "-c", str(source), "-o", str(obj)], check=True)
    stamp.write_text(line)
