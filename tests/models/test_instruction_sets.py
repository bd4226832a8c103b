"""The oracle and invariance tests once more for every other instruction set that this machine can run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from program import ELSEWHERE, environment

from pyedge import _core

OTHERS = [name for name, supported in _core.isas() if supported and name != _core.active_isa()]


@pytest.mark.skipif("PYEDGE_ISA" in os.environ, reason="this run is for the one instruction set that PYEDGE_ISA names")
@pytest.mark.parametrize("file", ["test_core_oracle.py", "test_invariance.py"])
@pytest.mark.parametrize("isa", OTHERS)
def test_with(isa: str, file: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", str(Path(__file__).parent / file)]
    env = environment(PYEDGE_ISA=isa)
    done = subprocess.run(command, env=env, cwd=ELSEWHERE, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
