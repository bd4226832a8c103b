"""Writes the GGUF files that gguf_check.c and plan_check.c read: `python make_files.py FOLDER`.

`small.gguf` has a value of every kind and a tensor of several; `odd.gguf` holds blocks at odd addresses, which an
alignment of 1 allows; `parts` are those of a split model one behind the other; `model.gguf` is a random llama.
"""

from __future__ import annotations

import math
import sys
from pathlib import Path

import gguf

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))
sys.path.insert(0, str(Path(__file__).parent / "fuzz"))
import seeds
from ggufbytes import Tensor, Type, write_gguf
from tinymodel import write_tiny_llama


def tensor(name: str, ne: tuple[int, ...], type_name: str) -> Tensor:
    kind = gguf.GGMLQuantizationType[type_name]
    values, size = gguf.GGML_QUANT_SIZES[kind]
    n = math.prod(ne) // values * size
    return name, ne, kind, bytes(i % 251 for i in range(n))


def main(folder: Path) -> None:
    tensors = [tensor("a", (4, 2), "F32"), tensor("b", (5,), "F16"), tensor("c.weight", (32, 2, 1), "Q8_0")]
    kv = [*seeds.SCALARS, *seeds.ARRAYS, ("general.alignment", Type.U32, 32)]
    write_gguf(folder / "small.gguf", kv, tensors, keep=-28)  # without the padding at the end, which may be missing
    tensors = [tensor(f"{t}.weight", (256, 1), t) for t in ("Q4_0", "Q4_1", "Q8_0", "Q6_K", "F16")]
    for pad in ("", "-"):  # one of the two puts the blocks at odd addresses
        kv = [("general.alignment", Type.U32, 1), ("pad", Type.STRING, pad)]
        write_gguf(folder / f"odd{pad}.gguf", kv, tensors, alignment=1)
    (folder / "parts").write_bytes(seeds.split()["three"][:-20])  # without the padding at the end
    types = {"": "Q4_0", "attn_k": "Q8_0", "attn_v": "F16", "ffn_up": "Q4_1", "output": "BF16"}
    write_tiny_llama(folder / "model.gguf", n_kv=2, types=types, bias=True, rope_factors=True)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python make_files.py FOLDER")
    main(Path(sys.argv[1]))
