"""What is known of a model in the store: model.json, read with suspicion and written last."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pyedge.store.layout import RECORD, home, model_folder, write_atomically


@dataclass(frozen=True)
class File:
    """A file of a model, in its folder."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True)
class Received:
    """What a source gave: files that lie under their final names already."""

    files: list[File]  # of a split model several, in order
    source: str  # `pypi:PACKAGE==VERSION`, `hf:ORG/REPO@COMMIT`
    origin: str  # their names there
    licence: str | None
    documents: list[str] = field(default_factory=list)  # licence texts, in the folder too


@dataclass(frozen=True)
class Stored:
    """A model that is wholly here."""

    name: str
    folder: Path
    files: list[File]
    source: str
    origin: str
    licence: str | None
    terms: str | None  # of a licence that asks to be read
    documents: list[str]

    @property
    def path(self) -> Path:
        return self.folder / self.files[0].name

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)


SHARD = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf", re.IGNORECASE)


def file_name(i: int, n: int) -> str:
    """What the i-th of a model's n files is called in the store, from 0: shards as their loaders look for them."""
    return "file.gguf" if n == 1 else f"file-{i + 1:05}-of-{n:05}.gguf"


def write(name: str, received: Received, terms: str | None) -> Stored:
    """Makes a model count as being here."""
    folder = model_folder(name)
    first = received.files[0]
    document: dict[str, Any] = {
        "name": name,
        "file": first.name,
        "size": sum(file.size for file in received.files),
        "sha256": first.sha256,
        "source": received.source,
        "origin": received.origin,
        "licence": received.licence,
    }
    if len(received.files) > 1:
        document["files"] = [{"file": f.name, "size": f.size, "sha256": f.sha256} for f in received.files]
    if terms is not None:
        document["terms"] = terms
    if received.documents:
        document["documents"] = received.documents
    write_atomically(folder / RECORD, (json.dumps(document, indent=2) + "\n").encode())
    stored = read(folder)
    assert stored is not None
    return stored


def read(folder: Path) -> Stored | None:
    """The model in a folder of the store, None if it is not whole: a file that is missing or of another size, a record
    that is missing or makes no sense."""
    try:
        facts = json.loads((folder / RECORD).read_bytes())
        files = [File(_name(f["file"]), _size(f["size"]), str(f["sha256"])) for f in facts.get("files") or [facts]]
        if any((folder / file.name).stat().st_size != file.size for file in files):
            return None
        stored = Stored(
            name=str(facts["name"]),
            folder=folder,
            files=files,
            source=str(facts["source"]),
            origin=str(facts["origin"]),
            licence=_text(facts.get("licence")),
            terms=_text(facts.get("terms")),
            documents=[_name(document) for document in facts.get("documents") or []],
        )
        return stored if model_folder(stored.name) == folder else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None


def folders() -> list[Path]:
    """All that the store has of models, whole or not. Raises OSError where that cannot be seen."""
    try:
        return sorted(folder for folder in (home() / "models").iterdir() if folder.is_dir())
    except (FileNotFoundError, NotADirectoryError):
        return []


def _name(value: object) -> str:
    """A file's name, which leads nowhere else."""
    if not isinstance(value, str) or not value or value in (".", "..") or "/" in value or "\0" in value:
        raise ValueError(value)
    return value


def _size(value: object) -> int:
    if not isinstance(value, int) or value < 0:
        raise ValueError(value)
    return value


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
