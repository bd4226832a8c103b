"""Files are written as the format says (the gguf package and the core read them), keep what they are given to the byte,
and are there whole or not at all."""

import errno
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import gguf
import numpy as np
import pytest
from ggufbytes import Type, gguf_bytes, write_gguf
from program import ELSEWHERE, environment

from pyedge import _core
from pyedge.tools import gguf_writer, output_file
from pyedge.tools.gguf_writer import GgufWriter, Kind, Tensor, packed

EVERY_KIND = [
    ("a.u8", Type.U8, 255),
    ("a.i8", Type.I8, -128),
    ("a.u16", Type.U16, 65535),
    ("a.i16", Type.I16, -32768),
    ("a.u32", Type.U32, 2**32 - 1),
    ("a.i32", Type.I32, -(2**31)),
    ("a.f32", Type.F32, 1e-5),
    ("a.bool", Type.BOOL, True),
    ("a.string", Type.STRING, "ü\n"),
    ("a.empty", Type.STRING, ""),
    ("a.u64", Type.U64, 2**64 - 1),
    ("a.i64", Type.I64, -(2**63)),
    ("a.f64", Type.F64, 1e300),
    ("a.nan", Type.F32, float("nan")),
    ("a.broken", Type.STRING, b"\xff\xfe"),
]


def test_every_kind_of_value_is_copied_to_the_byte_and_in_order(tmp_path: Path) -> None:
    arrays = [(f"{key}s", Type.ARRAY, (kind, [value] * 3)) for key, kind, value in EVERY_KIND]
    empty = [(f"{key}0", Type.ARRAY, (kind, [])) for key, kind, _ in EVERY_KIND]
    kv = [*EVERY_KIND, *arrays, *empty, ("general.architecture", Type.STRING, "strange")]
    source = write_gguf(tmp_path / "in.gguf", kv, [("t", (32,), 0, bytes(128))])
    out = tmp_path / "out.gguf"
    with _core.Gguf(source) as file, GgufWriter(out, gguf_writer.copied(file), [Tensor("t", "F32", (32,))]) as w:
        w.write("t", file.read("t"))
    assert out.read_bytes() == source.read_bytes()


def test_values_are_packed_as_the_format_says() -> None:
    for key, kind, value in EVERY_KIND:
        wanted = gguf_bytes([(key, kind, value), (key, Type.ARRAY, (kind, [value, value]))])
        body = wanted[24:]
        name = len(key).to_bytes(8, "little") + key.encode()
        assert body == name + packed(value, Kind(kind)) + name + packed([value, value], Kind(kind)), key


def test_kinds_that_are_not_given(tmp_path: Path) -> None:
    given = {"u": 7, "f": 0.5, "b": False, "s": "text", "i": [1, -2], "fs": [0.5, 1.0], "ss": ["a", "b"]}
    out = tmp_path / "out.gguf"
    with GgufWriter(out, {"general.architecture": packed("x")} | {k: packed(v) for k, v in given.items()}, []):
        pass
    fields = gguf.GGUFReader(out).fields
    kinds = {key: [kind.name for kind in fields[key].types] for key in given}
    assert kinds == {
        "u": ["UINT32"], "f": ["FLOAT32"], "b": ["BOOL"], "s": ["STRING"],
        "i": ["ARRAY", "INT32"], "fs": ["ARRAY", "FLOAT32"], "ss": ["ARRAY", "STRING"],
    }  # fmt: skip
    assert {key: fields[key].contents() for key in given} == given


@pytest.mark.parametrize("value", [300, -1, 1.5, "x"])
def test_a_value_that_does_not_fit_is_refused(value: object) -> None:
    with pytest.raises(ValueError, match="does not fit into u8"):
        packed(value, Kind.U8) if not isinstance(value, str) else packed([value], Kind.U8)


@pytest.mark.parametrize("alignment", [None, 64])
def test_tensors_in_pieces_are_read_by_the_gguf_package_and_the_core(tmp_path: Path, alignment: int | None) -> None:
    rng = np.random.default_rng(0)
    odd = rng.standard_normal((3, 5)).astype(np.float32)  # 60 bytes: padded
    half = rng.standard_normal((2, 4, 7)).astype(np.float16)
    metadata = {"general.architecture": packed("x")}
    if alignment:
        metadata["general.alignment"] = packed(alignment)
    out = tmp_path / "out.gguf"
    tensors = [Tensor("odd", "F32", (5, 3)), Tensor("none", "F16", (7, 0)), Tensor("half", "F16", (7, 4, 2))]
    with GgufWriter(out, metadata, [t for t in tensors if t.n_bytes]) as w:
        for row in odd:
            w.write("odd", row)
        w.write("half", half[0])
        w.write("half", half[1])
        size = w.file_size
    assert out.stat().st_size == size
    read = {t.name: t for t in gguf.GGUFReader(out).tensors}
    assert np.array_equal(read["odd"].data, odd)
    assert np.array_equal(read["half"].data, half)
    with _core.Gguf(out) as file:
        assert [t.offset % (alignment or 32) for t in file.tensors] == [0, 0]
        assert file.read("half") == half.tobytes()
        assert file.read("half", 2, 4) == half.tobytes()[2:6]
        assert np.array_equal(file.dequantize("odd"), odd)
        with pytest.raises(ValueError, match="half"):
            file.read("half", 2, 10**6)


def write_zeros(path: Path, tensors: list[Tensor], parts: list[tuple[str, int]]) -> None:
    with GgufWriter(path, {}, tensors) as w:
        for name, n in parts:
            w.write(name, np.zeros(n, np.float32))


def test_what_is_not_written_in_order_and_whole_is_no_file(tmp_path: Path) -> None:
    tensors = [Tensor("a", "F32", (8,)), Tensor("b", "F32", (8,))]
    for parts in ([("b", 8)], [("a", 9)], [("a", 8)], [("a", 8), ("b", 4)], []):
        with pytest.raises(RuntimeError):
            write_zeros(tmp_path / "out", tensors, parts)
        assert not list(tmp_path.iterdir())
    for bad in ([tensors[0], tensors[0]], [Tensor("n" * 65, "F32", (8,))]):
        with pytest.raises(ValueError, match="name"):
            GgufWriter(tmp_path / "out", {}, bad)
    with pytest.raises(ValueError, match="whole number of blocks"):
        Tensor("t", "Q4_0", (40, 2)).n_bytes  # noqa: B018


# ---- files that are there whole or not at all ------------------------------------------------------------------------


@pytest.fixture(params=["unnamed", "named"])
def manner(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both ways of writing: a file without a name, and where the system has none of these, one beside."""
    if request.param == "named":
        monkeypatch.delattr(os, "O_TMPFILE", raising=False)
    elif not hasattr(os, "O_TMPFILE"):
        pytest.skip("this system has no files without names")
    return str(request.param)


def interrupted(path: Path) -> None:
    with output_file.OutputFile(path) as f:
        f.write(b"after")
        raise KeyboardInterrupt


@pytest.mark.usefixtures("manner")
def test_a_file_takes_the_place_of_another_only_when_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "out"
    target.write_text("before")
    with pytest.raises(KeyboardInterrupt):
        interrupted(target)
    assert target.read_text() == "before"
    with output_file.OutputFile(target) as f:
        f.write(b"aft")
        f.write(np.frombuffer(b"er", np.uint8))
        assert target.read_text() == "before"
    assert target.read_text() == "after"
    assert [p.name for p in tmp_path.iterdir()] == ["out"]
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(target.stat().st_mode) == 0o666 & ~umask


@pytest.mark.usefixtures("manner")
def test_a_link_stays_one_and_what_is_no_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("real")
    with output_file.OutputFile(tmp_path / "link") as f:
        f.write(b"x")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"x"
    for path in (tmp_path, Path(os.devnull)):
        with pytest.raises(OSError, match="no regular file") as e, output_file.OutputFile(path):
            pass
        assert e.value.filename == str(path)
    with pytest.raises(FileNotFoundError) as missing, output_file.OutputFile(tmp_path / "no" / "out"):
        pass
    assert missing.value.filename == str(tmp_path / "no" / "out")


@pytest.mark.usefixtures("manner")
def test_a_full_disk_is_seen_before_and_while_writing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OSError, match="needs 1,000,000,000,000,000,000 bytes") as e:
        output_file.OutputFile(tmp_path / "out", 10**18).__enter__()
    assert e.value.errno == errno.ENOSPC

    def full(fd: int, data: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    f = output_file.OutputFile(tmp_path / "out").__enter__()
    small = output_file.OutputFile(tmp_path / "small").__enter__()
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space left") as e:
        f.write(bytes(1 << 20))
    f.__exit__(OSError, e.value, None)
    assert e.value.filename == str(tmp_path / "out")
    small.write(b"x")  # which waits for more
    with pytest.raises(OSError, match="No space left") as e:
        small.__exit__(None, None, None)
    assert e.value.filename == str(tmp_path / "small")
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif(not hasattr(os, "O_TMPFILE"), reason="this system has no files without names")
def test_a_killed_process_leaves_nothing(tmp_path: Path) -> None:
    script = (
        "import sys, time; from pyedge.tools.output_file import OutputFile\n"
        "with OutputFile(sys.argv[1]) as f:\n    f.write(b'x'); print('writing', flush=True); time.sleep(60)"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "out")], env=environment(), cwd=ELSEWHERE, stdout=subprocess.PIPE
    )
    assert child.stdout is not None
    assert child.stdout.readline() == b"writing\n"
    child.send_signal(signal.SIGKILL)
    child.communicate(timeout=20)
    deadline = time.monotonic() + 5
    while list(tmp_path.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not list(tmp_path.iterdir())
