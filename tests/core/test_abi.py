"""The C API, used as a C program uses it: declarations read from the public header, the extension opened as a library.

Owns the agreement of core/include/pyedge.h with the binary, and of the C API with Python's binding. What the calls
compute is tested elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cffi
import numpy as np
import pytest
from corerun import Runner, some_tokens
from tinymodel import write_tiny_llama

from pyedge import _core

HEADER = (Path(__file__).parents[2] / "core" / "include" / "pyedge.h").read_text()


def declarations(header: str) -> str:
    """The header without what a C parser alone does not know: comments, the preprocessor and C++."""
    text = re.sub(r"//.*", "", header)
    text = re.sub(r"#ifdef __cplusplus.*?#endif", "", text, flags=re.DOTALL)
    text = re.sub(r"^#.*", "", text, flags=re.MULTILINE)
    return text.replace("PE_API ", "")


DECLARATIONS = declarations(HEADER)
FUNCTIONS = re.findall(r"\b(pe_\w+)\((?=[^;{}]*\);)", DECLARATIONS)

ffi = cffi.FFI()
ffi.cdef(DECLARATIONS)
lib: Any = ffi.dlopen(_core.__file__)


def text(c_string: Any) -> str:
    return bytes(ffi.string(c_string)).decode()


def check(status: int, error: Any) -> None:
    assert status == lib.PE_OK, text(error.message)


@pytest.fixture
def error() -> Any:
    return ffi.new("pe_error *")


def test_every_function_of_the_header_is_in_the_library() -> None:
    assert len(FUNCTIONS) == HEADER.count("PE_API ") - HEADER.count("#define PE_API ")
    missing = [name for name in FUNCTIONS if not hasattr(lib, name)]
    assert not missing


def test_version() -> None:
    (version,) = re.findall(r"#define PE_ABI_VERSION (\d+)", HEADER)
    assert lib.pe_abi_version() == _core.ABI_VERSION == int(version)


def test_formats() -> None:
    info = ffi.new("pe_format_info *")
    found = []
    for i in range(lib.pe_format_count()):
        lib.pe_format(i, info)
        found.append((text(info.name), info.type, info.block_values, info.block_bytes, info.runs))
    assert found == [(f.name, f.type, f.block_values, f.block_bytes, f.runs) for f in _core.formats()]
    assert ("Q4_0", 2, 32, 18, True) in found


def test_ops() -> None:
    names = ("min_inputs", "max_inputs", "min_outputs", "max_outputs")
    info = ffi.new("pe_op_info *")
    for i, op in enumerate(_core.ops()):
        lib.pe_op_describe(i, info)
        assert [getattr(info, n) for n in names] == [getattr(op, n) for n in names]
        assert [text(getattr(info, n)) for n in ("name", "weights", "parameters")] == [
            op.name,
            op.weights,
            op.parameters,
        ]
    assert lib.pe_op_count() == len(_core.ops())


def test_instruction_sets(error: Any) -> None:
    supported, name = ffi.new("bool *"), ffi.new("const char **")
    found = [(text(lib.pe_isa_name(i, supported)), bool(supported[0])) for i in range(lib.pe_isa_count())]
    assert found == _core.isas()
    check(lib.pe_isa_active(name, error), error)
    assert text(name[0]) == _core.active_isa()


def test_machine() -> None:
    machine = ffi.new("pe_machine *")
    lib.pe_machine_query(machine)
    python = _core.machine()
    for name in ("physical_cores", "cpu_limit", "default_threads", "memory_total"):
        assert getattr(machine, name) == python[name]
    assert 0 < machine.memory_available <= machine.memory_total


def test_a_failure_is_a_status_and_a_message(tmp_path: Path, error: Any) -> None:
    out = ffi.new("pe_gguf **")
    missing = str(tmp_path / "missing.gguf")
    assert lib.pe_gguf_open(missing.encode(), out, error) == lib.PE_ERR_FILE
    assert out[0] == ffi.NULL
    assert error.code == lib.PE_ERR_FILE
    assert missing in text(error.message)
    assert lib.pe_gguf_open(missing.encode(), out, ffi.NULL) == lib.PE_ERR_FILE  # nobody has to listen


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_tiny_llama(tmp_path / "m.gguf", types="Q8_0", bias=True)


@pytest.fixture
def gguf(path: Path, error: Any) -> Any:
    out = ffi.new("pe_gguf **")
    check(lib.pe_gguf_open(str(path).encode(), out, error), error)
    return ffi.gc(out[0], lib.pe_gguf_release)


def test_keys_strings_and_tensors(path: Path, gguf: Any, error: Any) -> None:
    kv, length, found = ffi.new("pe_kv *"), ffi.new("size_t *"), {}
    for i in range(lib.pe_gguf_n_kv(gguf)):
        lib.pe_gguf_kv(gguf, i, kv)
        key = ffi.buffer(kv.key, kv.key_len)[:].decode()
        found[key] = kv.n
        if key == "tokenizer.ggml.tokens":
            assert kv.is_array
            assert kv.type == lib.PE_GGUF_STRING
            cursor = ffi.new("const void **", kv.data)
            tokens = [ffi.buffer(lib.pe_gguf_next_string(cursor, length), length[0])[:] for _ in range(kv.n)]
    with _core.Gguf(path) as python:
        assert list(found) == python.keys()
        assert tokens == python.bytes("tokenizer.ggml.tokens")
        assert lib.pe_gguf_n_tensors(gguf) == len(python.tensors)
        for i, info in enumerate(python.tensors):
            tensor = lib.pe_gguf_tensor(gguf, i)
            assert (text(tensor.name), tensor.n_bytes, tensor.offset) == (info.name, info.n_bytes, info.offset)
            assert tuple(tensor.ne)[: tensor.n_dims] == info.shape
            values = np.empty(python.dequantize(info.name).shape, np.float32)
            check(lib.pe_gguf_dequantize(gguf, i, ffi.cast("float *", values.ctypes.data), error), error)
            assert np.array_equal(values, python.dequantize(info.name))


def make(create: Callable[..., int], release: Any, kind: str, *args: Any) -> Any:
    """A handle of `kind`, released when it is collected."""
    out, error = ffi.new(f"{kind} **"), ffi.new("pe_error *")
    check(create(*args, out, error), error)
    return ffi.gc(out[0], release)


def test_a_model_runs_and_a_token_is_drawn(path: Path, gguf: Any, error: Any) -> None:
    """The logits are Python's, bit for bit; and what handles hold lives as long as they need it."""
    runner = Runner(path)
    ops = ffi.new("pe_op[]", len(runner.plan.ops))
    names = [ffi.new("char[]", op.name.encode()) for op in runner.plan.ops]
    for c, name, op in zip(ops, names, runner.plan.ops, strict=True):
        kind, _, inputs, outputs, weights, parameters = op
        c.kind, c.name = kind, name
        for field, values in (("inputs", inputs), ("outputs", outputs), ("weights", weights)):
            setattr(c, f"n_{field}", len(values))
            getattr(c, field)[0 : len(values)] = values
        for i, (spec, value) in enumerate(zip(_core.ops()[kind].parameters.split(), parameters, strict=True)):
            setattr(c.parameters[i], spec[0], value)
    model_options = ffi.new("pe_model_options *", {"precision": lib.PE_PRECISION_F32, "threads": 1})
    model = make(lib.pe_model_create, lib.pe_model_release, "pe_model", gguf, ops, len(ops), model_options)
    ffi.release(gguf)
    path.unlink()
    assert lib.pe_model_n_vocab(model) == runner.model.n_vocab
    assert lib.pe_model_weight_bytes(model) == runner.model.weight_bytes
    assert text(lib.pe_model_isa(model)) == runner.model.isa

    tokens = some_tokens(37, runner.model.n_vocab)
    engine_options = ffi.new(
        "pe_engine_options *",
        {
            "page_size": 16,
            "n_pages": 4,
            "max_tokens": len(tokens),
            "max_pieces": 1,
            "max_rows": len(tokens),
            "max_sequences": 1,
            "max_pages_per_sequence": 4,
            "kv_type": lib.PE_KV_F32,
            "threads": 1,
        },
    )
    engine = make(lib.pe_engine_create, lib.pe_engine_release, "pe_engine", model, engine_options)
    ffi.release(model)
    check(lib.pe_engine_set_pages(engine, 0, 0, [2, 0, 3], 3, error), error)
    piece = ffi.new("pe_piece[]", [{"slot": 0, "start": 0, "end": len(tokens)}])
    rows = list(range(len(tokens)))
    check(lib.pe_engine_step(engine, piece, 1, tokens, rows, len(rows), error), error)
    n_bytes = len(rows) * runner.model.n_vocab * 4
    logits = np.frombuffer(ffi.buffer(lib.pe_engine_logits(engine), n_bytes)[:], np.float32)
    assert np.array_equal(logits.reshape(len(rows), -1).view(np.uint32), runner.run(tokens).view(np.uint32))

    last = np.ascontiguousarray(logits[-runner.model.n_vocab :])
    settings = {"temperature": 0, "top_p": 1, "repeat_penalty": 1, "n_logprobs": 2}
    sampling, drawn = ffi.new("pe_sampling *", settings), ffi.new("pe_sampled *")
    sampler = make(
        lib.pe_sampler_create, lib.pe_sampler_release, "pe_sampler", sampling, last.size, ffi.NULL, ffi.NULL, 0
    )
    check(
        lib.pe_sampler_sample(sampler, ffi.cast("float *", last.ctypes.data), len(tokens), ffi.NULL, drawn, error),
        error,
    )
    assert drawn.token == drawn.top_tokens[0] == last.argmax()
    assert drawn.n_top == 2
