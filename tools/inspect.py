"""What a GGUF file holds and what is wrong with its numbers: the facts behind `pyedge inspect`.

Owns the description of metadata, tensors and sizes, and the search for weights that cannot be right. Does not own
whether this version can run the model (pyedge.models and pyedge.tokenizers say so), nor how any of it is shown. Works
for every file that the loader opens, of whatever architecture.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any

import numpy as np

from pyedge import _core
from pyedge.tokenizers.vocabulary import SPECIAL_IDS

SHOWN = 8  # elements of a long array
LONG = 64  # elements of an array, and
LONG_TEXT = 65536  # characters of a string, that are given whole
_PIECE = 1 << 20  # values unpacked at once
# Where a block has float16 numbers, by format: the other numbers in it are small integers, so these decide whether its
# values are finite. A format that is not here is unpacked.
SCALES = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "IQ4_NL": (0,), "IQ4_XS": (0,),
    "F16": (0,), "Q2_K": (80, 82), "Q3_K": (108,), "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,),
}  # fmt: skip


def metadata(gguf: _core.Gguf) -> dict[str, Any]:
    """Every key with its value. A long array or text is {"length": its length, "first": its beginning}."""
    return {key: _value(gguf, key) for key in gguf.keys()}  # noqa: SIM118  (a Gguf is no dict)


def _value(gguf: _core.Gguf, key: str) -> Any:
    value: Any = gguf.get(key)
    most = LONG_TEXT if isinstance(value, str) else LONG
    if isinstance(value, (str, list)) and len(value) > most:
        return {"length": len(value), "first": value[: 200 if isinstance(value, str) else SHOWN]}
    return value


def metadata_problems(gguf: _core.Gguf) -> list[str]:
    """Numbers that are none."""
    problems = []
    for key in gguf.keys():  # noqa: SIM118
        value = gguf.get(key)
        values = value if isinstance(value, list) else [value]
        bad = next((v for v in values if isinstance(v, float) and not math.isfinite(v)), None)
        if bad is not None:
            problems.append(f"{key}: is or holds {bad}, which is no number; get the file from another source")
    return problems


def id_problems(gguf: _core.Gguf) -> list[str]:
    """Ids of no token, in keys that the tokenizer does not read, and so does not warn of: `fim_pre`, `mask`, lists."""
    key = "tokenizer.ggml.tokens"
    n_tokens = gguf.length(key) if isinstance(gguf.get(key), list) else 0
    problems = []
    for key in gguf.keys():  # noqa: SIM118
        name = key.removeprefix("tokenizer.ggml.").removesuffix("_token_id")
        if not n_tokens or not re.fullmatch(r"tokenizer\.ggml\.\w+_token_ids?", key) or name in SPECIAL_IDS:
            continue
        value = gguf.get(key)
        for token in value if isinstance(value, list) else [value]:
            if type(token) is not int or not 0 <= token < n_tokens:
                problems.append(f"{key}: {token!r:.40} is outside the vocabulary of {n_tokens} tokens")
                break
    return problems


def tensors(gguf: _core.Gguf) -> list[dict[str, Any]]:
    """Name, type, shape (rows last, as in the file), bytes, and where they lie."""
    files = [os.path.basename(path) for path in gguf.files]
    return [
        {"name": t.name, "type": t.type, "shape": list(t.shape), "bytes": t.n_bytes, "offset": t.offset}
        | ({"file": files[t.file]} if len(files) > 1 else {})
        for t in gguf.tensors
    ]


def sizes(gguf: _core.Gguf) -> dict[str, Any]:
    """Of the file and of its weights: parameters, bytes, bits per weight, bytes by type, largest first."""
    by_type: dict[str, int] = {}
    parameters = n_bytes = 0
    for t in gguf.tensors:
        by_type[t.type] = by_type.get(t.type, 0) + t.n_bytes
        parameters += math.prod(t.shape)
        n_bytes += t.n_bytes
    return {
        "file_bytes": gguf.file_size,
        "files": len(gguf.files),
        "parameters": parameters,
        "weight_bytes": n_bytes,
        "bits_per_weight": 8 * n_bytes / parameters if parameters else None,
        "bytes_by_type": dict(sorted(by_type.items(), key=lambda item: -item[1])),
    }


def unknown_formats(gguf: _core.Gguf) -> list[str]:
    """One problem for every format that this build cannot run."""
    runs = {f.name for f in _core.formats() if f.runs}
    found: dict[str, list[str]] = {}
    for t in gguf.tensors:
        if t.type not in runs:
            found.setdefault(t.type, []).append(t.name)
    return [
        f"{_and_more(names)}: is {kind}, which this version cannot run; take another quantization of the model"
        for kind, names in found.items()
    ]


def weight_problems(gguf: _core.Gguf, progress: Callable[[int, int], None] | None = None) -> list[str]:
    """Reads every weight, in pieces on all processors: NaN, infinity, and tensors of nothing but zeros. A tensor in a
    format that this build cannot unpack is left out. progress: called with bytes done and bytes in all."""
    runs = {f.name for f in _core.formats() if f.runs}
    todo = [t for t in gguf.tensors if t.type in runs]
    total, done = sum(t.n_bytes for t in todo), 0
    faults: dict[str, str | None] = {t.name: None for t in todo}
    batches = list(_batches(todo))
    with ThreadPoolExecutor(_core.machine()["default_threads"]) as pool:
        for batch, found in zip(batches, pool.map(partial(_faults, gguf), batches), strict=True):
            for (tensor, _, n), fault in zip(batch, found, strict=True):
                faults[tensor.name] = _worse(faults[tensor.name], fault)
                done += tensor.n_bytes * n // math.prod(tensor.shape[1:])
            if progress is not None:
                progress(done, total)
    problems = [
        f"{name}: {fault}; the file is damaged or badly made, get it from another source"
        for name, fault in faults.items()
        if fault
    ]
    zeros = [name for name, fault in faults.items() if fault is None]
    if zeros:
        problems.append(f"{_and_more(zeros)}: all values are zero; the model may be unfinished")
    return problems


def _and_more(names: list[str]) -> str:
    return f"{names[0]} (and {len(names) - 1} more)" if len(names) > 1 else names[0]


_Piece = tuple[_core.TensorInfo, int, int]  # so many rows of a tensor from one on


def _batches(tensors: list[_core.TensorInfo]) -> Iterator[list[_Piece]]:
    """All rows of all tensors, in lists that are worth a thread's while."""
    batch: list[_Piece] = []
    values = 0
    for tensor in tensors:
        rows = math.prod(tensor.shape[1:])
        step = max(1, _PIECE // tensor.shape[0])
        for first in range(0, rows, step):
            n = min(step, rows - first)
            batch.append((tensor, first, n))
            values += n * tensor.shape[0]
            if values >= _PIECE or len(batch) >= 4096:
                yield batch
                batch, values = [], 0
    if batch:
        yield batch


def _faults(gguf: _core.Gguf, batch: list[_Piece]) -> list[str | None]:
    return [_fault(gguf, *piece) for piece in batch]


def _worse(a: str | None, b: str | None) -> str | None:
    """What `_fault` says of two parts of a tensor, for both: a fault counts, then a value that is not zero."""
    return a or b or (None if a is b is None else "")


def _fault(gguf: _core.Gguf, tensor: _core.TensorInfo, first: int, n: int) -> str | None:
    """What is wrong with these rows; "" if nothing is, None if they are all zero."""
    if tensor.type in SCALES and _sound(gguf, tensor, first, n):
        return ""
    values = gguf.dequantize(tensor.name, first, n).reshape(-1)
    # The sum of squares shows both at once, in a tenth of the time of a look at each value; it may overflow as well.
    with np.errstate(all="ignore"):
        square = float(np.dot(values, values))
    if math.isfinite(square):
        return "" if square > 0 or np.any(values) else None
    bad = np.flatnonzero(~np.isfinite(values))
    if not len(bad):
        return ""
    at = int(bad[0])
    what = "NaN" if np.isnan(values[at]) else "infinity"
    more = f" (and {len(bad) - 1} more among its neighbours)" if len(bad) > 1 else ""
    return f"value {first * tensor.shape[0] + at} is {what}{more}"


def _sound(gguf: _core.Gguf, tensor: _core.TensorInfo, first: int, n: int) -> bool:
    """Whether all scales of these rows are numbers, and the first row that is looked at has values: read at several
    times the speed of unpacking. False: it takes a closer look."""
    info = _blocks()[tensor.type]
    row_bytes = tensor.n_bytes // math.prod(tensor.shape[1:])
    data = gguf.read(tensor.name, first * row_bytes, n * row_bytes)
    blocks = np.frombuffer(data, np.uint8).reshape(-1, info.block_bytes)
    for at in SCALES[tensor.type]:
        halves = blocks[:, at : at + 2].copy().view("<u2")
        if np.max(halves & 0x7FFF) >= 0x7C00:
            return False
    return bool(np.any(gguf.dequantize(tensor.name, first, 1)))


@cache
def _blocks() -> dict[str, _core.FormatInfo]:
    return {info.name: info for info in _core.formats()}
