"""Fuzzes the loader with libFuzzer: `python tests/core/fuzz/run.py --minutes 60`.

Needs clang with its fuzzer and sanitizers, the gguf package, and pyedge itself for the kind `plan`. The time is shared
by the kinds of input. The corpus begins with seeds.py and grows in build/fuzz, which is kept; what crashes, or takes
over 1 s or 500 MB, lies there too, and ends the run with status 1.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "helpers"))
import coreprograms
import seeds

HERE = Path(__file__).resolve().parent
WORK = HERE.parents[2] / "build" / "fuzz"
SANITIZERS = "address,undefined,float-cast-overflow"
FLAGS = [
    "-O1",
    "-g1",
    "-fno-omit-frame-pointer",
    "-fno-sanitize-recover=all",
    f"-fsanitize=fuzzer-no-link,{SANITIZERS}",
]
LIMITS = ["-timeout=1", "-rss_limit_mb=500", "-max_len=8192", "-detect_leaks=1"]


def clang() -> str:
    """The newest clang: $CC if that is one, else by name."""
    names = [os.environ.get("CC", ""), "clang", *(f"clang-{v}" for v in range(30, 10, -1))]
    for name in names:
        if "clang" in name and (found := shutil.which(name)):
            return found
    raise SystemExit("error: no clang here; install clang with its runtime libraries (libclang-rt), or set CC")


def build(kinds: list[str]) -> dict[str, Path]:
    """Kernels are built without instruments, by the usual compiler: with them they take clang many minutes, and
    plan_check runs them under the sanitizers."""
    plain = coreprograms.build("plain", programs=[])
    kernels = [str(o) for isa in coreprograms.ISAS for o in sorted((plain / isa).glob("*.o"))]
    compiler, toolchain, core = clang(), coreprograms.toolchain, coreprograms.CORE
    flags = [*toolchain.COMMON, *toolchain.C_FLAGS, *toolchain.isa_defines(coreprograms.ISAS), *FLAGS]
    flags += [f"-I{core / 'include'}", f"-I{core / 'src'}"]
    WORK.mkdir(parents=True, exist_ok=True)

    def compile_one(source: Path) -> str:
        made = WORK / f"{source.stem}.o"
        subprocess.run([compiler, *flags, "-c", str(source), "-o", str(made)], check=True)
        return str(made)

    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        objects = list(pool.map(compile_one, sorted((core / "src").glob("*.c"))))
    programs = {}
    for kind in kinds:
        programs[kind] = WORK / f"fuzz_{kind}"
        command = [compiler, *flags, f"-fsanitize=fuzzer,{SANITIZERS}", f"-DKIND=fuzz_{kind}", str(HERE / "fuzz.c")]
        subprocess.run([*command, *objects, *kernels, "-lm", "-lpthread", "-o", str(programs[kind])], check=True)
    return programs


def fuzz(kind: str, program: Path, seconds: float) -> bool:
    """True if nothing was found."""
    corpus, found = WORK / f"corpus_{kind}", WORK / "found"
    for folder in (corpus, found):
        folder.mkdir(parents=True, exist_ok=True)
    for name, content in seeds.KINDS[kind]().items():
        (corpus / f"seed_{name}").write_bytes(content)
    words = WORK / "words.dict"
    words.write_text(seeds.dictionary())
    command = [str(program), str(corpus), f"-dict={words}", f"-artifact_prefix={found}/{kind}-", *LIMITS]
    command += [f"-max_total_time={max(1, round(seconds))}", "-print_final_stats=1"]
    memory = "/dev/shm"  # where there is one, an input's file need not go to a disk
    scratch = {"TMPDIR": memory} if os.access(memory, os.W_OK) else {}
    print(f"=== {kind}: {seconds:.0f} s", flush=True)
    return subprocess.run(command, env=os.environ | scratch).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description="Fuzz the loader.")
    parser.add_argument("--minutes", type=float, default=60, help="in all [60]")
    parser.add_argument("--kind", choices=list(seeds.KINDS), action="append", help="of input; several times [all]")
    given = parser.parse_args()
    kinds: list[str] = given.kind or list(seeds.KINDS)
    programs = build(kinds)
    clean = [fuzz(kind, programs[kind], given.minutes * 60 / len(kinds)) for kind in kinds]
    print("nothing found" if all(clean) else f"see {WORK / 'found'}")
    return 0 if all(clean) else 1


if __name__ == "__main__":
    raise SystemExit(main())
