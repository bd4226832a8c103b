"""`pyedge doctor`: what this machine has, and what pyedge makes of it."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from pathlib import Path
from typing import Any

import click

from pyedge.cli import Failure, one_line, verbose
from pyedge.cli.streams import print_json
from pyedge.cli.terminal import harmless, in_bytes
from pyedge.errors import ModelError

_UNKNOWN = 2**64 - 1  # a figure of memory that the system does not tell


@click.command(epilog="\b\nExamples:\n  pyedge doctor\n  pyedge doctor --json")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(as_json: bool) -> None:
    """Show the machine, which kernels run on it and why, and where models are kept.

    The exit code is 1 if something is wrong, which the last line tells.
    """
    from pyedge import __version__, _core

    machine = _core.machine()
    problems: list[str] = []
    isas = dict(_core.isas())
    try:
        isa = _core.active_isa()
    except ValueError as e:  # PYEDGE_ISA names one that cannot run
        isa = None
        problems.append(one_line(e))
    forced = os.environ.get("PYEDGE_ISA")
    why = "PYEDGE_ISA asks for it" if forced else "the best that this build has and this processor runs"
    memory = {
        name: None if machine[f"memory_{name}"] == _UNKNOWN else machine[f"memory_{name}"]
        for name in ("total", "available")
    }
    cache = _cache(problems)
    document: dict[str, Any] = {
        "pyedge": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.release()}",
        "cpu": {
            "name": _cpu_name(),
            "machine": platform.machine(),
            "physical_cores": machine["physical_cores"],
            "logical_limit": machine["cpu_limit"],
        },
        "isa": isa,
        "isa_reason": why if isa else None,
        "isas": [{"name": name, "runs_here": runs} for name, runs in isas.items()],
        "threads": machine["default_threads"],
        "memory": memory,
        "cuda": {"available": False, "reason": "this version computes on the CPU only"},
        "kernels": {f.name: isa if f.runs else None for f in _core.formats()},
        "cache": cache,
        "problems": problems,
    }
    if as_json:
        print_json(document)
    else:
        _print(document)
    if problems:
        raise Failure(problems[0])


verbose(command)


def _print(d: dict[str, Any]) -> None:
    cpu, memory, cache = d["cpu"], d["memory"], d["cache"]
    runs = [name for name, isa in d["kernels"].items() if isa]
    others = [name for name, isa in d["kernels"].items() if not isa]
    free, total = (in_bytes(memory[k]) if memory[k] is not None else "unknown" for k in ("available", "total"))
    there = (
        f"{cache['models']} model{'s' * (cache['models'] != 1)}, {in_bytes(cache['bytes'])}"
        if cache["bytes"] is not None
        else "not readable"
    )
    state = {True: "could run", False: "not on this processor"}
    sets = [f"{i['name']} ({'runs' if i['name'] == d['isa'] else state[i['runs_here']]})" for i in reversed(d["isas"])]
    cores = f"{cpu['physical_cores']} physical cores, {cpu['logical_limit']} logical ones may be used"
    lines = {
        "pyedge": f"{d['pyedge']}, Python {d['python']}, {d['system']} on {cpu['machine']}",
        "processor": f"{cpu['name']}: {cores}",
        "instructions": ", ".join(sets),
        "why": f"{d['isa']}: {d['isa_reason']}" if d["isa"] else "none can run",
        "threads": f"{d['threads']}, one per physical core that may be used",
        "memory": f"{free} free of {total}",
        "GPU": f"none: {d['cuda']['reason']}",
        "kernels": f"{', '.join(runs)}: by {d['isa'] or 'none'}",
        "no kernels": ", ".join(others),
        "models": f"{cache['folder']}: {there}; {in_bytes(cache['free']) if cache['free'] is not None else '?'} free",
    }
    for label, text in lines.items():
        click.echo(f"{label:12}  {harmless(text)}")


def _cache(problems: list[str]) -> dict[str, Any]:
    """The store: where it is, what it holds, and what is wrong with it."""
    from pyedge import store

    facts: dict[str, Any] = {"folder": None, "models": 0, "bytes": None, "free": None}
    try:
        folder = store.home()
        facts["folder"] = str(folder)
        facts["models"] = len(store.kept())
        facts["bytes"] = store.size()
        above = next((f for f in (folder, *folder.parents) if f.is_dir()), Path("/"))
        facts["free"] = shutil.disk_usage(above).free
        if not folder.is_dir() and folder.exists():
            problems.append(f"{folder}: is not a folder, so no model can be kept; set PYEDGE_HOME elsewhere")
        elif not os.access(above, os.W_OK):
            problems.append(f"{folder}: cannot be written, so no model can be fetched; set PYEDGE_HOME elsewhere")
    except (OSError, ModelError) as e:
        problems.append(one_line(e))
    return facts


def _cpu_name() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as f:
            for line in f:
                if line.lower().startswith(("model name", "hardware")):
                    return " ".join(line.partition(":")[2].split())
    except OSError:
        pass
    if sys.platform == "darwin":
        import subprocess

        asked = subprocess.run(["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True)
        if asked.stdout.strip():
            return asked.stdout.strip()
    return platform.processor() or platform.machine() or "unknown"
