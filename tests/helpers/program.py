"""Runs pyedge in a process of its own: the very package that the test imported, wherever the tests are started."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from tinymodel import CONTROL, vocabulary, write_tiny_llama

import pyedge

PROGRAM = [sys.executable, "-m", "pyedge"]
ELSEWHERE = tempfile.gettempdir()  # Python would import the checkout, built or not, from the folder it is started in


def environment(**changes: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(Path(pyedge.__file__).parents[1])} | changes


def python(
    *args: str, env: Mapping[str, str] | None = None, given: str = "", timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    """Python with these arguments and this standard input."""
    return subprocess.run(
        [sys.executable, *args],
        env=env or environment(),
        cwd=ELSEWHERE,
        input=given,
        capture_output=True,
        text=True,
        timeout=timeout,
    )


def program(*args: str, env: Mapping[str, str] | None = None, given: str = "") -> subprocess.CompletedProcess[str]:
    """`pyedge ARGS`."""
    return python(*PROGRAM[1:], *args, env=env, given=given)


def write_endless(path: Path) -> Path:
    """A tiny model that never ends its text, and whose context takes it a while to fill: it can be interrupted."""
    output = np.random.default_rng(0).standard_normal((len(vocabulary()[0]), 64))
    output[: len(CONTROL)] = 0
    return write_tiny_llama(path, context=60_000, extra={"output.weight": output})
