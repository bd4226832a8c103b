"""The folders and files of the store, and how they change so that nothing half-done counts.

Owns what PYEDGE_HOME means, names of folders, locks, atomic writes, and the room on the disk. Layout, under PYEDGE_HOME
or else the user's cache folder (each of its folders may be a link to another disk):

    models/NAME/file.gguf      the model; of a split one, file-00001-of-0000N.gguf and so on. Beside it, its licence
    models/NAME/model.json     what it is; written last, so a folder without a sound one counts as absent
    models/NAME/partial/       what an interrupted pull received, for the next one to go on with
    models/NAME/scratch/       a download under way; whoever holds NAME's lock may remove it
    locks/NAME                 held (flock) while NAME changes; the kernel frees it when its holder dies
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from pyedge.errors import ModelError

log = logging.getLogger(__name__)

CHUNK = 1 << 20
RECORD = "model.json"
_LONGEST = 180  # characters of a folder's name; file systems take 255 bytes


def home() -> Path:
    """The folder that models are kept in."""
    if (override := _override()) is not None:
        return override
    import platformdirs  # here, since a model given as a path needs none of it

    return Path(platformdirs.user_cache_dir("pyedge", appauthor=False))


def history_file() -> Path:
    """Where `pyedge chat` keeps the lines that were typed: not in the cache (without PYEDGE_HOME), since they cannot be
    fetched again."""
    if (folder := _override()) is None:
        import platformdirs

        folder = Path(platformdirs.user_data_dir("pyedge", appauthor=False))
    return folder / "chat_history"


def _override() -> Path | None:
    """PYEDGE_HOME, in which everything is kept if it is set."""
    value = os.environ.get("PYEDGE_HOME")
    try:
        return Path(value).expanduser().absolute() if value else None
    except RuntimeError:
        raise ModelError(f"PYEDGE_HOME: {value}: there is no such user; give a folder") from None


def model_folder(name: str) -> Path:
    return home() / "models" / folder_name(name)


def folder_name(name: str) -> str:
    """A model's name as one that any file system takes: `:` becomes `@`, all else outside [A-Za-z0-9._-] is escaped."""
    keep = "".join(
        chr(b) if chr(b).isascii() and (chr(b).isalnum() or chr(b) in "._-") else "@" if b == 0x3A else f"%{b:02X}"
        for b in name.encode("utf-8", "surrogateescape")
    )
    if len(keep) > _LONGEST:
        import hashlib  # with tempfile 6 ms, which a model that is there does without

        digest = hashlib.sha256(name.encode("utf-8", "surrogateescape")).hexdigest()
        keep = f"{keep[: _LONGEST - 21]}%-{digest[:19]}"  # no name is escaped to a `%-`
    return "%2E" + keep[1:] if keep.startswith(".") else keep


# ---- files -----------------------------------------------------------------------------------------------------------


def write_atomically(path: Path, data: bytes) -> None:
    """Writes a file whole or not at all, also when the machine loses power."""
    part = path.with_name(path.name + ".part")
    try:
        with open(part, "wb") as f:
            f.write(data)
            put(f, part, path)
    except BaseException as e:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        if isinstance(e, OSError):  # a full disk has no name, and the other one is ours alone
            e.filename, e.filename2 = os.fspath(path), None
        raise


def put(f: BinaryIO, part: Path, target: Path) -> None:
    """Brings an open file's bytes to disk, then gives it its name."""
    f.flush()
    os.fsync(f.fileno())
    os.replace(part, target)
    sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as e:
        if e.errno != errno.EINVAL:  # some network file systems cannot
            raise
    finally:
        os.close(descriptor)


def sha256_of(path: Path) -> str:
    import hashlib

    digest = hashlib.sha256()
    with open(path, "rb") as f:
        while chunk := f.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def bytes_below(folder: Path) -> int:
    total = 0
    for base, _, files in os.walk(folder):
        for file in files:
            with suppress(OSError):  # others move and remove files meanwhile
                total += os.stat(os.path.join(base, file)).st_size
    return total


# ---- a pull's workplace ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Workplace:
    """Where one pull works, with the model's lock held."""

    name: str  # of the model
    folder: Path  # where a finished file gets its name
    partial: Path  # kept for the next attempt when this one fails
    scratch: Path  # removed when this one ends

    def check_space(self, needed: int, to_stay: int) -> None:
        """Refuses at once what would fail at the end. Both in bytes, beyond what is there already."""
        free = shutil.disk_usage(self.folder).free
        if free < needed:
            raise no_space(self.name, free, needed, to_stay)

    def scratch_folder(self) -> Path:
        import tempfile

        return Path(tempfile.mkdtemp(dir=self.scratch))


@contextmanager
def workplace(name: str) -> Iterator[Workplace]:
    """A pull's folders. What it received stays only where it can be of use."""
    folder = model_folder(name)
    partial = folder / "partial"
    scratch = folder / "scratch"
    _clean(folder)  # a damaged file gives its room back first
    partial.mkdir(parents=True, exist_ok=True)
    sync_folder(folder.parent)
    scratch.mkdir(exist_ok=True)
    try:
        yield Workplace(name, folder, partial, scratch)
    finally:
        _clean(folder)


def _unused(folder: Path) -> list[Path]:
    """What nobody can use of a model's folder: without a record, all but the partial; with it, just that."""
    if (folder / RECORD).exists():
        return [path for path in (folder / "scratch", folder / "partial", *folder.glob("*.part")) if path.exists()]
    return [path for path in folder.iterdir() if path.name != "partial"]


def _clean(folder: Path) -> None:
    """Removes what nobody can use of a folder whose lock we hold, and the folder if nothing is left."""
    with suppress(OSError):
        for path in _unused(folder):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        for empty in (folder / "partial", folder):
            with suppress(OSError):
                empty.rmdir()


def no_space(name: str, free: int | None = None, needed: int | None = None, to_stay: int | None = None) -> ModelError:
    """What is said of a disk that is full, or would be."""
    what = f"fetching {name} needs more room"
    if needed is not None:
        what = f"fetching {name} needs {needed / 1e6:.0f} MB for a while, {(to_stay or 0) / 1e6:.0f} MB of it to stay"
    left = "" if free is None else f", and {free / 1e6:.0f} MB is free"
    kept = bytes_below(model_folder(name) / "partial")
    rest = f' ("pyedge rm {name}" gives back the {kept / 1e6:.0f} MB that were fetched)' if kept else ""
    return ModelError(
        f"{home()}: the disk is full: {what}{left}; make room{rest}, or set PYEDGE_HOME to a folder on another disk"
    )


# ---- locks and leftovers ---------------------------------------------------------------------------------------------


@contextmanager
def lock(name: str, waiting: str | None = None) -> Iterator[bool]:
    """Takes the lock of a folder's name, or yields false when it is held elsewhere; with the message `waiting`, waits
    for it. The lock's file stays: if it were removed, two processes could hold two files of one name."""
    import fcntl

    locks = home() / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    with open(locks / name, "ab") as f:
        try:
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waiting is None:
                yield False
                return
            log.warning("%s", waiting)
            fcntl.flock(f, fcntl.LOCK_EX)
        yield True


def is_locked(name: str) -> bool:
    """Whether another process works on that folder's name. Writes nothing."""
    import fcntl

    try:
        with open(home() / "locks" / name, "rb") as f:
            fcntl.flock(f, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False


def remove_leftovers(name: str) -> None:
    """Removes what dead pulls left and nobody can use: of `name`, whose lock we hold, and of those whose lock is free.
    The pip of a killed pull may still be writing there; it fails and ends."""
    for folder in [f for f in (home() / "models").glob("*") if f.is_dir()]:
        if folder == model_folder(name):
            _clean(folder)
            continue
        with suppress(FileNotFoundError):  # somebody else removes it
            if _unused(folder):
                with lock(folder.name) as free:
                    if free:
                        _clean(folder)
