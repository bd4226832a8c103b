"""Models of a hub's repositories: which file is meant, going on after a cut, and all the ways a download fails."""

import hashlib
import json
import logging
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from fakehub import COMMIT, REPO, Hub, hub
from wheelhouse import child, files_in_store

from pyedge import store
from pyedge.errors import ModelError
from pyedge.store.hub import _PIECE, RemoteFile, choose

NAME = f"hf:{REPO}"
CONTENT = b"GGUF" + os.urandom(16) * 130_000  # eight pieces
PARTIAL = f"models/hf@org%2Frepo/partial/{hashlib.sha256(CONTENT).hexdigest()}.incomplete"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with one model, and the library without this machine's settings and patience."""
    import huggingface_hub.file_download

    import pyedge.store.hub

    for name in [n for n in os.environ if n.startswith(("HF_", "HUGGING", "http_proxy", "HTTP_PROXY", "ALL_PROXY"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("HF_TOKEN_PATH", str(tmp_path / "hf" / "token"))
    monkeypatch.setattr("huggingface_hub.constants.HF_TOKEN_PATH", str(tmp_path / "hf" / "token"))
    for module in (huggingface_hub.file_download, pyedge.store.hub):
        monkeypatch.setattr(module, "time", SimpleNamespace(sleep=lambda seconds: None))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DOWNLOAD_TIMEOUT", 2)
    with hub() as server:
        server.files["model-Q4_K_M.gguf"] = CONTENT
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield server


def record(name: str) -> dict[str, object]:
    path = store.installed(name)
    assert path is not None
    facts: dict[str, object] = json.loads(path.with_name("model.json").read_text())
    return facts


def refused(name: str = NAME) -> str:
    with pytest.raises(ModelError, match=r"^[^\n]*$") as caught:
        store.resolve(name, pull=True)
    assert store.installed(name) is None
    return str(caught.value)


# ---- whole -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lfs", [True, False])
def test_a_model_is_fetched_proved_and_kept(server: Hub, lfs: bool) -> None:
    server.lfs = lfs
    seen: list[tuple[int, int]] = []
    path = store.resolve(NAME, pull=True, progress=lambda done, total: seen.append((done, total)))
    assert path.read_bytes() == CONTENT
    assert record(NAME) == {
        "name": NAME,
        "file": "file.gguf",
        "size": len(CONTENT),
        "sha256": hashlib.sha256(CONTENT).hexdigest(),
        "source": f"hf:{REPO}@{COMMIT}",
        "origin": "model-Q4_K_M.gguf",
        "licence": "apache-2.0",
    }
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    n = len(server.asked)
    assert store.resolve(NAME, pull=True) == store.fetch(NAME, check=True) == path
    assert len(server.asked) == n
    folder = "models/hf@org%2Frepo"
    assert files_in_store() == ["locks/hf@org%2Frepo", f"{folder}/file.gguf", f"{folder}/model.json"]


def test_shards_come_together(server: Hub) -> None:
    shards = {f"big/m-Q8_0-0000{i}-of-00003.gguf": CONTENT + bytes(i) for i in (3, 1, 2)}
    server.files |= shards
    path = store.resolve(f"{NAME}:Q8_0", pull=True)
    assert path.name == "file-00001-of-00003.gguf"
    for i in (1, 2, 3):
        assert path.with_name(f"file-0000{i}-of-00003.gguf").read_bytes() == CONTENT + bytes(i)
    assert record(f"{NAME}:Q8_0")["size"] == sum(map(len, shards.values()))
    path.with_name("file-00002-of-00003.gguf").write_bytes(b"GGUF")
    assert store.installed(f"{NAME}:Q8_0") is None


def test_a_token_is_sent(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    server.wanted_token = "hf_secret"
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    store.resolve(NAME, pull=True)


# ---- cut short -------------------------------------------------------------------------------------------------------


def test_a_cut_connection_is_taken_up_at_once(server: Hub) -> None:
    server.faults = [("cut", 2 * _PIECE + 1000), ("cut", _PIECE)]
    assert store.resolve(NAME, pull=True).read_bytes() == CONTENT
    ranges = [r for path, r in server.asked if path.startswith("/cdn/")]
    assert ranges == [None, f"bytes={2 * _PIECE}-", f"bytes={3 * _PIECE}-"]
    assert server.sent == len(CONTENT) + 1000


def test_the_next_pull_goes_on_where_one_was_cut(server: Hub) -> None:
    server.faults = [("cut", 3 * _PIECE)] + [("cut", 0)] * 40  # beyond anybody's patience
    said = refused()
    server.faults.clear()
    assert said.startswith(f"{NAME}: the connection to {server.url} failed: ")
    assert said.endswith("check the network and try again: what has come is kept")
    assert (store.home() / PARTIAL).read_bytes() == CONTENT[: 3 * _PIECE]
    assert store.leftovers() == [store.Leftover(NAME, 3 * _PIECE, False)]
    server.sent = 0
    first: list[int] = []
    path = store.resolve(NAME, pull=True, progress=lambda done, total: first.append(done))
    assert path.read_bytes() == CONTENT
    assert server.sent == len(CONTENT) - 3 * _PIECE
    assert first[0] == 3 * _PIECE
    assert not any("partial" in file for file in files_in_store())


def test_finished_shards_are_not_fetched_again(server: Hub) -> None:
    server.files = {f"m-0000{i}-of-00002.gguf": CONTENT + bytes(i) for i in (1, 2)}
    server.faults = [None, ("status", 404)]
    refused()
    server.sent = 0
    store.resolve(NAME, pull=True)
    assert server.sent == len(CONTENT) + 2


def test_a_server_without_ranges_begins_anew(server: Hub) -> None:
    server.ranges = False
    server.faults = [("cut", 2 * _PIECE)]
    assert store.resolve(NAME, pull=True).read_bytes() == CONTENT
    part = store.home() / PARTIAL
    store.remove(NAME)
    part.parent.mkdir(parents=True)
    part.write_bytes(CONTENT[:5000])
    assert store.resolve(NAME, pull=True).read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (b"", True),
        (CONTENT, True),
        (CONTENT + b"more", True),
        (b"GGUF, but others", False),
        (CONTENT[:-1] + b"?", False),
    ],
)
@pytest.mark.usefixtures("server")
def test_whatever_was_left_behind_the_right_bytes_come(left: bytes, right: bool) -> None:
    part = store.home() / PARTIAL
    part.parent.mkdir(parents=True)
    part.write_bytes(left)
    (part.parent / "of another version.incomplete").write_bytes(b"x")
    if not right:
        assert "did not come as the repository has it" in refused()  # and is dropped
    path = store.resolve(NAME, pull=True)
    assert path.read_bytes() == CONTENT
    assert [p.name for p in path.parent.iterdir() if p.name != "model.json"] == ["file.gguf"]


@pytest.mark.parametrize("how", ["SIGKILL", "SIGTERM", "SIGINT"])
def test_a_pull_that_is_ended_is_gone_on_with(server: Hub, how: str) -> None:
    server.faults = [("slow", 6)]
    process = child(f"store.resolve({NAME!r}, pull=True)")
    deadline = time.monotonic() + 30
    part = store.home() / PARTIAL
    while (not part.exists() or part.stat().st_size < _PIECE) and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(getattr(signal, how))
    _, err = process.communicate(timeout=30)
    assert process.returncode != 0, err
    assert store.installed(NAME) is None
    there = part.stat().st_size
    assert _PIECE <= there < len(CONTENT)
    server.sent = 0
    assert store.resolve(NAME, pull=True).read_bytes() == CONTENT
    assert server.sent == len(CONTENT) - there


# ---- wrong -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lfs", [True, False])
def test_wrong_bytes_are_refused_and_dropped(server: Hub, lfs: bool) -> None:
    server.lfs = lfs
    server.faults = ["flip"]
    assert "model-Q4_K_M.gguf did not come as the repository has it" in refused()
    assert files_in_store() == ["locks/hf@org%2Frepo"]
    assert store.resolve(NAME, pull=True).read_bytes() == CONTENT


def test_a_file_that_ends_early_is_gone_on_with(server: Hub) -> None:
    server.faults = [("short", 1000), ("short", 0), ("short", 0)]
    assert "file should be of size" in refused()
    server.faults = [("short", 1000)]
    assert store.resolve(NAME, pull=True).read_bytes() == CONTENT


def test_what_the_library_finds_too_large_is_fetched(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.MAX_HTTP_DOWNLOAD_SIZE", 1_000_000, raising=False)
    server.faults = [("short", 1000), ("short", 0)]
    assert store.resolve(NAME, pull=True).read_bytes() == CONTENT
    store.remove(NAME)
    server.faults = [("short", 1000), ("short", 0), ("short", 0)]
    assert "try again: what has come is kept" in refused()


def test_a_slow_server_is_waited_for(server: Hub) -> None:
    server.faults = [("slow", 1)]
    assert store.resolve(NAME, pull=True).read_bytes() == CONTENT


def test_what_is_no_gguf_is_refused(server: Hub) -> None:
    server.files["model-Q4_K_M.gguf"] = b"version https://git-lfs.example/spec/v1"
    assert "is no GGUF file" in refused()
    assert files_in_store() == ["locks/hf@org%2Frepo"]


def test_what_the_hub_refuses_is_said_in_one_line(server: Hub) -> None:
    assert refused("hf:org/other").startswith(f"hf:org/other: {server.url} has no such repository, or a private one; ")
    server.wanted_token = "hf_secret"
    assert "or a private one; check the name, or log in" in refused()
    server.gated = True
    said = refused()
    assert f"agree at {server.url}/{REPO}, and log in" in said
    server.wanted_token = None
    server.faults = [("status", 403)]
    assert f"{server.url} answered with status 403; log in" in refused()
    server.faults = [("status", 404)]
    assert "answered with status 404; check the name" in refused()


@pytest.mark.parametrize(
    ("listing", "said"),
    [
        (b"<!DOCTYPE html><html>Log in to this network</html>", "does not answer as a hub does; check the network"),
        (b"", "does not answer as a hub does"),
        (b"[]", "does not answer as a hub does"),
        (b"null", "does not answer as a hub does"),
        (b"{}", ""),
        (b'{"id": "org/repo", "siblings": null}', "has no .gguf file"),
        (b'{"id": "org/repo", "siblings": [{"rfilename": "m.gguf"}]}', "has no .gguf file"),
        (b'{"id": "org/repo", "siblings": [{"rfilename": "m.gguf", "size": -1}]}', "has no .gguf file"),
        (b'{"id": "org/repo", "siblings": [{"rfilename": "m.gguf", "size": 9, "lfs": 7}]}', ""),
    ],
)
def test_what_is_no_hub(server: Hub, listing: bytes, said: str) -> None:
    server.listing = listing
    assert said in refused()
    assert files_in_store() == ["locks/hf@org%2Frepo"]


def test_a_hub_that_is_not_there(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{s.getsockname()[1]}")
    said = refused()
    assert said.startswith(f"{NAME}: the connection to http://127.0.0.1:")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert "HF_HUB_OFFLINE is set" in refused()


def test_a_disk_without_room_is_said_before_the_download(server: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=1000))
    assert "the disk is full: fetching hf:org/repo needs 2 MB" in refused()
    assert server.sent == 0


def test_the_library_keeps_quiet(server: Hub, capfd: pytest.CaptureFixture[str]) -> None:
    server.faults = [("cut", 1000)]
    store.resolve(NAME, pull=True)
    assert capfd.readouterr() == ("", "")
    assert logging.getLogger("huggingface_hub").level != logging.ERROR


# ---- which file ------------------------------------------------------------------------------------------------------


FILES = [
    "README.md", "mmproj-model-Q4_K_M.gguf", "model-Q4_K_M.gguf", "model-Q4_K_S.gguf", "model-q8_0.gguf",
    "model.Q5_K_M.gguf", "UD-Q2_K_XL/model-UD-Q2_K_XL.gguf", "BF16/model-BF16-00001-of-00002.gguf",
    "BF16/model-BF16-00002-of-00002.gguf",
]  # fmt: skip


def files(*names: str) -> list[RemoteFile]:
    return [RemoteFile(name, 1, None, None) for name in names]


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (None, ["model-Q4_K_M.gguf"]),
        ("Q4_K_M", ["model-Q4_K_M.gguf"]),
        ("q4_k_s", ["model-Q4_K_S.gguf"]),
        ("Q8_0", ["model-q8_0.gguf"]),
        ("Q5_K_M", ["model.Q5_K_M.gguf"]),
        ("mmproj-model-Q4_K_M.gguf", ["mmproj-model-Q4_K_M.gguf"]),
        ("Q2_K_XL", ["UD-Q2_K_XL/model-UD-Q2_K_XL.gguf"]),
        ("model-UD-Q2_K_XL.gguf", ["UD-Q2_K_XL/model-UD-Q2_K_XL.gguf"]),
        ("BF16", ["BF16/model-BF16-00001-of-00002.gguf", "BF16/model-BF16-00002-of-00002.gguf"]),
        (
            "BF16/model-BF16-00002-of-00002.gguf",
            ["BF16/model-BF16-00001-of-00002.gguf", "BF16/model-BF16-00002-of-00002.gguf"],
        ),
    ],
)
def test_the_file_that_is_meant(wanted: str | None, found: list[str]) -> None:
    assert [f.path for f in choose("hf:x/y", files(*FILES), wanted)] == found


@pytest.mark.parametrize(
    ("names", "wanted", "said"),
    [
        (FILES, "Q6_K", "has nothing that is called Q6_K; take one, as hf:ORG/REPO:FILE, of "),
        (FILES, "Q4_K", "has nothing that is called Q4_K;"),
        (["a-Q4_0.gguf", "b-Q4_0.gguf"], None, "has several models; take one, as hf:ORG/REPO:FILE, of a-Q4_0.gguf, b-"),
        (["a-Q4_0.gguf", "b-Q4_0.gguf"], "Q4_0", "has several models;"),
        (["a.gguf", "b.gguf"], None, "has several models;"),
        (["README.md", "model.safetensors"], None, "has no .gguf file; look for one whose name ends in GGUF"),
        (["m-00001-of-00003.gguf", "m-00003-of-00003.gguf"], None, "of the 3 parts of m.gguf the repository has 2"),
    ],
)
def test_what_is_not_one_file_is_told_with_the_choices(names: list[str], wanted: str | None, said: str) -> None:
    with pytest.raises(ModelError) as caught:
        choose("hf:x/y", files(*names), wanted)
    assert f"hf:x/y: {said}".replace("hf:x/y: has", "hf:x/y: the repository has") in str(caught.value)


def test_the_only_file_needs_no_word() -> None:
    assert [f.path for f in choose("hf:x/y", files("ggml.gguf", "README.md"), None)] == ["ggml.gguf"]
