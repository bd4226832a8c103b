"""What all routes share: the model, the thread that runs it, the places for those who wait, and the numbers of it all.

Owns the bounded queue: a place is taken for each sequence until its answer has been taken by the client, so one that
reads slowly cannot have the server pile up more than that. Whoever finds no place is told when to come again.
"""

from __future__ import annotations

import hashlib
import math
import os
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


_LOADING = "the model is being loaded; try again soon"


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
    """A model, being served. Until it is there, whoever asks for it is told to come again."""

    def __init__(self, settings: Settings, model: str | os.PathLike[str]) -> None:
        """model: as it was asked for, a path or a name of the store."""
        self.settings = settings
        self.created = int(time.time())
        self.draining = False
        self.places = Places(settings.max_sequences + settings.max_queue)
        asked = os.fspath(model)
        path = Path(asked)
        self.name = settings.name or (path.stem if path.suffix == ".gguf" or path.is_file() else asked)
        self.fingerprint = ""
        self._names = {self.name, asked}
        self._llm: LLM | None = None
        self._loop: EngineLoop | None = None
        self.metrics = Metrics(self)

    def start(self, llm: LLM) -> None:
        """From here on there are answers. The model must have been loaded with the settings' max_sequences."""
        path = Path(llm.path)
        self._names |= {path.name, path.stem, str(path)}
        facts = (pyedge.__version__, path.name, llm.weight_bytes, llm.isa, llm.threads)
        self.fingerprint = "fp_" + hashlib.sha256(repr(facts).encode()).hexdigest()[:10]
        if llm.plan.pooling is None:
            self._loop = EngineLoop(llm.engine)
            # Not when a first form is asked for: streams that are under way would all feel it.
            threading.Thread(target=llm.engine.prepare_grammars, name="pyedge-vocabulary", daemon=True).start()
        self._llm = llm

    @property
    def started(self) -> bool:
        return self._llm is not None

    @property
    def llm(self) -> LLM:
        if self._llm is None:
            raise ApiError(503, _LOADING, code="unavailable", retry_after=2)
        return self._llm

    @property
    def embeds(self) -> bool:
        return self.llm.plan.pooling is not None

    @property
    def loop(self) -> EngineLoop:
        if self.embeds or self._loop is None:
            raise ApiError(
                400, f"the model {self.name} embeds texts and generates none; use /v1/embeddings, or another model"
            )
        return self._loop

    @property
    def trouble(self) -> str | None:
        """Why no answer can be expected; None: all is well."""
        if self.draining:
            return "the server is shutting down"
        if self._llm is None:
            return _LOADING
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
