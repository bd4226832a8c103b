"""What each type costs a model's predictions, beside another quantizer's files of the same types, as a table:

    python tests/bench/quality.py MODEL-F16.gguf TEXT CALIBRATION [--peer llama-quantize] [--types Q4_K_M,...]

Both sides get the same importance matrix, collected on CALIBRATION; TEXT, another text, is what is scored: 8 windows of
512 tokens. Of the types in --sizes there is a second file of the same size, whose formats `pyedge quantize
--target-size` chooses. The peer takes the arguments of llama.cpp's quantizer: --imatrix FILE IN OUT TYPE.

A model that is at hand only as a quantized file, unpacked to F16, is no fair base: its own format loses nothing.
--spread QUANTIZED.gguf is that file, and adds to each weight noise of one step of its block, evenly, as rounding
took it away.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from pyedge import _core
from pyedge.evaluation import calibration
from pyedge.evaluation.perplexity import compare
from pyedge.evaluation.reader import Reader, windows
from pyedge.evaluation.target import Target, Task
from pyedge.tools import imatrix_file, quantize
from pyedge.tools.gguf_writer import GgufWriter, Tensor, copied
from pyedge.tools.mixes import Wishes

TYPES = "Q8_0,Q6_K,Q5_K_M,Q4_K_M,Q4_0,IQ4_XS,Q3_K_M,Q2_K"
SIZES = "Q5_K_M,Q4_K_M,Q3_K_M"
_LEVELS = {"Q4_0": 15, "Q4_1": 15, "Q4_K": 15, "Q5_0": 31, "Q5_1": 31, "Q5_K": 31, "Q6_K": 63, "Q8_0": 255}


def spread(model: Path, quantized: Path, out: Path) -> None:
    """The model with noise of one step of its former blocks."""
    rng = np.random.default_rng(1)
    with _core.Gguf(quantized) as former, _core.Gguf(model) as gguf:
        kinds = {t.name: t.type for t in former.tensors}
        with GgufWriter(out, copied(gguf), [Tensor(t.name, t.type, t.shape) for t in gguf.tensors]) as writer:
            for t in gguf.tensors:
                levels = _LEVELS.get(kinds.get(t.name, ""))
                if levels is None or t.type != "F16":
                    writer.write(t.name, gguf.read(t.name))
                    continue
                blocks = gguf.dequantize(t.name).reshape(-1, 16 if kinds[t.name] == "Q6_K" else 32)
                step = (blocks.max(1, keepdims=True) - blocks.min(1, keepdims=True)) / levels
                blocks += step * (rng.random(blocks.shape, np.float32) - 0.5)
                writer.write(t.name, blocks.astype(np.float16))


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("text", type=Path)
    parser.add_argument("calibration", type=Path)
    parser.add_argument("--peer", help="command line of the other quantizer")
    parser.add_argument("--types", default=TYPES)
    parser.add_argument("--sizes", default=SIZES)
    parser.add_argument("--spread", type=Path, metavar="QUANTIZED")
    parser.add_argument("--windows", type=int, default=8)
    a = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        model, out, imatrix = a.model, Path(folder) / "out.gguf", Path(folder) / "imatrix.gguf"
        if a.spread:
            model = Path(folder) / "spread.gguf"
            spread(a.model, a.spread, model)
        with _core.Gguf(model) as gguf, Reader(model, 512) as base:
            found = windows(base.tokenizer, a.text.read_text(encoding="utf-8"), 512, a.windows)

            def scored(name: str) -> None:
                with _core.Gguf(out) as file:
                    parameters = sum(int(np.prod(t.shape)) for t in file.tensors)
                    bits = 8 * sum(t.n_bytes for t in file.tensors) / parameters
                with Reader(out, 512) as reader:
                    r = compare(reader, base, found)
                print(
                    f"| {name} | {out.stat().st_size / 1e6:.1f} | {bits:.2f} | {r.kl_mean:.4f} "
                    f"| {100 * r.top1:.1f} % |",
                    flush=True,
                )

            task = Task(gguf, Wishes("Q8_0"))
            chosen: dict[str, quantize.Plan] = {}
            with Reader(model, calibration.window(gguf)) as reader:
                text = calibration.Text(a.calibration.read_text(encoding="utf-8"), a.calibration.name)
                made = calibration.calibrate(reader, text)
                if a.sizes:
                    costs, trials = task.measure(reader, made), task.trials(reader, made)
                    for kind in a.sizes.split(","):
                        size = quantize.plan(gguf, Wishes(kind), made.imatrix).file_bytes
                        chosen[kind] = task.best(Target(file_bytes=size), costs, made, trials)[0].plan
            imatrix_file.write(imatrix, made.imatrix)
            print("| type | MB | bits per weight | KL divergence | same likeliest |\n| --- | --- | --- | --- | --- |")
            for kind in a.types.split(","):
                size = quantize.quantize(gguf, out, quantize.plan(gguf, Wishes(kind), made.imatrix))
                scored(kind)
                if a.peer:
                    command = [*shlex.split(a.peer), "--imatrix", str(imatrix), str(model), str(out), kind]
                    outcome = subprocess.run(command, capture_output=True, text=True, check=False)
                    if outcome.returncode:
                        sys.exit(f"error: {shlex.join(command)}: {outcome.stderr.strip()[-200:]}")
                    scored(f"{kind}, peer's")
                if kind in chosen:
                    quantize.quantize(gguf, out, chosen[kind])
                    scored(f"--target-size {size}")


if __name__ == "__main__":
    main()
