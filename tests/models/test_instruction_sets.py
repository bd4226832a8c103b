"""The core against its oracle, and the invariance rule, once more for every other instruction set of this machine.

What an op or a format is to a set, the kernel vectors of tests/core tell; here it is whole models."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from program import ELSEWHERE, environment

from pyedge import _core

OTHERS = [name for name, supported in _core.isas() if supported and name != _core.active_isa()]
FILES = {  # and what of them is chosen
    "test_core_oracle.py": "shapes_f32 or mixes_f32 or formats_fast or cache",
    "test_invariance.py": "fast",
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        "PYEDGE_ISA" in os.environ, reason="this run is for the one instruction set that PYEDGE_ISA names"
    ),
]


def run(isa: str, file: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", FILES[file]]
    return subprocess.run(
        [*command, str(Path(__file__).parent / file)],
        env=environment(PYEDGE_ISA=isa),
        cwd=ELSEWHERE,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.fixture(scope="module")
def runs() -> Iterator[dict[tuple[str, str], Future[subprocess.CompletedProcess[str]]]]:
    """All of them, on all processors: each is one process of mostly one thread."""
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        yield {(isa, file): pool.submit(run, isa, file) for isa in OTHERS for file in FILES}


@pytest.mark.parametrize("file", FILES)
@pytest.mark.parametrize("isa", OTHERS)
def test_with(isa: str, file: str, runs: dict[tuple[str, str], Future[subprocess.CompletedProcess[str]]]) -> None:
    done = runs[isa, file].result()
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert " passed" in done.stdout
