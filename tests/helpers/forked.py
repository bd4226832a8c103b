"""Runs many command lines of pyedge within limits, each in a process of its own, forked from one that has all modules
loaded: `python forked.py <cases.json`. Prints, as JSON, how each ended.

Owns the limits: address space over what the modules take, time, and where output goes.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import resource
import signal
import sys
import tempfile
import traceback
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, NoReturn

import pyedge.cli
from pyedge import _core

MEMORY = 500_000_000  # bytes over what a process has that only loaded the modules
SECONDS = 20  # on the clock


@dataclass(frozen=True)
class Outcome:
    code: int  # negative: ended by that signal
    seconds: float  # of processor time: other programs may be at work
    rss_bytes: int
    stdout: str
    stderr: str


def _limit_memory() -> None:
    statm = Path("/proc/self/statm")  # pages; elsewhere than on Linux there is no such limit to set
    if statm.exists():
        limit = int(statm.read_text().split()[0]) * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _become(command: list[str], streams: Sequence[IO[bytes]]) -> NoReturn:
    """The child's life."""
    for number, file in enumerate(streams):
        os.dup2(file.fileno(), number)
    _limit_memory()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.alarm(SECONDS)
    sys.argv = ["pyedge", *command]
    _core.probe = lambda threads=0: {"read_gb_s": 10.0, "int8_gmac_s": 100.0, "f32_gmac_s": 50.0}  # a second, each time
    from pyedge.cli import main

    code = 255
    try:
        main()
    except SystemExit as e:
        code = e.code if isinstance(e.code, int) else 0 if e.code is None else 1
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


class Child:
    def __init__(self, command: list[str], given: str) -> None:
        self.streams = [tempfile.TemporaryFile() for _ in range(3)]  # noqa: SIM115
        self.streams[0].write(given.encode())
        self.streams[0].seek(0)
        self.pid = os.fork()
        if self.pid == 0:
            _become(command, self.streams)

    def wait(self) -> Outcome:
        _, status, usage = os.wait4(self.pid, 0)
        seconds = usage.ru_utime + usage.ru_stime
        texts = []
        for file in self.streams[1:]:
            file.seek(0)
            texts.append(file.read(100_000).decode("utf-8", "surrogateescape"))
        for file in self.streams:
            file.close()
        unit = 1 if sys.platform == "darwin" else 1024
        return Outcome(os.waitstatus_to_exitcode(status), seconds, usage.ru_maxrss * unit, *texts)


def main() -> None:
    for info in pkgutil.iter_modules(pyedge.cli.__path__, "pyedge.cli."):
        importlib.import_module(info.name)
    for name in ("llm", "tools.inspect", "tokenizers.template_sandbox"):
        importlib.import_module(f"pyedge.{name}")
    cases: list[tuple[list[str], str]] = json.load(sys.stdin)
    running: deque[Child] = deque()
    outcomes: list[Outcome] = []
    for command, given in cases:
        running.append(Child(command, given))
        if len(running) == 2:
            outcomes.append(running.popleft().wait())
    outcomes += [child.wait() for child in running]
    sys.stdout.write(json.dumps([asdict(outcome) for outcome in outcomes]))


if __name__ == "__main__":
    main()
