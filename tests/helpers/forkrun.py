"""Runs a function in a forked process. Owns the fork and the time it may take."""

from __future__ import annotations

import os
import select
import signal
import warnings
from collections.abc import Callable


def in_child(work: Callable[[], object]) -> str:
    """What the work gives in a forked process."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python's own, about forking with threads
        child = os.fork()
    if child == 0:
        try:
            said = str(work())
        except BaseException as e:
            said = f"{type(e).__name__}: {e}"
        os.write(writer, said.encode())
        os._exit(0)
    os.close(writer)
    ready, _, _ = select.select([reader], [], [], 30)
    said = os.read(reader, 65536).decode() if ready else "it hangs"
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(reader)
    return said
