"""Files of a size: they keep to it, hold what matters finer, and are better than the mix of that size."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from program import program
from tinymodel import write_tiny_llama

from pyedge import _core
from pyedge.evaluation import calibration, sensitivity
from pyedge.evaluation.perplexity import compare
from pyedge.evaluation.reader import Reader
from pyedge.evaluation.target import Target, Task
from pyedge.tools import quantize
from pyedge.tools.mixes import Wishes

Found = tuple[calibration.Calibration, dict[str, sensitivity.Cost]]
TEXT = "".join(f"The keeper and the sea: {i} ships, {i * i} men, and then the rest in a row. " for i in range(45))


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("source")
    return write_tiny_llama(folder / "m.gguf", types="F16", n_embd=256, n_head=4, n_kv=2, n_ff=512)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "t.txt"
    path.write_text(TEXT)
    return path


@pytest.fixture(scope="module")
def found(source: Path) -> Found:
    with _core.Gguf(source) as gguf, Reader(source, calibration.window(gguf)) as reader:
        probe = [5, 9, 11, 60, 61] * 6
        before = next(reader.logits(probe))
        made = calibration.calibrate(reader, calibration.Text(TEXT, "a text"))
        costs = Task(gguf, Wishes("Q8_0")).measure(reader, made)
        assert np.array_equal(next(reader.logits(probe)), before)  # the model is what it was
    return made, costs


def chosen(source: Path, target: Target, found: Found) -> quantize.Plan:
    with _core.Gguf(source) as gguf:
        return Task(gguf, Wishes("Q8_0")).choose(target, found[1], found[0])


def test_costs(source: Path, found: Found) -> None:
    made, costs = found
    with _core.Gguf(source) as gguf:
        matrices = {t.name for t in gguf.tensors if len(t.shape) > 1}
        x = gguf.dequantize("blk.0.ffn_down.weight").astype(np.float64)
        importance = made.imatrix.importance("blk.0.ffn_down.weight")
        assert importance is not None
        blocks = gguf.quantize("blk.0.ffn_down.weight", "Q4_K", importance=importance[0].astype(np.float32))
        error = _core.dequantize(blocks, "Q4_K") - x
    wanted = (importance * error**2).sum() / (importance * x**2).sum()
    assert set(costs) == matrices
    assert costs["blk.0.ffn_down.weight"].errors["Q4_K"] == pytest.approx(wanted, rel=1e-5)
    for cost in costs.values():
        assert cost.sensitivity > 0
        assert cost.errors["F16"] == 0 < cost.errors["Q8_0"] < cost.errors["Q5_K"] < cost.errors["Q3_K"]
    read = [{tuple(w[at : at + 48]) for w in some for at in range(len(w) - 47)} for some in (made.probes, made.trials)]
    assert made.held_out
    assert all(tuple(w[:48]) not in one for w in made.held_out for one in read)


def test_a_matrix_of_one_loud_column_is_measured_format_by_format() -> None:
    """Its errors, unlike other matrices', say what became of that column."""
    usual = {"Q4_0": 0.006, "Q5_0": 0.0015, "Q8_0": 3e-5, "F16": 0.0}
    errors = {f"m{i}": {kind: error * (1 + 0.05 * i) for kind, error in usual.items()} for i in range(16)}
    assert sensitivity.odd(errors) == []
    errors["m3"] |= {"Q5_0": 0.03}
    assert sensitivity.odd(errors) == ["m3"]


def test_of_a_large_model_some_layers_are_measured(
    source: Path, found: Found, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    deep = write_tiny_llama(tmp_path / "deep.gguf", types="F16", n_embd=64, n_head=4, n_kv=2, n_ff=128, n_layer=5)
    costs, steps = [], []
    for operations in (1e30, 1.0):
        monkeypatch.setattr(sensitivity, "_OPERATIONS", operations)
        with _core.Gguf(deep) as gguf, Reader(deep, 64) as reader:
            formats = Task(gguf, Wishes("Q8_0")).formats()
            probes = [list(found[0].probes[0])]
            done: list[int] = []
            costs.append(
                sensitivity.measure(reader, gguf, formats, probes, None, lambda at, n, done=done: done.append(n))
            )
            steps.append(done[-1])
    every, few = costs
    assert steps[1] < steps[0]
    for name in ("blk.0.ffn_up.weight", "blk.4.ffn_up.weight", "token_embd.weight"):
        assert few[name].sensitivity == pytest.approx(every[name].sensitivity, rel=0.5)
    ends = sorted(few[f"blk.{i}.ffn_up.weight"].sensitivity for i in (0, 4))
    assert ends[0] < few["blk.2.ffn_up.weight"].sensitivity < ends[1]


def test_what_is_tried_decides(source: Path, found: Found) -> None:
    """Each choice keeps to the target, and the first is the one that costs least when all of it is in the model; one
    by costs that are wrong is not, and the model is what it was."""
    made, costs = found
    wrong = {name: cost.times(10.0 ** (3 * (i % 2))) for i, (name, cost) in enumerate(costs.items())}
    with _core.Gguf(source) as gguf, Reader(source, 256) as reader:
        task = Task(gguf, Wishes("Q8_0"))
        target = Target(file_bytes=quantize.plan(gguf, Wishes("Q4_K_M"), made.imatrix).file_bytes)
        probe = made.probes[0]
        before = next(reader.logits(probe))
        trials = task.trials(reader, made)
        steps: list[tuple[int, int]] = []
        tried = task.best(target, wrong, made, trials, lambda done, total: steps.append((done, total)))
        assert np.array_equal(next(reader.logits(probe)), before)
    by_name = {t.name: t.kl for t in tried}
    assert tried[0].kl == min(by_name.values()) < by_name["costs as measured"]
    assert all(t.plan.file_bytes <= target.amount for t in tried)
    assert len({t.plan.file_bytes for t in tried}) > 1
    assert steps[-1][0] == steps[-1][1]
    assert steps == sorted(steps)


@pytest.mark.parametrize("bits", [3.0, 4.5, 6.3, 12.0])
def test_bits_per_weight_are_kept_and_nearly_reached(source: Path, found: Found, bits: float) -> None:
    plan = chosen(source, Target(bits_per_weight=bits), found)
    with _core.Gguf(source) as gguf:
        assert 0.97 * bits < quantize.facts(plan, gguf)["bits_per_weight"] <= bits


def test_a_file_of_a_size_is_better_than_the_mix_of_that_size(source: Path, tmp_path: Path, found: Found) -> None:
    out, mix = tmp_path / "out.gguf", tmp_path / "mix.gguf"
    with _core.Gguf(source) as gguf:
        size = quantize.quantize(gguf, mix, quantize.plan(gguf, Wishes("Q4_K_M"), found[0].imatrix))
        quantize.quantize(gguf, out, chosen(source, Target(file_bytes=size), found))
    assert 0.97 * size < out.stat().st_size <= size
    with Reader(source, 256) as base, Reader(out, 256) as ours, Reader(mix, 256) as theirs:
        kl, kl_of_mix = (compare(reader, base, found[0].held_out).kl_mean for reader in (ours, theirs))
    assert kl < kl_of_mix


def test_the_command(source: Path, text: Path, tmp_path: Path) -> None:
    """Twice the same; what a person says of a tensor holds; --dry-run writes nothing."""
    options = ["--text", str(text), "--tensor-type", "attn_k=Q8_0", "--output-type", "q6_k", "--json"]
    files = []
    for threads in ("1", "2"):
        files.append(tmp_path / f"{threads}.gguf")
        outcome = program(
            "quantize", str(source), str(files[-1]), "--target-size", "700kB", *options, "--threads", threads
        )
        assert outcome.returncode == 0, outcome.stderr
    facts = json.loads(outcome.stdout)
    assert facts["file_bytes"] == files[1].stat().st_size <= 700_000
    assert facts["text"] == str(text)
    assert facts["kl_mean_ci95"][0] <= facts["kl_mean"] <= facts["kl_mean_ci95"][1]
    assert facts["tried"][0]["kl_mean"] == min(t["kl_mean"] for t in facts["tried"])
    types = {t["name"]: t["to"] for t in facts["tensors"]}
    assert types["blk.0.attn_k.weight"] == types["blk.1.attn_k.weight"] == "Q8_0"
    assert types["output.weight"] == "Q6_K"
    assert files[0].read_bytes() == files[1].read_bytes()
    outcome = program("quantize", str(source), str(tmp_path / "no.gguf"), "--target-bpw", "5", *options, "--dry-run")
    assert outcome.returncode == 0, outcome.stderr
    assert 4.9 < json.loads(outcome.stdout)["bits_per_weight"] <= 5
    assert sorted(path.name for path in tmp_path.iterdir()) == ["1.gguf", "2.gguf"]


@pytest.mark.parametrize(
    ("given", "code", "says"),
    [
        (["Q4_0", "--target-size", "1MB"], 2, "TYPE and --target-size: give one of them"),
        (["--target-bpw", "4", "--target-size", "1MB"], 2, "--target-size and --target-bpw: give one of them"),
        ([], 2, "Missing argument 'TYPE', or --target-size or --target-bpw"),
        (["--target-size", "12XB"], 2, "SIZE must be a number of bytes"),
        (["--target-size", "0"], 2, "SIZE must be"),
        (["--target-size", "-5MB"], 2, "SIZE must be"),
        (["--target-size", "nan"], 2, "SIZE must be"),
        (["--target-size", "9" * 400], 2, "SIZE must be"),
        (["--target-bpw", "nan"], 2, "'nan' is no number of bits"),
        (["--target-bpw", "inf"], 2, "'inf' is no number of bits"),
        (["--target-bpw", "0"], 2, "'0' is no number of bits"),
        (["--target-bpw", "four"], 2, "'four' is no number of bits"),
        (["--target-bpw", "4", "--pure"], 2, "--pure: goes with TYPE"),
        (["Q4_0", "--text", "x"], 2, "--text: goes with"),
        (["--target-size", "10kB"], 1, "cannot be made of 10,000 bytes: "),
        (["--target-size", "1GB"], 1, r"bytes are possible; take a target between"),
        (["--target-bpw", "1.5"], 1, "cannot be made of 1.5 bits per weight: 2.6"),
        (["--target-bpw", "17"], 1, "bits per weight are possible"),
        (["--target-bpw", "4", "--tensor-type", ".=Q8_0"], 1, "each matrix's format is given"),
        (["--target-bpw", "4", "--text", "absent.txt"], 1, "absent.txt: No such file"),
        (["--target-bpw", "4", "--text", os.devnull], 1, "has 0 tokens, and 1024 are needed; give a longer text"),
    ],
)
def test_wrong_input_is_one_line_and_no_file(
    source: Path, tmp_path: Path, given: list[str], code: int, says: str
) -> None:
    outcome = program("quantize", str(source), str(tmp_path / "out.gguf"), *given)
    assert outcome.returncode == code, outcome.stderr
    lines = [line for line in outcome.stderr.lower().splitlines() if line.startswith("error: ")]
    assert len(lines) == 1
    assert says.lower() in lines[0]
    assert outcome.stdout == ""
    assert not list(tmp_path.iterdir())


def test_what_cannot_be_written_is_told_before_anything_is_measured(source: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for out, options, says in (
        (source, [], "is the file that is read"),
        (tmp_path / "no" / "out.gguf", [], "No such file"),
        (tmp_path, [], "no regular file"),
        (tmp_path / "out.gguf", ["--report", str(tmp_path / "file")], "File exists"),
    ):
        outcome = program("quantize", str(source), str(out), "--target-bpw", "4", "--text", os.devnull, *options)
        assert outcome.returncode == 1
        assert says in outcome.stderr  # and not that the text is empty


def test_a_model_that_is_quantized_is_refused(source: Path, tmp_path: Path) -> None:
    small = tmp_path / "small.gguf"
    with _core.Gguf(source) as gguf:
        quantize.quantize(gguf, small, quantize.plan(gguf, Wishes("Q8_0")))
    outcome = program("quantize", str(small), str(tmp_path / "out.gguf"), "--target-bpw", "4")
    assert outcome.returncode == 1
    assert "give --allow-requantize" in outcome.stderr
