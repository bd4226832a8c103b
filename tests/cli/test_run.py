"""`pyedge run` on a tiny random model: the same tokens as the Python API, in every form of output."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pexpect  # type: ignore[import-untyped]
import pytest
from click.testing import CliRunner, Result
from program import ELSEWHERE, PROGRAM, environment, program, python, write_endless
from tinymodel import write_tiny_llama

from pyedge import LLM, SamplingParams
from pyedge.cli import cli

GREEDY = ("--temp", "0", "-n", "12")
PARAMS = SamplingParams(temperature=0, max_tokens=12)
PROMPT = "the and 123 there"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("models") / "bare.gguf", chat_template=None)


def run(*args: object, given: str | bytes | None = None) -> Result:
    return CliRunner().invoke(cli, ["run", *map(str, args)], input=given)


def test_the_answer_is_the_apis(tiny: Path) -> None:
    with LLM(tiny) as llm:
        messages = [{"role": "system", "content": "S"}, {"role": "user", "content": PROMPT}]
        chat, raw = llm.chat(messages, PARAMS), llm.generate(PROMPT, PARAMS)[0]
    result = run(tiny, PROMPT, "--system", "S", *GREEDY)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.removesuffix("\n") == chat.text.removesuffix("\n")
    assert run(tiny, PROMPT, "--raw", *GREEDY).stdout.removesuffix("\n") == raw.text.removesuffix("\n")
    document = json.loads(run(tiny, PROMPT, "--raw", *GREEDY, "--json").stdout)
    assert document["text"] == raw.text
    assert document["token_ids"] == raw.token_ids
    assert document["prompt_token_ids"] == raw.prompt_token_ids
    assert document["finish_reason"] == raw.finish_reason
    assert document["model"] == str(tiny)
    assert document["logprobs"] is None
    assert document["cached_tokens"] == 0
    assert document["ttft_s"] > 0


@pytest.mark.parametrize("command", [["run", "--raw"], ["run"], ["chat"], ["bench"]])
def test_a_model_that_embeds_is_refused(tmp_path: Path, command: list[str]) -> None:
    path = write_tiny_llama(tmp_path / "embed.gguf", keys={"llama.pooling_type": 3}, tied=True)
    text = [PROMPT] if command[0] == "run" else []
    result = CliRunner().invoke(cli, [*command, str(path), *text])
    assert (result.exit_code, result.stdout) == (1, "")
    assert re.fullmatch(r"error: \S*embed\.gguf: this model embeds texts and generates none; .*\n", result.stderr)


def test_standard_input_is_the_prompt(tiny: Path) -> None:
    assert run(tiny, "-", *GREEDY, given=PROMPT + "\n").stdout == run(tiny, PROMPT, *GREEDY).stdout
    result = run(tiny, "-", *GREEDY, given=b"caf\xe9")
    assert (result.exit_code, result.stderr) == (
        1,
        "error: standard input: byte 3 is not UTF-8; give text in that encoding\n",
    )


def test_a_prompt_that_is_no_text_is_wrong_usage(tiny: Path) -> None:
    assert run(tiny, "caf\udce9").exit_code == 2


def test_a_model_without_a_template_runs_raw_with_a_note(bare: Path) -> None:
    result = run(bare, PROMPT, *GREEDY)
    assert result.exit_code == 0
    assert result.stderr == f"note: {bare} has no chat template, so the prompt runs raw\n"
    assert result.stdout == run(bare, PROMPT, "--raw", *GREEDY).stdout


def test_words_are_cut_as_asked(tiny: Path, tmp_path: Path) -> None:
    odd = write_tiny_llama(tmp_path / "m.gguf", keys={"tokenizer.ggml.pre": "nonesuch"})
    assert run(odd, PROMPT, *GREEDY, "--pre", "gpt-2").stdout == run(tiny, PROMPT, *GREEDY).stdout


def test_raw_has_no_system_message(tiny: Path) -> None:
    assert run(tiny, PROMPT, "--raw", "--system", "S").exit_code == 2


def test_logprobs(tiny: Path) -> None:
    with LLM(tiny) as llm:
        expected = llm.generate(PROMPT, SamplingParams(temperature=0, max_tokens=4, logprobs=3))[0].logprobs
    assert expected is not None
    args = (tiny, PROMPT, "--raw", "--temp", 0, "-n", 4, "--logprobs", 3)
    document = json.loads(run(*args, "--json").stdout)
    for step, token, want in zip(document["logprobs"], document["token_ids"], expected, strict=True):
        assert step["token_id"] == token
        assert {t["token_id"]: t["logprob"] for t in step["top"]} == want
        assert [t["logprob"] for t in step["top"]] == sorted(want.values(), reverse=True)
    result = run(*args)
    assert len(result.stderr.splitlines()) == 4
    assert result.stderr.splitlines()[0].split()[0] == f"{document['logprobs'][0]['logprob']:.4f}"


@pytest.mark.parametrize("k", [0, 1, 3])
def test_the_most_likely_tokens_are_k_whatever_was_drawn(tiny: Path, k: int) -> None:
    sampling = {"temperature": 5.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 1}
    with LLM(tiny) as llm:
        events = list(llm.stream(PROMPT, SamplingParams(**sampling, max_tokens=12, logprobs=k)))  # type: ignore[arg-type]
        text = llm.tokenizer.decode
        args = [arg for name, value in sampling.items() for arg in (f"--{name.replace('_', '-')}", value)]
        command = (tiny, PROMPT, "--raw", "-n", 12, *args, "--logprobs", k)
        steps = json.loads(run(*command, "--json").stdout)["logprobs"]
        streamed = run(*command).stderr.splitlines()
        assert len(steps) == len(streamed) == len(events)
        for event, step, line in zip(events, steps, streamed, strict=True):
            assert (step["token_id"], step["logprob"]) == (event.token_id, event.logprob)
            assert [(t["token_id"], t["logprob"]) for t in step["top"]] == event.top_logprobs
            top = "  ".join(f"{text([t])!r} {p:.3f}" for t, p in event.top_logprobs or [])
            assert line == f"{event.logprob:9.4f}  {text([event.token_id or 0])!r:16} {top}"
        assert any(event.token_id not in dict(event.top_logprobs or []) for event in events)


def test_seeds_and_settings_reach_the_engine(tiny: Path) -> None:
    args = (tiny, PROMPT, "--raw", "-n", 16, "--temp", 5, "--top-k", 0, "--top-p", 1, "--min-p", 0)
    assert run(*args, "--seed", 1).stdout == run(*args, "--seed", 1).stdout != run(*args, "--seed", 2).stdout
    one = run(*args, "--seed", 1, "--top-k", 1).stdout
    assert one == run(*args, "--seed", 2, "--top-k", 1).stdout
    stop = one[2:4]
    assert run(*args, "--top-k", 1, "--stop", stop).stdout == one[: one.index(stop)] + "\n"


def test_a_full_context_is_noted(tiny: Path) -> None:
    result = run(tiny, PROMPT, "--raw", "--ctx", 32, "--temp", 0, "--seed", 3)
    assert result.exit_code == 0
    note = "note: the context of 32 tokens is full, so the answer ends here"
    assert result.stderr == f"{note}; --ctx 512 gives more\n"
    small = write_tiny_llama(tiny.with_name("small.gguf"), context=32)
    assert run(small, PROMPT, "--raw", "-n", 500, "--temp", 0, "--seed", 3).stderr == f"{note}\n"  # before -n


def test_a_cut_answer_is_noted_on_a_terminal_only(endless: Path) -> None:
    args = ["run", str(endless), PROMPT, "--raw", "-n", "5", "--temp", "0"]
    assert program(*args).stderr == ""
    shown, status = pexpect.run(
        shlex.join([*PROGRAM, *args]), env=environment(TERM="xterm"), cwd=ELSEWHERE, timeout=30, withexitstatus=True
    )
    assert status == 0
    assert shown.endswith(b"\x1b[2mnote: cut at 5 tokens, which is what -n allows\x1b[0m\r\n")


def test_warnings_stay_out_of_the_document(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "m.gguf", keys={"llama.context_length": None})
    result = program("run", str(path), PROMPT, *GREEDY, "--json")
    assert json.loads(result.stdout)["finish_reason"] in ("stop", "length")
    assert result.stderr.startswith("note: llama.context_length: not given")
    assert result.stderr.count("\n") == 1
    code = f"from pyedge import LLM\nprint(LLM({str(path)!r}).max_model_len)"
    quiet = python("-c", code)
    assert (quiet.returncode, quiet.stdout, quiet.stderr) == (0, "2048\n", "")
    heard = python("-c", f"import logging\nlogging.basicConfig()\n{code}")
    assert heard.stderr.startswith("WARNING:pyedge.models:llama.context_length: not given")


@pytest.mark.parametrize(
    ("args", "code", "part"),
    [
        (["--ctx", "8"], 1, "shorten the prompt or raise --ctx"),
        (["--ctx", "1"], 2, "'--ctx': 1 is not"),
        (["--ctx", "100000"], 1, "--ctx 100000 is beyond"),
        (["--device", "cuda"], 1, "cuda"),
        (["--temp", "-1"], 2, "--temp must be"),
        (["--top-p", "2"], 2, "--top-p must be"),
        (["-n", "-5"], 2, "-n must be"),
        (["--stop", ""], 2, "stop"),
        (["--logprobs", "65"], 2, "--logprobs must be"),
    ],
)
def test_bad_values_are_refused(tiny: Path, args: list[str], code: int, part: str) -> None:
    result = run(tiny, PROMPT * 20, *args)
    assert result.exit_code == code
    assert part in result.stderr
    assert result.stdout == ""
    assert code == 2 or result.stderr.count("\n") == 1


def test_a_broken_file_is_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF" + bytes(100))
    result = run(path, "x")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: {path}: ")
    assert result.stderr.count("\n") == 1


def test_no_tokens_are_no_error(tiny: Path) -> None:
    assert (run(tiny, PROMPT, "-n", 0).exit_code, run(tiny, PROMPT, "-n", 0).stdout) == (0, "\n")


@pytest.fixture(scope="module")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_endless(tmp_path_factory.mktemp("models") / "endless.gguf")


def start(path: Path) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [*PROGRAM, "run", str(path), PROMPT, "--raw", "--temp", "0"],
        env=environment(),
        cwd=ELSEWHERE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def test_an_interrupt_within_an_exec_is_one_like_others(tmp_path: Path) -> None:
    """As when Ctrl-C comes in while a module is imported that makes dataclasses."""
    lines = [
        "import pyedge.cli",
        "pyedge.cli.cli.main = lambda **options: exec('raise KeyboardInterrupt')",
        "pyedge.cli.main()",
    ]
    (tmp_path / "interrupted.py").write_text("\n".join(lines))
    paths = [str(tmp_path), *filter(None, [environment().get("PYTHONPATH")])]
    env = {**environment(), "PYTHONPATH": os.pathsep.join(paths)}
    assert python("-m", "interrupted", env=env).returncode == 130


def test_ctrl_c_ends_it_with_130(endless: Path) -> None:
    process = start(endless)
    assert process.stdout is not None
    assert process.stdout.read(1) != b""
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err == b""


def test_a_reader_that_leaves_ends_it_quietly(endless: Path) -> None:
    process = start(endless)
    assert process.stdout is not None
    process.stdout.read(1)
    process.stdout.close()
    assert process.stderr is not None
    assert process.stderr.read() == b""
    assert process.wait(timeout=30) in (1, 141)


def test_an_answer_on_a_terminal_cannot_steer_it(endless: Path) -> None:
    """The random model writes control bytes soon enough; on a pipe they come as they are."""
    sampling = ["--temp", "9", "--top-k", "0", "--top-p", "1", "--min-p", "0", "--seed", "3", "-n", "300"]
    pty = pexpect.spawn(
        sys.executable,
        [*PROGRAM[1:], "run", str(endless), PROMPT, "--raw", *sampling],
        env=environment(TERM="xterm"),
        cwd=ELSEWHERE,
        timeout=30,
    )
    shown, _, note = pty.read().partition(b"\r\n\x1b[2mnote: ")
    pty.close()
    assert note.startswith(b"cut at 300 tokens")
    assert pty.exitstatus == 0
    assert len(shown) > 300
    assert not set(shown) & ({*range(0x20), 0x7F} - {0x09, 0x0A, 0x0D})
    assert re.search("[\u2400-\u241f]", shown.decode())


@pytest.mark.slow
def test_the_default_model_knows_paris() -> None:
    question = ("smollm2:135m", "What is the capital of France?", "--temp", "0")
    result = program("run", *question)
    assert (result.returncode, result.stdout) == (0, "The capital of France is Paris.\n")
    result = program("chat", "--temp", "0", given="What is the capital of France?\n")
    assert (result.returncode, result.stdout) == (0, "The capital of France is Paris.\n")


@pytest.mark.slow
def test_the_first_token_comes_soon() -> None:
    def seconds() -> float:
        started = time.perf_counter()
        process = subprocess.Popen(
            [*PROGRAM, "run", "smollm2:135m", "What is the capital of France?", "-n", "1"],
            env=environment(), cwd=ELSEWHERE, stdout=subprocess.PIPE,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.read(1) != b""
        taken = time.perf_counter() - started
        process.communicate(timeout=30)
        return taken

    program("pull", "smollm2:135m")
    assert min(seconds() for _ in range(3)) < 1.5


def test_the_answer_has_the_form_that_is_asked_for(tiny: Path, tmp_path: Path) -> None:
    properties = {"properties": {"ok": {"type": "boolean"}}, "required": ["ok"], "additionalProperties": False}
    schema = json.dumps({"type": "object", **properties})
    file = tmp_path / "schema.json"
    file.write_text(schema)
    for given in (schema, file):
        result = run(tiny, PROMPT, "--temp", "1.5", "--seed", "1", "--json-schema", given)
        assert (result.exit_code, list(json.loads(result.stdout))) == (0, ["ok"])
    assert re.fullmatch("[ab]{3}\n", run(tiny, PROMPT, "--regex", "[ab]{3}").stdout)
    assert run(tiny, PROMPT, "--grammar", 'root ::= "yes" | "no"').stdout in ("yes\n", "no\n")
    for wrong, why in (
        (("--regex", "("), "unclosed group"),
        (("--json-schema", "nowhere.json"), "--json-schema: nowhere.json: No such file"),
        (("--json-schema", "{"), "no JSON"),
        (("--json-schema", "{}", "--regex", "a"), "one of them"),
    ):
        result = run(tiny, PROMPT, *wrong)
        assert result.exit_code in (1, 2)
        assert why in result.stderr
