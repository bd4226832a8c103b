"""Model files that a stranger made to do harm, or that a bad disk or a writer's mistake made so.

Owns a table of them, built on one small sound model: `FILES` by name. Each says how far it may be used. What the loader
does with every broken structure is tested in tests/core/test_gguf.py; here are those that reach further, and one of
each kind.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from ggufbytes import Kv, Raw, Tensor, Type, gguf_bytes
from tinymodel import CHATML, CONTROL, vocabulary

U32, F32, STRING, ARRAY = Type.U32, Type.F32, Type.STRING, Type.ARRAY
N_EMBD, N_HEAD, N_KV, HEAD_DIM, N_FF, N_LAYER = 72, 9, 3, 8, 96, 2


@dataclass(frozen=True)
class File:
    make: Callable[[], bytes]
    refused: str | None  # what the error names, as a regular expression; None: it can be used
    by: str = "all"  # who refuses it: "all", those that "run" the model, "chat" with it, or need its "text"
    names_file: bool = True  # the error does; not one about what was asked, or what came of it


def metadata(**changes: Any) -> list[Kv]:
    """The sound model's. changes: by the key's last two parts joined by two underscores, (type, value) or None."""
    tokens, merges = vocabulary()
    kv: list[Kv] = [
        ("general.architecture", STRING, "llama"),
        ("llama.block_count", U32, N_LAYER),
        ("llama.context_length", U32, 256),
        ("llama.embedding_length", U32, N_EMBD),
        ("llama.feed_forward_length", U32, N_FF),
        ("llama.attention.head_count", U32, N_HEAD),
        ("llama.attention.head_count_kv", U32, N_KV),
        ("llama.attention.key_length", U32, HEAD_DIM),
        ("llama.attention.value_length", U32, HEAD_DIM),
        ("llama.attention.layer_norm_rms_epsilon", F32, 1e-5),
        ("llama.rope.dimension_count", U32, HEAD_DIM),
        ("llama.rope.freq_base", F32, 10000.0),
        ("tokenizer.ggml.model", STRING, "gpt2"),
        ("tokenizer.ggml.pre", STRING, "gpt-2"),
        ("tokenizer.ggml.tokens", ARRAY, (STRING, tokens)),
        ("tokenizer.ggml.token_type", ARRAY, (Type.I32, [3] * len(CONTROL) + [1] * (len(tokens) - len(CONTROL)))),
        ("tokenizer.ggml.merges", ARRAY, (STRING, merges)),
        ("tokenizer.ggml.bos_token_id", U32, 0),
        ("tokenizer.ggml.eos_token_id", U32, 2),
        ("tokenizer.chat_template", STRING, CHATML),
    ]
    wanted = {key.replace("__", "."): value for key, value in changes.items()}
    known = {str(key) for key, _, _ in kv}
    out = [
        (key, *wanted.get(str(key), (kind, value))) for key, kind, value in kv if wanted.get(str(key), 0) is not None
    ]
    return [*out, *((key, *value) for key, value in wanted.items() if key not in known and value is not None)]


def tensors() -> list[Tensor]:
    rng = np.random.default_rng(7)
    n_vocab = len(vocabulary()[0])

    def matrix(name: str, rows: int, columns: int) -> Tensor:
        values = (rng.standard_normal((rows, columns)) * 0.2).astype(np.float32)
        return f"{name}.weight", [columns, rows], 0, values.tobytes()

    def ones(name: str) -> Tensor:
        return f"{name}.weight", [N_EMBD], 0, np.ones(N_EMBD, np.float32).tobytes()

    out = [matrix("token_embd", n_vocab, N_EMBD), ones("output_norm")]
    for i in range(N_LAYER):
        b = f"blk.{i}."
        out += [ones(b + "attn_norm"), matrix(b + "attn_q", N_HEAD * HEAD_DIM, N_EMBD)]
        out += [matrix(b + f"attn_{x}", N_KV * HEAD_DIM, N_EMBD) for x in "kv"]
        out += [matrix(b + "attn_output", N_EMBD, N_HEAD * HEAD_DIM), ones(b + "ffn_norm")]
        out += [matrix(b + "ffn_gate", N_FF, N_EMBD), matrix(b + "ffn_up", N_FF, N_EMBD)]
        out += [matrix(b + "ffn_down", N_EMBD, N_FF)]
    return out


def sound(**overrides: Any) -> bytes:
    return gguf_bytes(metadata(), tensors(), **overrides)


def with_metadata(**changes: Any) -> Callable[[], bytes]:
    return lambda: gguf_bytes(metadata(**changes), tensors())


def with_tensor(number: int, ne: list[int] | None = None, **claims: int) -> Callable[[], bytes]:
    def make() -> bytes:
        all_tensors = tensors()
        name, old, kind, data = all_tensors[number]
        all_tensors[number] = (name, old if ne is None else ne, kind, data)
        return gguf_bytes(metadata(), all_tensors, infos={number: claims})

    return make


def without_tensor(missing: str) -> Callable[[], bytes]:
    return lambda: gguf_bytes(metadata(), [t for t in tensors() if t[0] != missing])


def with_values(name: str, value: float, at: int = 100) -> Callable[[], bytes]:
    def make() -> bytes:
        def poisoned(data: bytes) -> bytes:
            values = np.frombuffer(data, np.float32).copy()
            values[at] = value
            return values.tobytes()

        return gguf_bytes(metadata(), [(n, ne, k, poisoned(d) if n == name else d) for n, ne, k, d in tensors()])

    return make


def lone_array(element: int, count: int) -> Callable[[], bytes]:
    return lambda: gguf_bytes([("x", ARRAY, Raw(struct.pack("<IQ", element, count)))])


def cut(n: int) -> Callable[[], bytes]:
    return lambda: sound(keep=n)


def template(source: str) -> Callable[[], bytes]:
    return with_metadata(tokenizer__chat_template=(STRING, source))


def more_tokens() -> bytes:
    tokens = [*vocabulary()[0], "zz", "zy"]
    return with_metadata(
        tokenizer__ggml__tokens=(ARRAY, (STRING, tokens)),
        tokenizer__ggml__token_type=(ARRAY, (Type.I32, [1] * len(tokens))),
    )()


N_KEYS, N_TENSORS = len(metadata()), len(tensors())

FILES: dict[str, File] = {
    # sound ones, laid out unlike the usual
    "good": File(sound, None),
    "aligned to 64": File(lambda: gguf_bytes(metadata(general__alignment=(U32, 64)), tensors(), alignment=64), None),
    "aligned to 8": File(lambda: gguf_bytes(metadata(general__alignment=(U32, 8)), tensors(), alignment=8), None),
    "version 2": File(lambda: sound(version=2), None),
    # counts
    "n_kv 2^63": File(lambda: sound(n_kv=2**63), "metadata entries"),
    "n_kv 2^64-1": File(lambda: sound(n_kv=2**64 - 1), "metadata entries"),
    "n_kv one too many": File(lambda: sound(n_kv=N_KEYS + 1), "metadata entry|key|tensor number"),
    "n_tensors 2^63": File(lambda: sound(n_tensors=2**63), "tensors"),
    "n_tensors 2^40": File(lambda: sound(n_tensors=2**40), "tensors"),
    "n_tensors one too many": File(lambda: sound(n_tensors=N_TENSORS + 1), "tensor"),
    "array of 2^63": File(lone_array(Type.U8, 2**63), "key 'x'"),
    "arrays in an array": File(lone_array(ARRAY, 2**62), "key 'x'"),
    # shapes
    "5 dimensions": File(with_tensor(0, [72, 1, 1, 1, 1]), "token_embd.weight.*5 dimensions"),
    "1,000,000 dimensions": File(with_tensor(0, n_dims=1_000_000), "token_embd.weight.*1000000 dim"),
    "2^32-1 dimensions": File(with_tensor(0, n_dims=2**32 - 1), "token_embd.weight.*4294967295 dim"),
    "a product that wraps": File(with_tensor(0, [4194305, 4194305, 211106198978564]), "token_embd.weight.*dimension"),
    "2^42 rows": File(with_tensor(0, [72, 2**42 + 1]), "token_embd.weight.*past the end"),
    "-1 rows": File(with_tensor(0, [72, 2**64 - 1]), "token_embd.weight.*dimension 1"),
    # alignment
    **{
        f"alignment {value!r} as {kind.name}": File(
            with_metadata(general__alignment=(kind, value)), "general.alignment"
        )
        for kind, value in [(U32, 0), (U32, 3), (U32, 2**31), (Type.I32, 32), (STRING, "32"), (Type.U64, 32)]
    },
    # ids and sizes
    **{
        f"{name} id {value}": File(with_metadata(**{f"tokenizer__ggml__{name}_token_id": (U32, value)}), None)
        for name, value in [("eos", 2**32 - 1), ("eos", 281), ("bos", 281), ("unknown", 9999)]
    },
    "eos id -1": File(with_metadata(tokenizer__ggml__eos_token_id=(Type.I32, -1)), None),
    "eos id that is text": File(with_metadata(tokenizer__ggml__eos_token_id=(STRING, "\x1b[2J2")), None),
    "more tokens than rows": File(more_tokens, "tokenizer.ggml.tokens", "run"),
    **{
        f"{key} {value}": File(with_metadata(**{"llama__" + key.replace(".", "__"): (kind, value)}), named, "run")
        for key, kind, value, named in [
            ("block_count", U32, 2**31, "block_count"),
            ("block_count", U32, 600, "block_count"),
            ("block_count", U32, 0, "block_count"),
            ("block_count", Type.F32, 2.0, "block_count"),
            ("block_count", STRING, "2", "block_count"),
            ("attention.head_count", U32, 0, "head_count"),
            ("attention.head_count_kv", U32, 0, "head_count_kv"),
            ("attention.head_count_kv", U32, 2, "head_count_kv"),
            ("attention.key_length", U32, 2**31, "key_length"),
            ("embedding_length", U32, 0, "embedding_length"),
            ("embedding_length", U32, 64, "embedding_length"),
            ("feed_forward_length", U32, 2**32 - 1, "feed_forward_length"),
            ("rope.dimension_count", U32, 7, "rope.dimension_count"),
            ("rope.dimension_count", U32, 16, "rope.dimension_count"),
            ("rope.freq_base", F32, float("nan"), "rope.freq_base"),
            ("rope.freq_base", F32, -1.0, "rope.freq_base"),
            ("context_length", U32, 2**32 - 1, "context_length"),
            ("attention.layer_norm_rms_epsilon", F32, float("nan"), "epsilon"),
            ("attention.layer_norm_rms_epsilon", F32, float("inf"), "epsilon"),
            ("attention.layer_norm_rms_epsilon", F32, 1.0, "llama.attention.layer_norm_rms_epsilon"),
        ]
    },
    "context_length 0": File(with_metadata(llama__context_length=(U32, 0)), None),
    "weights in a format without kernels": File(with_tensor(3, type=26), r"blk\.0\.attn_q\.weight' is I32", "run"),
    "a norm of integers": File(with_tensor(1, type=26), "output_norm.weight.*is I32", "run"),
    "a matrix of 4 dimensions": File(with_tensor(3, [72, 72, 1, 1]), "attn_q.weight.*4 dimensions", "run"),
    "weights in a format that was dropped": File(with_tensor(3, type=31), "attn_q.weight.*Q4_0_4_4 .*take the Q4_0"),
    "weights in an unknown format": File(
        with_tensor(3, type=9999), "attn_q.weight.*number 9999 .*another quantization"
    ),
    "a missing tensor": File(without_tensor("blk.1.ffn_up.weight"), r"blk\.1\.ffn_up", "run"),
    "no architecture": File(with_metadata(general__architecture=None), "general.architecture", "run"),
    "an unknown architecture": File(
        with_metadata(general__architecture=(STRING, "nosuch\x1b[31m")), "general.architecture", "run"
    ),
    "NaN among the weights": File(
        with_values("blk.1.ffn_down.weight", float("nan")), "blk.1.ffn_down.*not finite", "run", False
    ),
    # cut and foreign ones
    **{f"cut to {n} bytes": File(cut(n), "") for n in (0, 3, 4, 23, 24, 100, 2000)},
    "cut by one byte": File(cut(-1), "pull it again"),
    "cut in half": File(lambda: sound()[: len(sound()) // 2], "pull it again"),
    "big-endian": File(lambda: gguf_bytes(metadata(), tensors(), order=">"), "byte order"),
    **{f"version {v}": File(lambda v=v: sound(version=v), f"version {v}") for v in (0, 1, 4, 2**31)},
    "an old magic": File(lambda: sound(magic=b"ggml"), "GGML"),
    "a zip archive": File(lambda: b"PK\x03\x04" + bytes(200), "zip"),
    # text that is none
    "an escape in a key": File(lambda: gguf_bytes([("\x1b]0;x\x07", U32, 1)]), "key"),
    "an escape in a tensor's name": File(lambda: gguf_bytes(metadata(), [("\x1b[2J", [4], 0, bytes(16))]), "tensor"),
    "a name that is not UTF-8": File(lambda: gguf_bytes(metadata(), [(b"\xff\xfe", [4], 0, bytes(16))]), "UTF-8"),
    "an escape in a value": File(with_metadata(general__name=(STRING, "\x1b]0;x\x07\x9b2J\u202e\n")), None),
    "bytes in a value": File(with_metadata(general__name=(STRING, b"\xff\xfe\x00")), None),
    "a pre-tokenizer of escapes": File(
        with_metadata(tokenizer__ggml__pre=(STRING, "\x1b[2Jnosuch\n")), "tokenizer.ggml.pre", "text"
    ),
    "a key twice": File(
        lambda: gguf_bytes([*metadata(), ("general.name", U32, 1), ("general.name", U32, 2)], tensors()),
        "general.name",
    ),
    # much of something
    "100,000 keys": File(
        lambda: gguf_bytes([*metadata(), *((f"k{i}", Type.U8, 1) for i in range(100_000))], tensors()), None
    ),
    "100,000 tensors": File(
        lambda: gguf_bytes(metadata(), [(f"t{i}", [1], 0, bytes(4)) for i in range(100_000)], alignment=32),
        "token_embd",
        "run",
    ),
    "a text of 100 MB": File(with_metadata(general__name=(STRING, b"\x1bx" * 50_000_000)), None),
    "a template of 100 MB": File(template("{# " + "x" * 100_000_000 + " #}"), "chat.template|template", "chat"),
    "4,000,000 numbers": File(
        with_metadata(x=(ARRAY, Raw(struct.pack("<IQ", Type.U8, 1 << 22) + bytes(1 << 22)))), None
    ),
    "4,000,000 heads": File(
        with_metadata(llama__attention__head_count=(ARRAY, Raw(struct.pack("<IQ", Type.U8, 1 << 22) + bytes(1 << 22)))),
        "head_count",
        "run",
    ),
    # templates that attack, hang or fail
    **{
        f"template: {name}": File(template(source), "template", "chat", "raise_exception" not in source)
        for name, source in {
            "globals": "{{ cycler.__init__.__globals__ }}",
            "classes": "{{ ''.__class__.__mro__ }}",
            "include": "{% include '/etc/hostname' %}",
            "an endless loop": "{% for i in range(10 ** 9) %}x{% endfor %}",
            "a flood": "{{ 'x' * (10 ** 10) }}",
            "a flood at compile time": "{{ 'x' | center(900000000) }}",
            "changed messages": "{{ messages.append({'role': 'system', 'content': 'y'}) }}",
            "wrong syntax": "{% if %}\x1b[2J",
            "an exception": "{{ raise_exception('\x1b[2Jno') }}",
            "recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        }.items()
    },
}
