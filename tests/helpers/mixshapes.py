"""Models of several shapes, as files without numbers, and what llama.cpp's quantizer would make of them.

    python tests/helpers/mixshapes.py LLAMA_QUANTIZE      makes tests/tools/mixes.json with that program

Owns the shapes. The files are sparse: the program is only asked what it would do (--dry-run).
"""

import json
import re
import subprocess
import sys
import tempfile
from itertools import groupby
from pathlib import Path

from ggufbytes import Type, gguf_bytes

SHAPES = {
    # name: (architecture, layers, heads, kv heads, experts, columns, feed forward, tied, fused qkv)
    "llama-1b": ("llama", 16, 32, 8, 0, 2048, 8192, True, False),
    "llama-2-7b": ("llama", 32, 32, 32, 0, 4096, 11008, False, False),
    "llama-2-70b": ("llama", 80, 64, 8, 0, 8192, 28672, False, False),
    "smollm2": ("llama", 30, 9, 3, 0, 576, 1536, True, False),
    "odd": ("llama", 3, 4, 4, 0, 72, 288, False, False),
    "mixtral": ("llama", 32, 32, 8, 8, 4096, 14336, False, False),
    "qwen3moe": ("qwen3moe", 48, 32, 4, 128, 2048, 768, False, False),
    "gemma3": ("gemma3", 18, 4, 1, 0, 640, 2048, True, False),
    "phi3": ("phi3", 32, 32, 32, 0, 3072, 8192, False, True),
    "qwen2-72b": ("qwen2", 80, 64, 8, 0, 8192, 29568, False, False),
}
MIXES = (
    *("BF16", "Q8_0", "Q6_K", "Q5_K_M", "Q5_K_S", "Q5_1", "Q5_0", "Q4_K_M", "Q4_K_S", "Q4_1", "Q4_0", "IQ4_NL"),
    *("IQ4_XS", "MXFP4_MOE", "Q3_K_L", "Q3_K_M", "Q3_K_S", "Q2_K"),
)
VOCABULARY = 256


def tensors(name: str) -> list[tuple[str, tuple[int, ...]]]:
    """Names and shapes, columns first."""
    _, layers, heads, kv, experts, d, ff, tied, fused = SHAPES[name]
    head = d // heads if name != "gemma3" else 256
    found: list[tuple[str, tuple[int, ...]]] = [("token_embd.weight", (d, VOCABULARY)), ("output_norm.weight", (d,))]
    if not tied:
        found.append(("output.weight", (d, VOCABULARY)))
    for i in range(layers):
        rows: dict[str, tuple[int, ...]] = {"attn_norm.weight": (d,), "ffn_norm.weight": (d,)}
        if fused:
            rows["attn_qkv.weight"] = (d, (heads + 2 * kv) * head)
        else:
            rows |= {
                "attn_q.weight": (d, heads * head),
                "attn_k.weight": (d, kv * head),
                "attn_v.weight": (d, kv * head),
            }
        rows["attn_output.weight"] = (heads * head, d)
        if experts:
            rows["ffn_gate_inp.weight"] = (d, experts)
            rows |= {f"ffn_{part}_exps.weight": (d, ff, experts) for part in ("gate", "up")}
            rows["ffn_down_exps.weight"] = (ff, d, experts)
        elif fused:
            rows |= {"ffn_up.weight": (d, 2 * ff), "ffn_down.weight": (ff, d)}
        else:
            rows |= {"ffn_gate.weight": (d, ff), "ffn_up.weight": (d, ff), "ffn_down.weight": (ff, d)}
        found += [(f"blk.{i}.{part}", shape) for part, shape in rows.items()]
    return found


def write(name: str, path: Path) -> Path:
    """A sparse file of F16 matrices and F32 vectors."""
    arch, layers, heads, kv, experts, d, ff, _, _ = SHAPES[name]
    keys: list[tuple[str, int, object]] = [("general.architecture", Type.STRING, arch)]
    numbers = {
        "context_length": 4096, "embedding_length": d, "block_count": layers, "feed_forward_length": ff,
        "attention.head_count": heads, "attention.head_count_kv": kv, "rope.dimension_count": d // heads,
        "vocab_size": VOCABULARY,
    }  # fmt: skip
    if experts:
        numbers |= {"expert_count": experts, "expert_used_count": 2, "expert_feed_forward_length": ff}
    if arch == "gemma3":
        numbers |= {"attention.key_length": 256, "attention.value_length": 256, "attention.sliding_window": 512}
    keys += [(f"{arch}.{key}", Type.U32, value) for key, value in numbers.items()]
    keys.append((f"{arch}.attention.layer_norm_rms_epsilon", Type.F32, 1e-5))
    infos, offset, entries = {}, 0, []
    for i, (tensor, shape) in enumerate(tensors(name)):
        entries.append((tensor, shape, 0 if len(shape) == 1 else 1, b""))
        infos[i] = {"offset": offset}
        n = 4 if len(shape) == 1 else 2
        for axis in shape:
            n *= axis
        offset += n + -n % 32
    head = gguf_bytes(keys, entries, infos=infos)
    with path.open("wb") as f:
        f.write(head)
        f.truncate(len(head) + offset)
    return path


def main() -> None:
    said = re.compile(r"\] +(\S+) +- \[.*?\], type = +(\w+), size = .*?(?:\((\w+)\))?$")
    outcome: dict[str, dict[str, dict[str, str]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in SHAPES:
            path = write(name, Path(folder) / "in.gguf")
            for mix in MIXES:
                run = subprocess.run(
                    [sys.argv[1], "--dry-run", path, Path(folder) / "out.gguf", mix],
                    capture_output=True,
                    text=True,
                    check=True,
                )
                types = {}
                for line in (run.stdout + run.stderr).splitlines():
                    if found := said.search(line.strip()):
                        types[found[1]] = (found[3] or found[2]).upper()
                assert types.keys() == {t for t, _ in tensors(name)}, (name, mix, run.stdout, run.stderr)
                outcome.setdefault(name, {})[mix] = by_role(types)
    text = json.dumps(outcome, indent=1)
    (Path(__file__).parents[1] / "tools" / "mixes.json").write_text(text + "\n")


def by_role(types: dict[str, str]) -> dict[str, str]:
    """Per role, the layers' formats in order, equal ones counted: `Q6_K*2 Q4_K`."""
    roles: dict[str, list[tuple[int, str]]] = {}
    for name, kind in types.items():
        layer = re.match(r"blk\.(\d+)\.", name)
        roles.setdefault(re.sub(r"^blk\.\d+\.", "", name), []).append((int(layer[1]) if layer else 0, kind))
    out = {}
    for role, layers in sorted(roles.items()):
        if role.endswith("norm.weight"):
            continue
        groups = [(kind, len(list(g))) for kind, g in groupby(kind for _, kind in sorted(layers))]
        out[role] = " ".join(kind if n == 1 else f"{kind}*{n}" for kind, n in groups)
    return out


if __name__ == "__main__":
    main()
