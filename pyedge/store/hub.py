"""Models of Hugging Face repositories, through huggingface_hub: its settings, tokens and endpoint hold.

Owns which file of a repository is meant, and going on with a download that was interrupted: the library begins anew in
every process, so the bytes are kept here, under their checksum's name, and it is asked for the rest. What came is
compared with the checksum that the repository has for the file. (Plain HTTP, since what a Xet download left behind
cannot be gone on with.)
"""

from __future__ import annotations

import hashlib
import logging
import os
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO, cast

from pyedge.errors import ModelError
from pyedge.store.catalogue import Repository
from pyedge.store.layout import CHUNK, Workplace, put
from pyedge.store.progress import Progress, Tally
from pyedge.store.records import SHARD, File, Received, file_name

if TYPE_CHECKING:
    from huggingface_hub.hf_api import ModelInfo

log = logging.getLogger(__name__)

# Without a FILE, the first of these that a repository has: the quality that most people take, then what is near it.
PREFERRED = (
    "Q4_K_M", "Q4_K_S", "Q5_K_M", "Q5_K_S", "Q4_0", "Q4_1", "IQ4_XS", "IQ4_NL", "MXFP4", "Q6_K", "Q8_0", "Q5_0", "Q5_1",
    "Q3_K_M", "Q2_K", "F16", "BF16", "F32",
)  # fmt: skip

_TIMEOUT = 30  # seconds for the list of files
_RETRIES = 1  # without a byte in between, beyond the library's own
_PIECE = 1 << 18  # bytes; of the library's own 10 MB, a cut connection would lose up to all


@dataclass(frozen=True)
class RemoteFile:
    """A file of a repository."""

    path: str
    size: int
    sha256: str | None  # of what Git LFS or Xet keeps, else None
    blob: str | None  # Git's own checksum: SHA-1 over a header and the bytes

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).name


def fetch(place: Workplace, source: Repository, progress: Progress | None) -> Received:
    """Fetches a model of a repository, and puts it into the place's folder."""
    with _one_line(place.name, source.repo):
        info = _info(place.name, source.repo)
    files = choose(place.name, _files(info), source.file)
    commit = str(info.sha or "main")
    parts = [
        place.partial / f"{file.sha256 or file.blob or f'unproved-{i}'}.incomplete" for i, file in enumerate(files)
    ]
    for other in place.partial.iterdir():
        if other not in parts or other.name.startswith("unproved"):  # it may be of another version
            other.unlink()
    there = [part.stat().st_size if part.exists() else 0 for part in parts]
    size = sum(file.size for file in files)
    place.check_space(size - sum(there), size)
    log.info("%s: %s of %s at %s", place.name, ", ".join(file.path for file in files), source.repo, commit)

    tally = Tally(progress, size)
    digests = []
    for file, part in zip(files, parts, strict=True):
        digests.append(_download(place, source.repo, commit, file, part, tally))
        tally.add(file.size)
    n = len(files)
    names = [file_name(i, n) for i in range(n)]
    for name, part in zip(names, parts, strict=True):
        with open(part, "r+b") as f:
            put(f, part, place.folder / name)
    tally.finish()
    return Received(
        files=[File(name, file.size, d) for name, file, d in zip(names, files, digests, strict=True)],
        source=f"hf:{source.repo}@{commit}",
        origin=" to ".join(dict.fromkeys([files[0].path, files[-1].path])),
        licence=_licence(info),
    )


# ---- which file ------------------------------------------------------------------------------------------------------


def choose(name: str, files: Sequence[RemoteFile], wanted: str | None) -> list[RemoteFile]:
    """The file that is meant, or all shards of it. wanted: a file's name or path, a word in it (`Q4_K_M`), or None."""
    models: dict[str, list[RemoteFile]] = {}
    for file in sorted(files, key=lambda file: file.path):
        if file.name.lower().endswith(".gguf"):
            match = SHARD.fullmatch(file.path)
            models.setdefault(f"{match[1]}.gguf" if match else file.path, []).append(file)
    if not models:
        raise ModelError(f"{name}: the repository has no .gguf file; look for one whose name ends in GGUF")
    if wanted is None:
        found = _by_preference(models)
    else:
        found = [key for key, shards in models.items() if wanted in (key, *(file.path for file in shards))]
        found = found or [
            key for key, shards in models.items() if wanted in (PurePosixPath(key).name, *(f.name for f in shards))
        ]
        found = found or [key for key in models if _has_word(key, wanted)]
    if len(found) != 1:
        choices = ", ".join((found or list(models))[:12]) + (" ..." if len(found or models) > 12 else "")
        what = "has several models" if found or wanted is None else f"has nothing that is called {wanted}"
        raise ModelError(f"{name}: the repository {what}; take one, as hf:ORG/REPO:FILE, of {choices}")
    shards = models[found[0]]
    if (match := SHARD.fullmatch(shards[0].path)) and [f.path for f in shards] != [
        f"{match[1]}-{i + 1:05}-of-{match[3]}.gguf" for i in range(int(match[3]))
    ]:
        raise ModelError(f"{name}: of the {int(match[3])} parts of {found[0]} the repository has {len(shards)}")
    return shards


def _by_preference(models: dict[str, list[RemoteFile]]) -> list[str]:
    if len(models) == 1:
        return list(models)
    for word in PREFERRED:
        if found := [key for key in models if _has_word(key, word)]:
            return found
    return list(models)


def _has_word(path: str, word: str) -> bool:
    """Whether a name has a word such as Q4_K_M, whole. A projector for images has them too, and is no model."""
    stem = PurePosixPath(path).name.lower().removesuffix(".gguf")
    folders = PurePosixPath(path).parent.as_posix().lower()
    pattern = rf"(?<![a-z0-9_]){re.escape(word.lower())}(?![a-z0-9_])"
    return not stem.startswith("mmproj") and bool(re.search(pattern, stem) or re.search(pattern, folders))


# ---- the hub ---------------------------------------------------------------------------------------------------------


def _endpoint() -> str | None:
    return os.environ.get("HF_ENDPOINT") or None


def _info(name: str, repo: str) -> ModelInfo:
    from huggingface_hub import HfApi, constants, errors

    try:
        return HfApi(endpoint=_endpoint()).model_info(repo, files_metadata=True, timeout=_TIMEOUT)
    except (errors.HfHubHTTPError, errors.HFValidationError):  # some of them are ValueErrors, too
        raise
    except (ValueError, TypeError, KeyError, AttributeError) as e:  # a page of a network that wants a log-in
        where = _endpoint() or constants.ENDPOINT
        raise ModelError(f"{name}: {where} does not answer as a hub does; check the network and HF_ENDPOINT") from e


def _headers() -> dict[str, str]:
    """The user's token, unless the library's settings keep it back."""
    from huggingface_hub import constants, get_token

    token = None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token()
    return {"user-agent": "pyedge", "accept-encoding": "identity"} | (
        {"authorization": f"Bearer {token}"} if token else {}
    )


def _files(info: ModelInfo) -> list[RemoteFile]:
    files = []
    for sibling in info.siblings or []:
        lfs = sibling.lfs
        sha256 = lfs.sha256 if lfs is not None and re.fullmatch(r"[0-9a-f]{64}", str(lfs.sha256)) else None
        blob = sibling.blob_id if re.fullmatch(r"[0-9a-f]{40}", str(sibling.blob_id)) and lfs is None else None
        if isinstance(sibling.size, int) and sibling.size >= 0:
            files.append(RemoteFile(sibling.rfilename, sibling.size, sha256, blob))
    return files


def _licence(info: ModelInfo) -> str | None:
    found = [tag.removeprefix("license:") for tag in info.tags or [] if str(tag).startswith("license:")]
    return str(found[0])[:80] if found else None


def _download(place: Workplace, repo: str, commit: str, file: RemoteFile, part: Path, tally: Tally) -> str:
    """Brings a file's bytes to `part`, from where an earlier attempt left off, and proves them. Returns their
    SHA-256."""
    from huggingface_hub import hf_hub_url

    with open(part, "a+b") as f:
        sink = _Sink(f, tally, file)
        if sink.size > file.size:
            sink.begin_anew()
        if sink.size:
            log.info("%s: going on with %s after %d of %d bytes", place.name, file.path, sink.size, file.size)
        if sink.size != file.size:
            with _one_line(place.name, repo), _library():
                _get(hf_hub_url(repo, file.path, revision=commit, endpoint=_endpoint()), sink, file.size)
        sha256, wrong = sink.verdict()
    if wrong:
        part.unlink()
        raise ModelError(f"{place.name}: {file.path} did not come as the repository has it ({wrong}); try again")
    return sha256


def _get(url: str, sink: _Sink, size: int) -> None:
    """Asks for what is missing, again and again as long as some of it comes."""
    from huggingface_hub import constants
    from huggingface_hub.file_download import http_get

    # The library refuses what is larger, where Xet would do better; what is asked for without a size, it fetches.
    expected = size if size <= getattr(constants, "MAX_HTTP_DOWNLOAD_SIZE", size) else None
    fruitless = 0
    while sink.size != size:
        before = sink.size
        failed: Exception | None = None
        try:
            http_get(
                url, cast(BinaryIO, sink), resume_size=before, headers=_headers(), expected_size=expected
            )  # which checks the size it expects
        except Exception as e:
            if not _is_of_the_line(e):
                raise
            failed = e
        fruitless = 0 if before < sink.size <= size else fruitless + 1
        if fruitless > _RETRIES:
            raise failed or OSError(f"{sink.size} bytes came, and it should be {size}")
        if sink.size > size:  # a server that sends all when it is asked for the rest
            sink.begin_anew()
        if failed is not None:
            log.info("%s: %s; asking for the rest", url, failed)
            time.sleep(1)


class _Sink:
    """A file that is written at its end, with the checksums of all its bytes. The library may rewind it and begin
    anew."""

    def __init__(self, f: BinaryIO, tally: Tally, file: RemoteFile) -> None:
        self._f = f
        self._tally = tally
        self._file = file
        self._begin()
        f.seek(0)
        while chunk := f.read(CHUNK):
            self._take(chunk)

    def _begin(self) -> None:
        self.size = 0
        self._sha256 = hashlib.sha256()
        self._blob = hashlib.sha1(b"blob %d\0" % self._file.size, usedforsecurity=False)

    def _take(self, chunk: bytes) -> None:
        self.size += len(chunk)
        self._sha256.update(chunk)
        if self._file.sha256 is None:
            self._blob.update(chunk)
        self._tally.now(self.size)

    def write(self, chunk: bytes) -> int:
        n = self._f.write(chunk)
        self._take(chunk)
        return n

    def tell(self) -> int:
        return self.size

    def seek(self, offset: int, whence: int = 0) -> int:
        if offset != 0 or whence != 0:
            raise OSError(f"only the beginning can be sought, not {offset}")
        return self._f.seek(0)

    def truncate(self) -> int:
        self._begin()
        return self._f.truncate(0)

    def begin_anew(self) -> None:
        self.seek(0)
        self.truncate()

    def flush(self) -> None:
        self._f.flush()

    def verdict(self) -> tuple[str, str | None]:
        """The SHA-256, and what is wrong."""
        sha256, file = self._sha256.hexdigest(), self._file
        if self.size != file.size:
            return sha256, f"{self.size} bytes, not {file.size}"
        if file.sha256 is not None and sha256 != file.sha256:
            return sha256, f"SHA-256 {sha256[:12]}, not {file.sha256[:12]}"
        if file.sha256 is None and file.blob is not None and self._blob.hexdigest() != file.blob:
            return sha256, f"Git's checksum {self._blob.hexdigest()[:12]}, not {file.blob[:12]}"
        return sha256, None


@contextmanager
def _library() -> Iterator[None]:
    """The library as a pull needs it: in small pieces, and without bars and warnings of its own."""
    from huggingface_hub import constants
    from huggingface_hub.utils.tqdm import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    logger = logging.getLogger("huggingface_hub")
    level, bars = logger.level, not are_progress_bars_disabled()
    wanted = {"DOWNLOAD_CHUNK_SIZE": _PIECE, "HF_HUB_ENABLE_HF_TRANSFER": False}  # the other writes past a file object
    settings = {name: getattr(constants, name) for name in wanted if hasattr(constants, name)}
    logger.setLevel(logging.ERROR)
    for name in settings:
        setattr(constants, name, wanted[name])
    if bars:
        disable_progress_bars()
    try:
        yield
    finally:
        logger.setLevel(level)
        for name, value in settings.items():
            setattr(constants, name, value)
        if bars:
            enable_progress_bars()


def _is_of_the_line(e: Exception) -> bool:
    """Whether that is a connection that failed: by any of the libraries below, or a size that is not the promised."""
    from huggingface_hub import errors

    if isinstance(e, (errors.HfHubHTTPError, errors.HFValidationError, errors.OfflineModeIsEnabled)):
        return False
    below = ("huggingface_hub", "httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3", "ssl", "socket")
    return type(e).__module__.partition(".")[0] in below or (type(e) is OSError and e.errno is None)


@contextmanager
def _one_line(name: str, repo: str) -> Iterator[None]:
    """Says in one line what the library's exceptions say in many. The disk's own errors pass."""
    from huggingface_hub import constants, errors

    where = _endpoint() or constants.ENDPOINT
    log_in = 'log in with "hf auth login" or set HF_TOKEN'
    try:
        yield
    except ModelError:
        raise
    except errors.GatedRepoError as e:
        raise ModelError(
            f"{name}: its owner gives it to those who agreed to its terms; agree at {where}/{repo}, and {log_in}"
        ) from e
    except errors.RepositoryNotFoundError as e:
        raise ModelError(
            f"{name}: {where} has no such repository, or a private one; check the name, or {log_in}"
        ) from e
    except errors.HfHubHTTPError as e:
        response = getattr(e, "response", None)
        status = getattr(response, "status_code", None)
        advice = log_in if status in (401, 403) else "check the name" if status == 404 else "try again later"
        raise ModelError(f"{name}: {where} answered with status {status}; {advice}") from e
    except errors.HFValidationError as e:
        raise ModelError(f"{name}: is no repository's name; write hf:ORG/REPO or hf:ORG/REPO:FILE") from e
    except errors.OfflineModeIsEnabled as e:
        raise ModelError(f"{name}: HF_HUB_OFFLINE is set, so nothing is fetched; unset it") from e
    except Exception as e:
        if not _is_of_the_line(e):
            raise  # the disk, or a bug
        reason = " ".join(str(e).split()).rstrip(".")[:200] or type(e).__name__
        raise ModelError(
            f"{name}: the connection to {where} failed: {reason}; check the network and try again:"
            " what has come is kept"
        ) from e
