"""Which tensors of a checkpoint make which ones of a file: by the names that a family's table has.

Owns the spellings of names, stacks of experts, and that nothing is left over and nothing shown to be missing. Does not
own the tables (pyedge/models), what is done to values (made_tensor.py) and whether a model runs (its Plan).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from itertools import islice

from pyedge.errors import ModelError
from pyedge.models.checkpoint import Checkpoint as About
from pyedge.models.checkpoint import To
from pyedge.tools.checkpoint import AGAIN, Stored

_NAMED = 5  # of many names, in a message
_COUNTED = 10_000  # and no more are counted
_SUFFIXES = (".weight", ".bias")
_NUMBERS = ("{i}", "{e}")

Placed = Mapping[str, tuple[To, list[Stored]]]  # by the file's names: what each is made of


@dataclass
class _Stack:
    to: To
    pattern: str  # of the checkpoint's names: `model.layers.{i}.mlp.experts.{e}.up_proj.weight`
    layer: int
    parts: dict[int, Stored]


def placed(about: About, stored: Mapping[str, Stored], n_layers: int, optional: Sequence[str]) -> Placed:
    """optional: of the names that are in no layer (`output`), those that may be missing. Raises ModelError."""
    stacks: dict[str, _Stack] = {}
    unknown = []
    for name, tensor in stored.items():
        if any(fnmatchcase(one, pattern) for one in _spelled(about, name) for pattern in about.ignored):
            continue
        if (target := _target(about, name)) is None:
            unknown.append(name)
            continue
        pattern, numbers, suffix = target
        for to in _targets(about, pattern):
            layer, number = (*numbers, 0, 0)[:2]
            full = to.name.replace("{i}", str(layer))
            full += "" if full.endswith(_SUFFIXES) else suffix
            at = number if "{i}" in to.name else layer
            parts = stacks.setdefault(full, _Stack(to, pattern + suffix, layer, {})).parts
            if at in parts:
                raise ModelError(f"{name}: {full} is made of {parts[at].name} already; {AGAIN}")
            parts[at] = tensor
    if unknown:
        has = "has" if len(unknown) == 1 else "have"
        raise ModelError(
            f"{_listed(iter(unknown))}: {has} no place in a file of {about.architecture}, so the model would not be "
            "what it is; take another"
        )
    if missing := _listed(_missing(about, stacks, n_layers, optional)):
        raise ModelError(f"{missing}: missing; {AGAIN}")
    return {full: (stack.to, [stack.parts[i] for i in range(len(stack.parts))]) for full, stack in stacks.items()}


def _missing(about: About, stacks: Mapping[str, _Stack], n_layers: int, optional: Sequence[str]) -> Iterator[str]:
    """The checkpoint's names of what stands before and behind the layers, of what a layer lacks that another has, and
    of experts that are not there. What all layers lack is found when the plan is built: not every model has all."""
    ends = {full.rpartition(".")[0] for full in stacks}
    for pattern in about.tensors:
        if any("{i}" not in to.name and to.name not in (*ends, *optional) for to in _targets(about, pattern)):
            yield f"{pattern}.weight"
    in_layers = {(stack.pattern, stack.to.name) for stack in stacks.values() if "{i}" in stack.to.name}
    there = {(stack.pattern, stack.to.name, stack.layer) for stack in stacks.values()}
    for i in range(n_layers):
        for pattern, name in sorted(in_layers):
            if (pattern, name, i) not in there:
                yield pattern.replace("{i}", str(i)).replace("{e}", "*")
    for stack in stacks.values():
        for e in range(max(stack.parts) + 1 if len(stack.parts) <= max(stack.parts) else 0):
            if e not in stack.parts:
                yield stack.pattern.replace("{i}", str(stack.layer)).replace("{e}", str(e))


def _listed(names: Iterator[str]) -> str:
    """The first ones, and how many there are."""
    first = list(islice(names, _NAMED))
    n = sum(1 for _ in islice(names, _COUNTED))
    return ", ".join(name[:80] for name in first) + (f" and {n} more" if n else "")


def _spelled(about: About, name: str) -> list[str]:
    """The names that a tensor's may stand for: without what it begins with, and as TensorFlow's ended."""
    for old, new in ((".gamma", ".weight"), (".beta", ".bias")):
        name = name.removesuffix(old) + new if name.endswith(old) else name
    return [name] + [name.removeprefix(p) for p in about.prefixes if name.startswith(p)]


def _target(about: About, name: str) -> tuple[str, list[int], str] | None:
    """The table's name for it, the numbers in the tensor's, and the end that the table leaves out."""
    tried = _spelled(about, name)
    _, dot, last = tried[0].rpartition(".")
    suffix = dot + last if dot + last in _SUFFIXES else ""
    tried += [f"model.{one}" for one in tried]
    for one in tried:
        for spelled, end in ((one, ""), (one.removesuffix(suffix), suffix)) if suffix else ((one, ""),):
            numbers, pattern, marks = [], [], iter(_NUMBERS)
            for part in spelled.split("."):
                is_number = part.isdecimal() and len(part) < 6
                numbers += [int(part)] if is_number else []
                pattern.append(next(marks, part) if is_number else part)
            if ".".join(pattern) in about.tensors:
                return ".".join(pattern), numbers, end
    return None


def _targets(about: About, pattern: str) -> tuple[To, ...]:
    to = about.tensors[pattern]
    return tuple(To(one) if isinstance(one, str) else one for one in ((to,) if isinstance(to, (str, To)) else to))
