"""The core's stand-alone C programs: kernels of every instruction set, the thread pool, the limits of cgroups, the
loader and whole plans.

Each program holds many checks and prints those that fail. `python tests/core/sanitize.py` runs the same programs under
the sanitizers.
"""

from __future__ import annotations

from pathlib import Path

import coreprograms
import pytest


@pytest.fixture(scope="module")
def built() -> Path:
    try:
        return coreprograms.build("plain")
    except FileNotFoundError as e:
        pytest.skip(f"no C compiler: {e.filename}")


@pytest.fixture(scope="module")
def inputs(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("inputs")
    coreprograms.make_inputs(built, folder)
    return folder


def check(program: Path, inputs: Path, *more: str) -> None:
    outcome = coreprograms.run([program, *coreprograms.arguments(program.name, inputs), *more])
    if "not on this processor" in outcome.output:
        pytest.skip("this processor does not have that instruction set")
    assert outcome.failed == 0, outcome.output[-4000:]
    assert outcome.passed > 0


@pytest.mark.parametrize("isa", coreprograms.ISAS)
def test_kernels(built: Path, inputs: Path, isa: str) -> None:
    check(built / "kernel_check", inputs, isa, *coreprograms.ops_of(isa))


def test_thread_pool(built: Path, inputs: Path) -> None:
    check(built / "threads_check", inputs)


def test_machine(built: Path, inputs: Path) -> None:
    check(built / "machine_check", inputs)


def test_loader(built: Path, inputs: Path) -> None:
    check(built / "gguf_check", inputs)


def test_plans(built: Path, inputs: Path) -> None:
    check(built / "plan_check", inputs)
