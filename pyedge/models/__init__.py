"""Model families: `build_plan` turns an open GGUF into the Plan that the core runs.

A family is one module of this package with ARCHITECTURES (values of `general.architecture`), IGNORED (tensors it may
leave unread), CHECKPOINTS (how Hugging Face's name the same things), hparams() and build(); it is found by its file
being here.
"""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Protocol, cast

from pyedge.errors import ModelError
from pyedge.models.checkpoint import Checkpoint
from pyedge.models.hparams import HParams
from pyedge.models.plan import Plan, PlanBuilder

if TYPE_CHECKING:
    from pyedge import _core

__all__ = ["HParams", "Plan", "architectures", "build_plan", "checkpoints"]


class Family(Protocol):
    ARCHITECTURES: tuple[str, ...]
    CHECKPOINTS: tuple[Checkpoint, ...]
    IGNORED: tuple[str, ...]

    def hparams(self, gguf: _core.Gguf, architecture: str) -> HParams: ...
    def build(self, p: PlanBuilder, h: HParams) -> None: ...


@cache
def _families() -> dict[str, Family]:
    modules = [importlib.import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__)]
    return {name: cast(Family, m) for m in modules for name in getattr(m, "ARCHITECTURES", ())}


def architectures() -> list[str]:
    """What `general.architecture` may be."""
    return sorted(_families())


def checkpoints() -> dict[str, Checkpoint]:
    """By what config.json may have among its `architectures`."""
    return {name: c for family in _families().values() for c in family.CHECKPOINTS for name in c.classes}


def build_plan(gguf: _core.Gguf, max_model_len: int | None = None) -> Plan:
    """The plan of the model in an open file. Raises ModelError: `FILE: key or tensor: what is wrong`.

    max_model_len: tokens that a sequence will have at most; None: the model's context. Some models rotate by other
    factors when they are used for more than they were first trained for.
    """
    try:
        architecture = gguf.get("general.architecture")
        if architecture is None:
            raise ModelError("general.architecture: missing, so the file does not say what model it holds; get another")
        if not isinstance(architecture, str) or (family := _families().get(architecture)) is None:
            known = ", ".join(architectures())
            raise ModelError(f"general.architecture: {architecture!r:.80} is not supported; supported: {known}")
        h = family.hparams(gguf, architecture)
        if max_model_len is not None:
            h = replace(h, max_model_len=max_model_len)
        p = PlanBuilder(gguf, h)
        family.build(p, h)
        return p.finish((*family.IGNORED, *h.rotary.unread(h.max_model_len)))
    except ModelError as e:
        if str(e).startswith(gguf.path):  # the loader's own errors name the file
            raise
        raise ModelError(f"{gguf.path}: {e}") from None
