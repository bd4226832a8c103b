"""Checks kernels of instruction sets that this machine may not have: `python tests/core/emulate.py [x86|arm]`.

x86: AVX-VNNI, AVX-512 and AMX, their instructions replaced by plain C (emulated/, by SIMDe but for AMX); arm: NEON,
compiled by a cross compiler and run by qemu. kernel_check holds each set to the vectors and laws that a processor's own
sets are held to. Ends with a line `N passed, N failed`. Needs numpy, gguf, and of Debian's packages libsimde-dev for
x86, or gcc-aarch64-linux-gnu, libc6-dev-arm64-cross and qemu-user for arm.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "helpers"))
import coreprograms
from coreprograms import toolchain

_HEADERS = Path(__file__).resolve().parent / "emulated"
_TILES = coreprograms.EMULATED_TILES
_VERSION = zlib.crc32(b"".join(p.read_bytes() for p in sorted(_HEADERS.rglob("*.h"))))  # a change of them compiles anew
# -Wno-psabi: no vector is passed between this code and another compiler's.
_SHIM = [f"-I{_HEADERS}", f"-DPE_HEADERS={_VERSION}", "-Wno-psabi", "-O1"]
_ARM = ["aarch64-linux-gnu-gcc"]


@dataclass(frozen=True)
class Target:
    isas: Sequence[str]  # to check
    packages: str  # of Debian
    cc: Sequence[str] = ()
    extra: Sequence[str] = ()
    runner: Sequence[str] = ()
    sets: Mapping[str, Sequence[str]] = field(default_factory=dict)  # none: the compiler's for aarch64


TARGETS = {
    "arm": Target(
        ("neon",),
        "gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user",
        cc=_ARM,
        extra=["-static"],
        runner=["qemu-aarch64"],
    ),
    "x86": Target(
        ("avxvnni", "avx512", "amx"),
        "libsimde-dev",
        sets={"scalar": [], "avxvnni": _SHIM, "avx512": _SHIM, "amx": [*_TILES, *_SHIM]},
    ),
}


def kernel_check(name: str) -> list[str | Path]:
    """Builds the program for a target; the command that runs it."""
    target = TARGETS[name]
    start = time.monotonic()
    sets = target.sets or toolchain.isas("aarch64", target.cc)
    extra = ["-Werror", *target.extra]
    built = coreprograms.build(f"emulated-{name}", extra, ["kernel_check"], cc=target.cc, sets=sets)
    print(f"{name}: built in {time.monotonic() - start:.0f} s", flush=True)
    return [*target.runner, built / "kernel_check"]


def check(command: list[str | Path], vectors: Path, isa: str) -> coreprograms.Outcome:
    start = time.monotonic()
    outcome = coreprograms.run([*command, vectors, isa, *coreprograms.ops_of(isa)], timeout=900)
    print(f"{isa}: {outcome.passed} passed, {outcome.failed} failed in {time.monotonic() - start:.0f} s", flush=True)
    if outcome.failed:
        print(outcome.output[-8000:], flush=True)
    return outcome


def main(names: list[str]) -> int:
    checks: list[tuple[list[str | Path], Path, str]] = []
    with tempfile.TemporaryDirectory() as work:
        for name in names:
            try:
                command = kernel_check(name)
                folder = Path(work) / name
                folder.mkdir()
                coreprograms.make_vectors(command, folder)
            except (FileNotFoundError, subprocess.CalledProcessError) as e:
                needs = TARGETS[name].packages
                print(f"error: {name}: {e}; are the packages there? apt-get install {needs}", file=sys.stderr)
                return 1
            checks += [(command, folder / "vectors.bin", isa) for isa in TARGETS[name].isas]
        with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
            outcomes = list(pool.map(lambda job: check(*job), reversed(checks)))  # AVX-512 first: it takes the longest
    passed, failed = sum(o.passed for o in outcomes), sum(o.failed for o in outcomes)
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    chosen = sys.argv[1:] or list(TARGETS)
    if any(c not in TARGETS for c in chosen):
        raise SystemExit("usage: python tests/core/emulate.py [x86|arm]")
    raise SystemExit(main(chosen))
