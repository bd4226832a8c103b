"""A checkpoint in Hugging Face's form: a folder with config.json, weights in safetensors, and a tokenizer.

Owns which files there are, and their reading as what a stranger made: every name, type, shape and offset of a header is
checked before a byte of weights is read. Does not own what tensors and settings mean. The safetensors package is not
used: it hands BF16 to torch only, and by mapping the files, which the memory of a conversion is to be independent of.
Format: https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from pyedge.errors import ModelError

_MOST_HEADER = 100_000_000  # bytes; the format's own limit
_MOST_TEXT = 1 << 28  # bytes of any other file that is read whole; the largest tokenizer.json has 35 MB
_MOST_DIMENSIONS = 8
_SIZES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U64": 8, "U32": 4, "U16": 2,
    "U8": 1, "BOOL": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1,
}  # fmt: skip
FLOATS = ("F32", "F16", "BF16")
AGAIN = "download the checkpoint again"


@dataclass(frozen=True)
class Stored:
    """A tensor of a checkpoint, still on the disk."""

    name: str
    dtype: str
    shape: tuple[int, ...]  # slowest axis first
    path: Path
    offset: int  # bytes, in its file

    @property
    def columns(self) -> int:
        return self.shape[-1] if self.shape else 1

    @property
    def n_rows(self) -> int:
        return math.prod(self.shape[:-1])

    @property
    def n_bytes(self) -> int:
        return math.prod(self.shape) * _SIZES[self.dtype]

    def values(self, first: int, n: int) -> np.ndarray:
        """n rows from one on, as float32 [n, columns]. A value that is no finite number is a ModelError."""
        raw = self.raw(first, n)
        if self.dtype == "F32":
            values = raw.view("<f4")
        elif self.dtype == "F16":
            values = raw.view("<f2").astype(np.float32)
        elif self.dtype == "BF16":
            values = (raw.view("<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            kind = f"{self.dtype} (fp8)" if self.dtype.startswith("F8_") else self.dtype
            raise ModelError(
                f"{self.path.name}: {self.name}: is {kind}, which is not converted; get the checkpoint in F32, F16 or "
                "BF16"
            )
        # The sum of squares shows both at once, and is cheap; it may overflow as well.
        with np.errstate(all="ignore"):
            finite = math.isfinite(float(np.dot(values, values)))
        if not finite and len(bad := np.flatnonzero(~np.isfinite(values))):
            at = int(bad[0])
            what = "NaN" if np.isnan(values[at]) else "infinity"
            raise ModelError(
                f"{self.path.name}: {self.name}: value {first * self.columns + at} is {what}; the weights are damaged, "
                "get the checkpoint from another source"
            )
        return values.reshape(n, self.columns)

    def raw(self, first: int, n: int) -> np.ndarray:
        """n rows from one on, as bytes."""
        row = self.columns * _SIZES[self.dtype]
        with self.path.open("rb", buffering=0) as file:
            raw = np.fromfile(file, np.uint8, n * row, offset=self.offset + first * row)
        if len(raw) != n * row:
            raise ModelError(f"{self.path.name}: {self.name}: its data end before their time; {AGAIN}")
        return raw


class Checkpoint:
    """The folder. Raises ModelError without its name, which is for the caller to say."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        if not self.folder.is_dir():
            raise ModelError("is no folder; give one with a config.json and *.safetensors")

    def text(self, name: str) -> str | None:
        """A file of text; None where there is none."""
        raw = self.bytes(name)
        try:
            return None if raw is None else raw.decode("utf-8")
        except UnicodeDecodeError as e:
            raise ModelError(f"{name}: is not UTF-8; {AGAIN}") from e

    def bytes(self, name: str) -> bytes | None:
        path = self.folder / name
        if not path.is_file():
            return None
        if (size := path.stat().st_size) > _MOST_TEXT:
            raise ModelError(f"{name}: has {size} bytes, and {_MOST_TEXT} is the most that is read; {AGAIN}")
        return path.read_bytes()

    def object(self, name: str) -> dict[str, Any]:
        """A file of one JSON object; an empty one where there is none."""
        value = self.json(name)
        if value is not None and not isinstance(value, dict):
            raise ModelError(f"{name}: is no JSON object; {AGAIN}")
        return value or {}

    def json(self, name: str) -> Any:
        text = self.text(name)
        return None if text is None else _parse(text, name)

    @cached_property
    def config(self) -> dict[str, Any]:
        if not (self.folder / "config.json").is_file():
            raise ModelError("config.json: missing, so this is no checkpoint of Hugging Face's form; give its folder")
        return self.object("config.json")

    @cached_property
    def modules(self) -> list[tuple[str, str]]:
        """What sentence-transformers does one after the other: the kind ("Pooling") and the folder of each."""
        found = self.json("modules.json") or []
        try:
            modules = [(m["type"].rpartition(".")[2], m["path"]) for m in found]
        except (TypeError, KeyError, AttributeError) as e:
            raise ModelError(f"modules.json: is no list of modules; {AGAIN}") from e
        for _, path in modules:
            _check_name(path, "modules.json")
        return modules

    def tensors(self) -> dict[str, Stored]:
        """By name: those of the folder, and those of its modules under `FOLDER.`"""
        found = self._read(self._shards(), "")
        for kind, path in self.modules:
            if kind == "Dense":
                found |= self._read([f"{path}/model.safetensors"], f"{path}.")
        return found

    def _shards(self) -> list[str]:
        index = "model.safetensors.index.json"
        if not (self.folder / index).is_file():
            names = sorted(path.name for path in self.folder.glob("*.safetensors"))
            if "model.safetensors" in names or len(names) == 1:
                return ["model.safetensors" if "model.safetensors" in names else names[0]]
            if names:
                raise ModelError(f"{index}: missing, and there are {len(names)} files of weights; {AGAIN}")
            if found := sorted(self.folder.glob("*.bin")):
                raise ModelError(
                    f"{found[0].name}: weights are read from safetensors only; load the model with transformers and "
                    "save_pretrained() it"
                )
            raise ModelError(f"no *.safetensors: the folder has no weights; {AGAIN}")
        shards = self._weight_map.values()
        for name in shards:
            _check_name(name, index)
        return sorted(set(shards))

    @property
    def _weight_map(self) -> dict[str, Any]:
        value = self.object("model.safetensors.index.json").get("weight_map", {})
        if not isinstance(value, dict):
            raise ModelError(f"model.safetensors.index.json: weight_map is no object; {AGAIN}")
        return value

    def _read(self, shards: list[str], prefix: str) -> dict[str, Stored]:
        found: dict[str, Stored] = {}
        for shard in shards:
            for tensor in read_header(self.folder / shard, shard):
                name = prefix + tensor.name
                if name in found:
                    raise ModelError(f"{shard}: {tensor.name}: is in {found[name].path.name} too; {AGAIN}")
                found[name] = tensor
        if not prefix:
            for name, shard in self._weight_map.items():
                if name not in found:
                    raise ModelError(f"{shard}: {name:.80}: missing, though the index says it is there; {AGAIN}")
        return found


def read_header(path: Path, shown: str) -> list[Stored]:
    """The tensors of a safetensors file. shown: what messages call it."""

    def fail(what: str) -> ModelError:
        return ModelError(f"{shown}: {what}; {AGAIN}")

    if not path.is_file():
        raise fail("missing")
    size = path.stat().st_size
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        if size < 8 or length > min(_MOST_HEADER, size - 8):
            raise fail(f"a header of {length} bytes is not possible in a file of {size}")
        text = file.read(length)
    try:
        header = _parse(text.decode("utf-8"), shown)
    except UnicodeDecodeError:
        raise fail("the header is not UTF-8") from None
    if not isinstance(header, dict):
        raise fail("the header is no JSON object")
    header.pop("__metadata__", None)
    base, tensors = 8 + length, []
    for name, about in header.items():
        if not isinstance(about, dict):
            raise fail(f"{name:.80}: no description")
        dtype, shape, ends = about.get("dtype"), about.get("shape"), about.get("data_offsets")
        if not isinstance(dtype, str) or dtype not in _SIZES:
            raise ModelError(
                f"{shown}: {name:.80}: type {dtype!r:.40} is not known; get the checkpoint in another type"
            )
        if not _naturals(shape) or len(shape) > _MOST_DIMENSIONS or 0 in shape:
            raise fail(f"{name:.80}: shape {shape!r:.80} is not possible")
        if not _naturals(ends) or len(ends) != 2 or ends[1] - ends[0] != math.prod(shape) * _SIZES[dtype]:
            raise fail(f"{name:.80}: offsets {ends!r:.80} do not fit shape {shape} of {dtype}")
        if base + ends[1] > size:
            raise fail(f"{name:.80}: its data end at byte {base + ends[1]}, and the file has {size}: it was cut short")
        tensors.append(Stored(name, dtype, tuple(shape), path, base + ends[0]))
    end = base
    for tensor in sorted(tensors, key=lambda t: t.offset):
        if tensor.offset != end:
            raise fail(f"{tensor.name:.80}: its data do not follow those before")
        end += tensor.n_bytes
    if end != size:
        raise fail(f"{size - end} bytes are behind the last tensor")
    return tensors


def _naturals(value: Any) -> TypeGuard[list[int]]:
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 2**63 for n in value)


def _check_name(name: Any, where: str) -> None:
    """A file's or folder's name must not lead out of the checkpoint."""
    if not isinstance(name, str) or name != os.path.basename(name) or name in (".", "..") or "\0" in name:
        raise ModelError(f"{where}: {name!r:.80} is no name of a file in this folder; {AGAIN}")


def _parse(text: str, name: str) -> Any:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            raise ValueError("a name is there twice")
        return found

    try:
        return json.loads(text, object_pairs_hook=once)
    except (ValueError, RecursionError) as e:
        raise ModelError(f"{name}: is no JSON ({' '.join(str(e).split()):.80}); {AGAIN}") from e
