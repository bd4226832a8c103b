"""The GGUF loader: sound files are read exactly, and whatever else is refused in one line that names the fault.

Owns faults of the file's structure. What metadata mean (a token id past the vocabulary, a head count of 0) is tested
with the models and tokenizers.
"""

from __future__ import annotations

import math
import os
import random
import re
import struct
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from ggufbytes import Kv, Raw, Tensor, Type, gguf_bytes, pack_string, write_gguf
from tinymodel import write_tiny_llama

from pyedge._core import Gguf, Model, formats
from pyedge.errors import ModelError
from pyedge.models import build_plan

F32, F16, Q8_0 = 0, 1, 8
ARRAY, STRING, U32 = Type.ARRAY, Type.STRING, Type.U32


def floats(n: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).standard_normal(n, dtype=np.float32).tobytes()


KV: list[Kv] = [
    ("general.architecture", STRING, "llama"),
    ("u8", Type.U8, 255),
    ("i8", Type.I8, -128),
    ("u16", Type.U16, 65535),
    ("i16", Type.I16, -32768),
    ("u32", Type.U32, 2**32 - 1),
    ("i32", Type.I32, -(2**31)),
    ("u64", Type.U64, 2**64 - 1),
    ("i64", Type.I64, -(2**63)),
    ("f32", Type.F32, 1.5),
    ("f64", Type.F64, math.pi),
    ("yes", Type.BOOL, True),
    ("no", Type.BOOL, False),
    ("empty", STRING, ""),
    ("text", STRING, "ä\n\0🦙"),
    ("tokens", ARRAY, (STRING, ["a", "", "▁é", b"\xff\xfe"])),
    ("scores", ARRAY, (Type.F32, [0.0, -1.5, 2.0])),
    ("types", ARRAY, (Type.I32, [1, -3])),
    ("flags", ARRAY, (Type.BOOL, [True, False])),
    ("none", ARRAY, (Type.U32, [])),
    ("no words", ARRAY, (STRING, [])),
]
TENSORS: list[Tensor] = [
    ("a.weight", [4, 6], F32, floats(24, 1)),
    ("b.weight", [5], F32, floats(5, 2)),  # 20 bytes, so that padding matters
    ("c.weight", [32, 2, 3], Q8_0, bytes(range(34)) * 6),
    ("d.weight", [2, 1, 1, 3], F16, np.arange(6, dtype=np.float16).tobytes()),
]


def with_kv(*kv: Kv) -> list[Kv]:
    return [*KV, *kv]


def with_tensor(
    name: str | bytes = "x", ne: tuple[int, ...] = (4,), kind: int = F32, data: bytes = bytes(16)
) -> list[Tensor]:
    return [(name, ne, kind, data), *TENSORS]


# ---- sound files -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [2, 3])
def test_values_are_read_exactly(tmp_path: Path, version: int) -> None:
    g = Gguf(write_gguf(tmp_path / "m.gguf", KV, TENSORS, version=version))
    assert g.version == version
    assert g.path == str(tmp_path / "m.gguf")
    assert g.file_size == os.path.getsize(g.path)
    assert g.keys() == [k for k, _, _ in KV]
    for key, kind, value in KV:
        assert g.length(str(key)) == (len(value[1]) if kind == ARRAY else 1)
        if key == "tokens":
            assert g.get(key) == ["a", "", "▁é", "\ufffd\ufffd"]
            assert g.bytes(key) == [b"a", b"", "▁é".encode(), b"\xff\xfe"]
            continue
        want = value[1] if kind == ARRAY else value
        assert g.get(str(key)) == want
        assert type(g.get(str(key))) is type(want)
        assert str(key) in g
    assert g.bytes("text") == ["ä\n\0🦙".encode()]
    assert "nothing" not in g
    assert g.get("nothing") is None
    assert g.get("nothing", 7) == 7


def test_tensors_are_read_exactly(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", KV, TENSORS)
    file = path.read_bytes()
    g = Gguf(path)
    assert [(t.name, t.shape, t.n_bytes) for t in g.tensors] == [(n, tuple(ne), len(d)) for n, ne, _, d in TENSORS]
    assert [t.type for t in g.tensors] == ["F32", "F32", "Q8_0", "F16"]
    for i, (t, (name, _, _, data)) in enumerate(zip(g.tensors, TENSORS, strict=True)):
        assert file[t.offset : t.offset + t.n_bytes] == data
        assert g.tensor_index(str(name)) == i
    assert g.tensor_index("nothing") == -1
    assert np.array_equal(g.dequantize("a.weight"), np.frombuffer(TENSORS[0][3], np.float32).reshape(6, 4))
    assert g.dequantize("b.weight").shape == (1, 5)
    assert g.dequantize("c.weight").shape == (6, 32)
    assert np.array_equal(g.dequantize("d.weight"), np.arange(6, dtype=np.float32).reshape(3, 2))


def test_rows_may_be_unpacked_by_themselves(tmp_path: Path) -> None:
    g = Gguf(write_gguf(tmp_path / "m.gguf", KV, TENSORS))
    for name in ("a.weight", "c.weight", "d.weight"):
        whole = g.dequantize(name)
        assert np.array_equal(g.dequantize(name, 1), whole[1:])
        assert np.array_equal(g.dequantize(name, 1, 2), whole[1:3])
        assert g.dequantize(name, len(whole)).shape == (0, whole.shape[1])
        for first, n in (
            (-1, 1),
            (0, len(whole) + 1),
            (len(whole) + 1, None),
            (1, len(whole)),
            (0, -1),
            (2**63 - 1, 1),
        ):
            with pytest.raises(ValueError, match=rf"m\.gguf: tensor '{name}' has {len(whole)} rows, not "):
                g.dequantize(name, first, n)


@pytest.mark.parametrize("alignment", [1, 8, 32, 64, 4096, 65536])
def test_alignment_of_the_file_is_followed(tmp_path: Path, alignment: int) -> None:
    kv = with_kv(("general.alignment", U32, alignment))
    g = Gguf(write_gguf(tmp_path / "m.gguf", kv, TENSORS, alignment=alignment))
    for t, (name, _, _, data) in zip(g.tensors, TENSORS, strict=True):
        assert t.offset % alignment == 0
        assert (tmp_path / "m.gguf").read_bytes()[t.offset : t.offset + t.n_bytes] == data, name


def test_every_known_format_has_its_size(tmp_path: Path) -> None:
    tensors: list[Tensor] = []
    known = [f for f in formats() if f.name != "Q8_1"]  # 36 bytes; the package's table still has its older 40
    for f in known:
        block, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[f.name]]
        tensors.append((f"{f.name}.weight", [block, 3], f.type, bytes(3 * size)))
    g = Gguf(write_gguf(tmp_path / "m.gguf", [], tensors))
    assert [t.type for t in g.tensors] == [f.name for f in known]
    assert [t.n_bytes for t in g.tensors] == [len(data) for _, _, _, data in tensors]


def test_reads_what_the_gguf_package_writes(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    w = gguf.GGUFWriter(path, "llama")
    w.add_uint32("llama.block_count", 2)
    w.add_token_list(["a", "b"])
    w.add_bool("flag", True)
    x = np.random.default_rng(0).standard_normal((6, 64), dtype=np.float32)
    w.add_tensor("x", x)
    packed = gguf.quantize(x, gguf.GGMLQuantizationType.Q8_0)
    w.add_tensor("y", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    g = Gguf(path)
    assert (g.get("general.architecture"), g.get("llama.block_count"), g.get("flag")) == ("llama", 2, True)
    assert g.get("tokenizer.ggml.tokens") == ["a", "b"]
    assert np.array_equal(g.dequantize("x"), x)
    assert np.array_equal(g.dequantize("y"), gguf.dequantize(packed, gguf.GGMLQuantizationType.Q8_0))


def test_a_file_may_hold_metadata_alone_or_nothing(tmp_path: Path) -> None:
    g = Gguf(write_gguf(tmp_path / "vocab.gguf", KV))  # as vocabulary files do, without padding at the end
    assert (len(g.keys()), g.tensors) == (len(KV), [])
    assert Gguf(write_gguf(tmp_path / "none.gguf", [])).keys() == []


def test_limits_of_names_are_the_formats_own(tmp_path: Path) -> None:
    key, name = "k" * 65535, "n" * 64
    g = Gguf(write_gguf(tmp_path / "m.gguf", [(key, U32, 1)], with_tensor(name)))
    assert g.get(key) == 1
    assert g.tensor_index(name) == 0


def test_data_need_not_stand_in_the_order_of_the_tensors(tmp_path: Path) -> None:
    tensors: list[Tensor] = [("x", [4], F32, floats(4, 1)), ("y", [4], F32, floats(4, 2))]
    g = Gguf(write_gguf(tmp_path / "m.gguf", [], tensors, infos={0: {"offset": 32}, 1: {"offset": 0}}))
    assert g.dequantize("x").tobytes() == tensors[1][3]
    assert g.dequantize("y").tobytes() == tensors[0][3]


def test_a_large_vocabulary_opens_quickly(tmp_path: Path) -> None:
    n = 262_144
    kv: list[Kv] = [
        ("tokenizer.ggml.tokens", ARRAY, (STRING, [f"token{i}" for i in range(n)])),
        ("tokenizer.ggml.scores", ARRAY, (Type.F32, [-float(i) for i in range(n)])),
        ("tokenizer.ggml.token_type", ARRAY, (Type.I32, [1] * n)),
        ("tokenizer.ggml.merges", ARRAY, (STRING, [f"to ken{i}" for i in range(2 * n)])),
    ]
    path = write_gguf(tmp_path / "m.gguf", kv)

    def seconds() -> float:
        start = time.perf_counter()
        g = Gguf(path)
        tokens = g.bytes("tokenizer.ggml.tokens")
        taken = time.perf_counter() - start
        assert len(tokens) == n == g.length("tokenizer.ggml.tokens")
        assert tokens[-1] == b"token262143"
        return taken

    assert min(seconds() for _ in range(3)) < 0.3


def test_a_length_costs_nothing(tmp_path: Path) -> None:
    n = 1 << 20
    g = Gguf(write_gguf(tmp_path / "m.gguf", [("x", ARRAY, (Type.U8, [1] * n))]))
    start = time.perf_counter()
    for _ in range(100):
        assert g.length("x") == n
    assert time.perf_counter() - start < 0.1  # making the elements takes longer than that once


# ---- lifetime --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "use",
    [
        lambda g: g.keys(),
        lambda g: g.get("u8"),
        lambda g: g.get("nothing"),
        lambda g: g.bytes("tokens"),
        lambda g: g.length("tokens"),
        lambda g: "u8" in g,
        lambda g: g.tensors,
        lambda g: g.tensor_index("a.weight"),
        lambda g: g.dequantize("a.weight"),
        lambda g: g.version,
        lambda g: g.file_size,
        lambda g: g.__enter__(),
    ],
)
def test_a_closed_file_is_not_read(tmp_path: Path, use: Callable[[Gguf], Any]) -> None:
    with Gguf(write_gguf(tmp_path / "m.gguf", KV, TENSORS)) as g:
        tensor, tokens = g.tensors[0], g.bytes("tokens")
        use(g)
    with pytest.raises(ValueError, match=r"m\.gguf: .*closed"):
        use(g)
    g.close()  # twice is fine
    assert g.path.endswith("m.gguf")
    assert "closed" in repr(g)
    assert (tensor.name, tokens[0]) == ("a.weight", b"a")  # what was taken out stays


def test_metadata_do_not_change_with_the_file(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", KV, TENSORS)
    g = Gguf(path)
    with open(path, "r+b") as f:  # by another process, say: the same file, not a new one of its name
        f.write(b"\xff" * path.stat().st_size)
        f.truncate(7)
    assert g.keys() == [k for k, _, _ in KV]
    assert g.get("text") == "ä\n\0🦙"
    assert [t.name for t in g.tensors] == [name for name, _, _, _ in TENSORS]


def test_a_file_that_is_cut_meanwhile_is_told(tmp_path: Path) -> None:
    path = write_tiny_llama(tmp_path / "m.gguf", types="Q8_0")
    g = Gguf(path)
    plan = build_plan(g)
    os.truncate(path, 20_000)  # somewhere among the weights
    with pytest.raises(ModelError, match=r"m\.gguf: the file became shorter"):
        g.dequantize(g.tensors[-1].name)
    for threads in (1, 2):
        with pytest.raises(ModelError, match=r"m\.gguf: the file became shorter"):
            Model(g, plan.ops, threads=threads)


def test_a_deleted_file_stays_readable(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", KV, TENSORS)
    g = Gguf(path)
    path.unlink()
    assert g.dequantize("a.weight").tobytes() == TENSORS[0][3]


def test_absent_names_and_wrong_types_are_told(tmp_path: Path) -> None:
    g = Gguf(write_gguf(tmp_path / "m.gguf", KV, TENSORS))
    with pytest.raises(ModelError, match=r"m\.gguf: tensor 'nope' is missing"):
        g.dequantize("nope")
    with pytest.raises(ModelError, match=r"m\.gguf: key 'nope' is missing"):
        g.bytes("nope")
    with pytest.raises(ModelError, match=r"m\.gguf: key 'nope' is missing"):
        g.length("nope")
    with pytest.raises(ModelError, match=r"m\.gguf: key 'scores' must hold strings"):
        g.bytes("scores")


# ---- what is no GGUF file --------------------------------------------------------------------------------------------


def refusal(path: Path) -> str:
    """Opens the file, which must fail, in time and in one line that begins with the path. Returns the rest."""
    start = time.perf_counter()
    with pytest.raises(ModelError) as info:
        Gguf(path)
    assert time.perf_counter() - start < 1
    message = str(info.value)
    assert message.startswith(f"{path}: ")
    rest = message[len(f"{path}: ") :]
    assert rest.isprintable()
    assert len(rest) < 320
    return rest


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"G", "1 bytes"),
        (b"GGUF", "4 bytes"),
        (b"GGUF" + bytes(19), "23 bytes"),
        (b"\x00\x01\x02\x03" * 20, r"begins with '\\x00\\x01\\x02\\x03'"),
        (b"PK\x03\x04" + bytes(100), "zip"),
        (b"\x1f\x8b" + bytes(100), "archive"),
        (b"ggml" + bytes(100), "GGML"),
        (b"tjgg" + bytes(100), "GGML"),
        (struct.pack("<Q", 80) + b'{"__metadata__":{}}' + bytes(100), "safetensors"),
        (b"version https://git-lfs.github.com/spec/v1\n", "Git LFS"),
        (b"<!DOCTYPE html><html></html>", "web page"),
        (b"\xef\xbb\xbf\n <html>", "web page"),
        (b'{"error": "not found"}', "JSON"),
        (b"Entry not found", "server's error message"),
        (b"Invalid username or password.", "server's error message"),
        (bytes(4096), "begins with zeros.*pull it again"),
        (b"\x80\x02" + bytes(100), "pickle"),
        (b"\x93NUMPY" + bytes(100), "numpy array"),
        (b"\x7fELF" + bytes(100), "program"),
        (b"\x28\xb5\x2f\xfd" + bytes(100), "archive"),
        (bytes(257) + b"ustar" + bytes(250), "archive"),
        (b"\x1c\0\0\0TFL3" + bytes(100), "TensorFlow Lite"),
        (gguf_bytes(KV, TENSORS, order=">"), "big-endian.*byte order"),
        (gguf_bytes(KV, TENSORS, order=">", version=2), "big-endian.*byte order"),
        (gguf_bytes(KV, TENSORS, magic=b"FUGG", order=">"), "big-endian.*byte order"),
        (gguf_bytes(KV, TENSORS, version=0), "version 0 "),
        (gguf_bytes(KV, TENSORS, version=1), "version 1 .*too old"),
        (gguf_bytes(KV, TENSORS, version=4), "version 4 .*newer pyedge"),
        (gguf_bytes(KV, TENSORS, version=2**31), "version 2147483648 "),
    ],
)
def test_other_files_are_told_apart(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    rest = refusal(path)
    assert re.search(reason, rest), rest
    assert re.search(REMEDY, rest), rest


def test_a_folder_is_refused(tmp_path: Path) -> None:
    assert "folder" in refusal(tmp_path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    assert "no such file" in refusal(tmp_path / "nope.gguf")
    (tmp_path / "file").touch()
    assert "not a folder" in refusal(tmp_path / "file" / "m.gguf")


def test_a_pipe_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in refusal(tmp_path / "pipe")


def test_devices_are_refused() -> None:
    assert "not a regular file" in refusal(Path("/dev/zero"))


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may read everything")
def test_a_file_without_permission_is_refused(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", KV)
    path.chmod(0)
    assert "permission" in refusal(path)


def test_paths_are_checked() -> None:
    with pytest.raises(ValueError, match="null"):
        Gguf("a\0b")
    with pytest.raises(TypeError):
        Gguf(3)  # type: ignore[arg-type]
    with pytest.raises(ModelError, match=r"^\.\.\.x+y: .*too long"):
        Gguf("/tmp/" + "x" * 5000 + "y")
    with pytest.raises(ModelError, match=r"/nowhere/\\xff\?x: no such file"):
        Gguf(b"/nowhere/\xff\nx")


# ---- broken files ----------------------------------------------------------------------------------------------------


# What every refusal ends with.
REMEDY = "; .*(pull it again|another source|newer (pyedge|file)|give |get |take |unpack |git lfs pull)"


def length(n: int) -> bytes:
    return struct.pack("<Q", n)


BROKEN: dict[str, tuple[bytes, str]] = {
    # counts
    "n_kv 2^63": (gguf_bytes(KV, TENSORS, n_kv=2**63), "9223372036854775808 metadata entries"),
    "n_kv 2^64-1": (gguf_bytes(KV, TENSORS, n_kv=2**64 - 1), "18446744073709551615 metadata entries"),
    "n_kv over the limit": (gguf_bytes(KV, TENSORS, n_kv=131073) + bytes(2**21), "131073 metadata entries"),
    "n_kv one too many": (gguf_bytes(KV, TENSORS, n_kv=len(KV) + 1), ""),
    "n_kv one too few": (gguf_bytes(KV, TENSORS, n_kv=len(KV) - 1), ""),
    "n_kv without entries": (gguf_bytes(n_kv=1), "1 metadata entries"),
    "n_tensors 2^63": (gguf_bytes(KV, TENSORS, n_tensors=2**63), "9223372036854775808 tensors"),
    "n_tensors 2^40": (gguf_bytes(KV, TENSORS, n_tensors=2**40), "1099511627776 tensors"),
    "n_tensors over the limit": (gguf_bytes(KV, TENSORS, n_tensors=131073) + bytes(5 * 2**20), "131073 tensors"),
    "n_tensors one too many": (gguf_bytes(KV, TENSORS, n_tensors=len(TENSORS) + 1), "tensor number 4"),
    "n_tensors without entries": (gguf_bytes(KV, n_tensors=5), "5 tensors"),
    # keys
    "empty key": (gguf_bytes(with_kv(("", U32, 1)), TENSORS), f"metadata entry {len(KV)}: an empty key"),
    "long key": (gguf_bytes(with_kv(("k" * 65536, U32, 1)), TENSORS), "65536 bytes"),
    "many long keys": (gguf_bytes([(f"{i:065535}", U32, 1) for i in range(65)]), "keys alone"),
    "key past the end": (gguf_bytes(n_kv=1) + length(2**63) + bytes(40), "metadata entry 0: .*ends here"),
    "key one byte too long": (gguf_bytes(n_kv=1) + length(12) + b"x" * 11, "metadata entry 0: .*ends here"),
    "NUL in a key": (gguf_bytes([(b"a\0b", U32, 1)]), r"key 'a\\x00b': .*control"),
    "escape in a key": (gguf_bytes([(b"\x1b[31mred\n", U32, 1)]), r"key '\\x1b\[31mred\\x0a': "),
    "key not UTF-8": (gguf_bytes([(b"a\xff", U32, 1)]), r"key 'a\\xff': .*UTF-8"),
    "overlong UTF-8 in a key": (gguf_bytes([(b"a\xc0\xaf", U32, 1)]), "UTF-8"),
    "surrogate in a key": (gguf_bytes([(b"a\xed\xa0\x80", U32, 1)]), "UTF-8"),
    "half a character in a key": (gguf_bytes([(b"a\xe2\x82", U32, 1)]), "UTF-8"),
    "key twice": (gguf_bytes(with_kv(("i32", U32, 1)), TENSORS), "key 'i32': .*twice"),
    # values
    "value type 13": (gguf_bytes([("x", 13, Raw(bytes(8)))]), "key 'x': value type 13"),
    "value type 2^32-1": (gguf_bytes([("x", 2**32 - 1, Raw(bytes(8)))]), "key 'x': value type 4294967295"),
    "no value": (gguf_bytes([("xxxxx", U32, Raw(b""))]), "key 'xxxxx': .*ends here"),
    "half a value": (gguf_bytes([("x", Type.U64, Raw(bytes(7)))]), "key 'x': .*ends here"),
    "bool 2": (gguf_bytes([("x", Type.BOOL, Raw(b"\2"))]), "key 'x': a bool of 2"),
    "bool 255 in an array": (
        gguf_bytes([("x", ARRAY, Raw(struct.pack("<IQ", Type.BOOL, 2) + b"\1\xff"))]),
        "key 'x': a bool of 255",
    ),
    "string past the end": (gguf_bytes([("x", STRING, Raw(length(9) + b"12345678"))]), "key 'x': .*9 bytes.*ends here"),
    "string of 2^64-1": (gguf_bytes([("x", STRING, Raw(length(2**64 - 1) + bytes(9)))]), "key 'x': .*ends here"),
    "array of 2^63": (gguf_bytes([("x", ARRAY, Raw(struct.pack("<IQ", 0, 2**63)))]), "key 'x': .*9223372036854775808"),
    "array over the limit": (
        gguf_bytes([("x", ARRAY, Raw(struct.pack("<IQ", 0, 2**22 + 1) + bytes(2**22 + 1)))]),
        "key 'x': an array of 4194305",
    ),
    "array that wraps in bytes": (gguf_bytes([("x", ARRAY, Raw(struct.pack("<IQ", Type.U64, 2**61)))]), "key 'x': "),
    "array past the end": (gguf_bytes([("x", ARRAY, Raw(struct.pack("<IQ", U32, 3) + bytes(11)))]), "key 'x': 3 x u32"),
    "array of arrays": (
        gguf_bytes([("x", ARRAY, Raw(struct.pack("<IQ", ARRAY, 2**62)))]),
        "key 'x': an array of arrays",
    ),
    "array of unknown type": (gguf_bytes([("x", ARRAY, Raw(struct.pack("<IQ", 99, 0)))]), "key 'x': value type 99"),
    "array without a count": (gguf_bytes([("x", ARRAY, Raw(bytes(8)))]), "key 'x': .*ends here"),
    "too many strings": (
        gguf_bytes([("x", ARRAY, Raw(struct.pack("<IQ", STRING, 2**21)))]),
        "key 'x': .*2097152 strings",
    ),
    "strings past the end": (
        gguf_bytes([("x", ARRAY, Raw(struct.pack("<IQ", STRING, 2) + pack_string("a" * 20) + length(1)))]),
        "key 'x': string 1 of 1 bytes.*ends here",
    ),
    # alignment
    **{
        f"alignment {kind.name} {value}": (
            gguf_bytes(with_kv(("general.alignment", kind, value)), TENSORS),
            f"key 'general.alignment': .*({value}|{kind.name.lower()})",
        )
        for kind, value in [
            (U32, 0),
            (U32, 3),
            (U32, 2**31),
            (U32, 131072),
            (Type.I32, 32),
            (STRING, "32"),
            (Type.U64, 32),
        ]
    },
    "alignment in an array": (gguf_bytes(with_kv(("general.alignment", ARRAY, (U32, [32])))), "an array of u32"),
    # tensors
    "empty tensor name": (gguf_bytes(KV, with_tensor("")), "tensor number 0: an empty name"),
    "long tensor name": (gguf_bytes(KV, with_tensor("n" * 65)), "65 bytes"),
    "tensor name past the end": (
        gguf_bytes(KV, TENSORS, infos={0: {"name_length": 2**40}}),
        "tensor number 0: .*ends here",
    ),
    "NUL in a tensor name": (gguf_bytes(KV, with_tensor(b"x\0y")), r"tensor 'x\\x00y': .*control"),
    "tensor name not UTF-8": (gguf_bytes(KV, with_tensor(b"x\x80")), r"tensor 'x\\x80': .*UTF-8"),
    "tensor twice": (gguf_bytes(KV, with_tensor("c.weight")), r"tensor 'c\.weight': .*twice"),
    **{
        f"{n} dimensions": (gguf_bytes(KV, TENSORS, infos={1: {"n_dims": n}}), rf"tensor 'b\.weight': {n} dimensions")
        for n in (0, 5, 1_000_000, 2**32 - 1)
    },
    "dimension 0": (gguf_bytes(KV, with_tensor(ne=(4, 0), data=b"")), "tensor 'x': dimension 1 is 0"),
    "dimension -1": (gguf_bytes(KV, with_tensor(ne=(4, 2**64 - 1))), "tensor 'x': dimension 1 is 18446744073709551615"),
    "dimension 2^63": (gguf_bytes(KV, with_tensor(ne=(2**63,))), "tensor 'x': dimension 0"),
    "a product that wraps to 4": (gguf_bytes(KV, with_tensor(ne=(4194305, 4194305, 211106198978564))), "tensor 'x': "),
    "a product of 2^63": (gguf_bytes(KV, with_tensor(ne=(2**21, 2**21, 2**21))), "tensor 'x': dimension 2"),
    "bytes that wrap": (gguf_bytes(KV, with_tensor(ne=(2**62,))), "tensor 'x': 4611686018427387904 blocks of F32"),
    "far too large": (gguf_bytes(KV, with_tensor(ne=(4, 2**42))), "tensor 'x': its 70368744177664 bytes"),
    **{
        f"type {n}": (gguf_bytes(KV, TENSORS, infos={1: {"type": n}}), rf"tensor 'b\.weight': type number {n} ")
        for n in (42, 9999, 2**31, 2**32 - 1)
    },
    **{
        f"type {n}, which was dropped": (
            gguf_bytes(KV, TENSORS, infos={1: {"type": n}}),
            rf"tensor 'b\.weight': {name} is .* no longer has; take the {instead} file",
        )
        for n, name, instead in [(4, "Q4_2", "Q4_0"), (31, "Q4_0_4_4", "Q4_0"), (38, "IQ4_NL_8_8", "IQ4_NL")]
    },
    "a row of no whole blocks": (
        gguf_bytes(KV, with_tensor(ne=(33, 32), kind=Q8_0, data=bytes(34 * 33))),
        "tensor 'x': a row of 33 values is no multiple of 32, the block of Q8_0",
    ),
    "offset off alignment": (
        gguf_bytes(KV, TENSORS, infos={1: {"offset": 97}}),
        r"tensor 'b\.weight': .*97.*aligned to 32",
    ),
    "offset past the end": (
        gguf_bytes(KV, TENSORS, infos={1: {"offset": 2**20}}),
        r"tensor 'b\.weight': .*past the end",
    ),
    "offset that wraps": (
        gguf_bytes(KV, TENSORS, infos={1: {"offset": 2**64 - 32}}),
        r"tensor 'b\.weight': .*past the end",
    ),
    "the same data twice": (
        gguf_bytes(KV, TENSORS, infos={1: {"offset": 0}}),
        r"tensor '[ab]\.weight': .*overlap those of '[ab]",
    ),
    "data that overlap at the end": (
        gguf_bytes(KV, TENSORS, infos={1: {"offset": 64}}),
        r"tensor 'b\.weight': .*overlap",
    ),
    "a tensor without data": (gguf_bytes(KV, with_tensor(ne=(64,), data=b""), keep=-200), "past the end"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_broken_files_are_refused(tmp_path: Path, fault: str) -> None:
    content, reason = BROKEN[fault]
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    rest = refusal(path)
    assert re.search(reason, rest), rest
    assert re.search(REMEDY, rest), rest


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    whole = gguf_bytes(KV, TENSORS[:3])  # the last tensor ends on its padding
    whole = whole[: len(whole) - (-len(TENSORS[2][3]) % 32)]
    path = tmp_path / "m.gguf"
    for n in range(0, len(whole), 5):
        path.write_bytes(whole[:n])
        rest = refusal(path)
        assert "pull it again" in rest, (n, rest)
    path.write_bytes(whole)
    assert len(Gguf(path).tensors) == 3


def test_text_of_the_file_does_not_flood_a_message(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", [("\x1b" * 60_000, U32, 1)])
    assert len(refusal(path)) < 250


def test_plausible_counts_are_not_believed(tmp_path: Path) -> None:
    """In a sparse file of 8 GiB every count has room; the first entry that is not sound ends it."""
    path = write_gguf(tmp_path / "m.gguf", [], n_kv=131072, n_tensors=131072)
    os.truncate(path, 8 << 30)
    assert "empty key" in refusal(path)


def test_metadata_have_a_limit_in_bytes(tmp_path: Path) -> None:
    """A sparse file has room for any text; what would be read of it is bounded."""
    path = tmp_path / "m.gguf"
    path.write_bytes(gguf_bytes([("x", STRING, Raw(length(300 << 20)))]))
    os.truncate(path, 8 << 30)
    assert "takes over 268435456 bytes" in refusal(path)


# ---- mutations -------------------------------------------------------------------------------------------------------

NUMBERS = [0, 1, 2, 7, 31, 2**8 - 1, 2**16, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**62, 2**63 - 1, 2**63, 2**64 - 1]


def mutate(content: bytes, rng: random.Random) -> bytes:
    out = bytearray(content)
    for _ in range(rng.randint(1, 3)):
        at = rng.randrange(len(out) - 8)
        match rng.randrange(5):
            case 0:
                out[at] ^= 1 << rng.randrange(8)
            case 1:
                out[at] = rng.randrange(256)
            case 2:
                out[at : at + 8] = struct.pack("<Q", rng.choice(NUMBERS))
            case 3:
                out[at : at + 4] = struct.pack("<I", rng.choice(NUMBERS) % 2**32)
            case 4:  # a piece of the file over another one
                n, source = rng.randint(1, 40), rng.randrange(len(out) - 40)
                out[at : at + n] = out[source : source + n]
    return bytes(out if rng.random() < 0.9 else out[: rng.randrange(len(out))])


def read_all(g: Gguf) -> None:
    for key in g.keys():  # noqa: SIM118  (a Gguf is no dict)
        g.get(key)
    for t in g.tensors:
        assert t.offset + t.n_bytes <= g.file_size


def test_mutated_files_open_or_are_refused(tmp_path: Path) -> None:
    rng = random.Random(20240229)
    whole = gguf_bytes(with_kv(("general.alignment", U32, 32)), TENSORS)
    path = tmp_path / "m.gguf"
    refused: list[str] = []
    for _ in range(600):
        path.write_bytes(mutate(whole, rng))
        try:
            g = Gguf(path)
        except ModelError as error:
            refused.append(str(error))
        else:
            read_all(g)
    assert all(message.startswith(f"{path}: ") and message.isprintable() for message in refused)
    assert 100 < len(refused) < 590  # mutations reach both outcomes, or the test tests nothing


def test_a_file_may_be_read_by_several_threads(tmp_path: Path) -> None:
    n = 1 << 20
    g = Gguf(write_gguf(tmp_path / "m.gguf", [], [("x", [1024, n // 1024], F32, floats(n))]))
    sums: list[float] = []
    threads = [threading.Thread(target=lambda: sums.append(float(g.dequantize("x").sum()))) for _ in range(4)]
    want = float(g.dequantize("x").sum())
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    g.close()
    assert sums == [want] * 4
