"""A file that is there whole or not at all.

Owns where bytes lie until a file is finished, how it takes its name, and what is left where that fails: nothing, and
the file that had the name before. Does not know what the bytes mean.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import stat
from types import TracebackType
from typing import Any

_LARGE = 1 << 20  # bytes of a piece that the disk is told of
_SMALL = 1 << 16  # bytes of a piece that waits for others, to be written with them
_NO_UNNAMED = (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL)  # what systems say that lack such files


class OutputFile:
    """A context in which a file is written. Leaving it gives the file its name, once it is on the disk; leaving it by
    an exception, Ctrl-C included, drops what was written. While it is written it has no name where the system can do
    that (Linux, most file systems), so that not even a killed process leaves anything; elsewhere it is a hidden file
    beside the one that it will be.

    Raises OSError that names `path`, and at once where its folder has fewer than `size` bytes left.
    """

    def __init__(self, path: str | os.PathLike[str], size: int = 0) -> None:
        self.path = os.fspath(path)
        self._target = os.path.realpath(self.path)  # a link to a file goes on to be one
        self._folder, self._name = os.path.split(self._target)
        self._size = size
        self._part: str | None = None  # the name until the file is finished, if it has one
        self._fd = -1
        self._written = 0  # bytes
        self._waiting = bytearray()  # to be written

    def __enter__(self) -> OutputFile:
        try:
            if os.path.exists(self._target) and not stat.S_ISREG(os.stat(self._target).st_mode):
                raise OSError(errno.EINVAL, "is there and no regular file; give another name")
            free = shutil.disk_usage(self._folder).free
            if free < self._size:
                text = f"needs {self._size:,} bytes, and {free:,} are free on its disk; make room or write elsewhere"
                raise OSError(errno.ENOSPC, text)
            self._fd = self._open()
        except OSError as e:
            raise self._named(e) from e
        return self

    def write(self, data: Any) -> None:
        """Appends the bytes of a buffer."""
        view = memoryview(data)
        if view.nbytes == 0:  # which cannot be cast
            return
        view = view.cast("B")
        if len(self._waiting) + view.nbytes <= _SMALL:  # a model may have many small tensors, and padding behind each
            self._waiting += view
            return
        if self._waiting:
            waiting, self._waiting = self._waiting, bytearray()
            self._write(memoryview(waiting))
        self._write(view)

    def _write(self, view: memoryview) -> None:
        first, n = self._written, view.nbytes
        try:
            while len(view):
                view = view[os.write(self._fd, view) :]
            self._written += n
            if n >= _LARGE and hasattr(os, "posix_fadvise"):
                # Linux begins to write such pages to the disk, and drops none of them, as they are not written yet: so
                # that the disk works while the next ones are made, and not only at the end.
                os.posix_fadvise(self._fd, first, n, os.POSIX_FADV_DONTNEED)
        except OSError as e:
            raise self._named(e) from e

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is None:
                self._finish()
        except OSError as failure:
            raise self._named(failure) from failure
        finally:
            if self._part is not None:
                os.unlink(self._part)
                self._part = None
            os.close(self._fd)

    def _open(self) -> int:
        if unnamed := getattr(os, "O_TMPFILE", 0):
            try:
                return os.open(self._folder, unnamed | os.O_WRONLY | os.O_CLOEXEC, 0o666)
            except OSError as e:
                if e.errno not in _NO_UNNAMED or not os.path.isdir(self._folder):
                    raise
        part = self._beside()
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        self._part = part
        return fd

    def _beside(self) -> str:
        return os.path.join(self._folder, f".{self._name[:200]}.{secrets.token_hex(4)}.part")

    def _finish(self) -> None:
        self._write(memoryview(self._waiting))
        os.fsync(self._fd)
        folder = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            if self._part is None:  # it takes a name of its own first: a link replaces nothing, a renaming does
                part = self._beside()
                source = f"/proc/self/fd/{self._fd}"
                os.link(source, part, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=True)
                self._part = part
            os.replace(self._part, self._target)
            self._part = None
            os.fsync(folder)
        finally:
            os.close(folder)

    def _named(self, e: OSError) -> OSError:
        return OSError(e.errno, e.strerror, self.path)


class _Dropped(Exception):
    pass


def check_output(path: str | os.PathLike[str], size: int = 0) -> None:
    """Raises what would be raised at once if a file of so many bytes were written there, before something that takes
    long. Leaves nothing."""
    with contextlib.suppress(_Dropped), OutputFile(path, size):
        raise _Dropped
