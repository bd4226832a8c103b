"""`pyedge tokenize`: ids and pieces, from arguments and standard input, against the tokenizer itself."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from program import environment, program
from tinymodel import write_tiny_llama

from pyedge import _core
from pyedge.cli import cli
from pyedge.tokenizers import Tokenizer

TEXT = "Hello, é 日本\n\t🦙 <|im_start|>user"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="module")
def tokenizer(tiny: Path) -> Tokenizer:
    with _core.Gguf(tiny) as gguf:
        return Tokenizer.from_gguf(gguf)


def run(*args: str, given: str | bytes = "") -> Result:
    return CliRunner().invoke(cli, ["tokenize", *args], input=given)


@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize("bos", [None, False])
def test_ids_are_the_tokenizers(tiny: Path, tokenizer: Tokenizer, special: bool, bos: bool | None) -> None:
    options = ["--special"] * special + ["--no-bos"] * (bos is False)
    wanted = tokenizer.encode(TEXT, special=special, bos=bos)
    assert run(str(tiny), TEXT, *options, "--ids").stdout == " ".join(map(str, wanted)) + "\n"
    document = json.loads(run(str(tiny), TEXT, *options, "--json").stdout)
    assert document["ids"] == wanted
    assert len(document["pieces"]) == len(wanted)
    lines = run(str(tiny), TEXT, *options).stdout.splitlines()
    assert [int(line.split()[0]) for line in lines] == wanted


def test_pieces_are_what_tokens_stand_for(tiny: Path) -> None:
    assert "".join(json.loads(run(str(tiny), "a\\ b", "--no-bos", "--json").stdout)["pieces"]) == "a\\ b"
    pieces = json.loads(run(str(tiny), "é", "--no-bos", "--json").stdout)["pieces"]
    assert "".join(pieces) in ("é", "\\xc3\\xa9")
    assert "'\\n'" in run(str(tiny), "\n").stdout


def test_words_are_cut_as_asked_where_the_file_names_no_known_way(tmp_path: Path, tokenizer: Tokenizer) -> None:
    odd = write_tiny_llama(tmp_path / "m.gguf", keys={"tokenizer.ggml.pre": "nonesuch"})
    refused = run(str(odd), TEXT)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "--pre NAME" in refused.stderr
    assert run(str(odd), TEXT, "--pre", "gpt-2", "--ids").stdout.split() == [str(i) for i in tokenizer.encode(TEXT)]
    assert run(str(odd), TEXT, "--pre", "nonesuch").exit_code == 2


def test_standard_input_is_taken_whole(tiny: Path, tokenizer: Tokenizer) -> None:
    for text in ("", "a\n", "a\r\n\n", TEXT):
        wanted = tokenizer.encode(text)
        assert run(str(tiny), "-", "--ids", given=text.encode()).stdout.split() == [str(i) for i in wanted]
    result = run(str(tiny), "-", given=b"ab\xff")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "error: standard input: byte 2 is not UTF-8; give text in that encoding\n"


def test_json_is_utf_8_in_every_locale(tiny: Path, tokenizer: Tokenizer) -> None:
    result = program("tokenize", str(tiny), "é 日本", "--json", "--no-bos", env=environment(PYTHONIOENCODING="latin-1"))
    pieces = [
        tokenizer.token_bytes(i).decode("utf-8", "backslashreplace") for i in tokenizer.encode("é 日本", bos=False)
    ]
    assert json.loads(result.stdout)["pieces"] == pieces


def test_one_form_at_a_time(tiny: Path) -> None:
    result = run(str(tiny), "x", "--ids", "--json")
    assert (result.exit_code, result.stdout) == (2, "")


def test_a_file_without_a_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF")
    result = program("tokenize", str(tmp_path / "m.gguf"), "x")
    assert (result.returncode, result.stdout, result.stderr.count("\n")) == (1, "", 1)
    assert result.stderr.startswith(f"error: {tmp_path / 'm.gguf'}: ")
