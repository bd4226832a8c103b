"""`pyedge doctor`: the machine as the core sees it, and what is wrong with the store."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from program import environment, program

from pyedge import _core
from pyedge.cli import cli


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PYEDGE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


def run(*args: str) -> Result:
    return CliRunner().invoke(cli, ["doctor", *args])


def test_figures_are_the_cores(home: Path) -> None:
    result = run("--json")
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    machine = _core.machine()
    assert document["isa"] == _core.active_isa()
    assert [(i["name"], i["runs_here"]) for i in document["isas"]] == _core.isas()
    assert document["threads"] == machine["default_threads"]
    assert document["cpu"]["physical_cores"] == machine["physical_cores"]
    assert document["memory"]["total"] in (machine["memory_total"], None)
    assert document["cuda"]["available"] is False
    assert document["kernels"] == {f.name: _core.active_isa() if f.runs else None for f in _core.formats()}
    assert document["cache"]["folder"] == str(home)
    assert document["cache"]["models"] == 0
    assert document["problems"] == []
    assert not home.exists()


def test_the_text_has_a_line_for_each() -> None:
    lines = run().stdout.splitlines()
    labels = [line[:12].strip() for line in lines]
    assert {"processor", "instructions", "threads", "memory", "GPU", "kernels", "models"} <= set(labels)
    assert f"{_core.active_isa()} (runs)" in "\n".join(lines)


def test_an_instruction_set_that_cannot_run_is_told() -> None:
    result = program("doctor", "--json", env=environment(PYEDGE_ISA="z80"))
    assert result.returncode == 1
    assert result.stderr.startswith("error: ")
    assert "z80" in result.stderr
    assert result.stderr.count("\n") == 1
    assert json.loads(result.stdout)["isa"] is None


@pytest.mark.parametrize("where", ["file", "~nosuchuser/x"])
def test_a_store_that_cannot_be_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setenv("PYEDGE_HOME", str(tmp_path / "file") if where == "file" else where)
    result = run()
    assert result.exit_code == 1
    assert "PYEDGE_HOME" in result.stderr
    assert "Traceback" not in result.output
