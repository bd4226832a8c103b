"""What all routes share: the model, the thread that runs it, the places for those who wait, and the numbers of it all.

Owns the bounded queue: a place is taken for each sequence until its answer has been taken by the client, so one that
reads slowly cannot have the server pile up more than that. Whoever finds no place is told when to come again.
"""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

import pyedge
from pyedge.server.engine_loop import EngineLoop
from pyedge.server.errors import ApiError
from pyedge.server.metrics import Metrics
from pyedge.server.settings import Settings

if TYPE_CHECKING:
    from pyedge.llm import LLM


class Places:
    """Places for sequences, those that run and those that wait."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.taken = 0
        self._lock = threading.Lock()
        self._left: deque[float] = deque(maxlen=32)  # when the last ones became free

    def take(self, n: int = 1) -> None:
        with self._lock:
            if self.taken + n > self.n:
                raise ApiError(
                    503,
                    f"the server is busy: {self.taken} sequences run or wait, and {self.n} may; try again later",
                    code="server_busy",
                    retry_after=self._retry_after(),
                )
            self.taken += n

    def give_back(self, n: int = 1) -> None:
        with self._lock:
            self.taken -= n
            self._left.extend([time.monotonic()] * n)

    def _retry_after(self) -> int:
        """Seconds until a place is free, at the rate of late."""
        if len(self._left) < 2:
            return 5
        mean = (time.monotonic() - self._left[0]) / len(self._left)
        return min(60, max(1, math.ceil(mean)))


class Service:
    """A loaded model, being served."""

    def __init__(self, llm: LLM, settings: Settings, model: str | None = None) -> None:
        """model: as it was asked for, a path or a name of the store."""
        self.llm = llm
        self.settings = settings
        self.created = int(time.time())
        self.draining = False
        self.embeds = llm.plan.pooling is not None
        self.max_sequences: int = llm.max_sequences
        self.places = Places(self.max_sequences + settings.max_queue)
        path = Path(llm.path)
        asked = str(path) if model is None else model
        is_path = Path(asked).suffix == ".gguf" or Path(asked).exists()
        self.name = settings.name or (path.stem if is_path else asked)
        self._names = {self.name, path.name, path.stem, str(path), asked}
        facts = (pyedge.__version__, path.name, path.stat().st_size if path.exists() else 0, llm.isa, llm.weight_bytes)
        self.fingerprint = "fp_" + hashlib.sha256(repr(facts).encode()).hexdigest()[:10]
        self._loop = None if self.embeds else EngineLoop(llm.engine)
        self.metrics = Metrics(self)

    @property
    def loop(self) -> EngineLoop:
        if self._loop is None:
            raise ApiError(
                400, f"the model {self.name} embeds texts and generates none; use /v1/embeddings, or another model"
            )
        return self._loop

    @property
    def trouble(self) -> str | None:
        """Why no answer can be expected; None: all is well."""
        if self.draining:
            return "the server is shutting down"
        return None if self._loop is None else self._loop.trouble

    def check_model(self, model: str | None) -> None:
        """404 for any model but this one. A call that names none means it."""
        if model is not None and model not in self._names:
            raise ApiError(
                404,
                f"The model {model[:200]!r} does not exist here; {self.name!r} is served.",
                param="model",
                code="model_not_found",
            )

    def close(self) -> None:
        self.draining = True
        if self._loop is not None:
            self._loop.close()
