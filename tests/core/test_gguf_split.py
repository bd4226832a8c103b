"""Split models: the first part opens the whole, and parts that do not belong together are refused by name."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import gguf
import numpy as np
import pytest
from ggufbytes import Kv, Tensor, Type, write_gguf
from tinymodel import write_tiny_llama

from pyedge import LLM
from pyedge._core import Gguf
from pyedge.errors import ModelError

F32 = 0


def tensor(name: str, seed: int, n: int = 8) -> Tensor:
    return (name, [n], F32, np.random.default_rng(seed).standard_normal(n, dtype=np.float32).tobytes())


TENSORS = [[tensor("a", 1), tensor("b", 2)], [tensor("c", 3)], [tensor("d", 4), tensor("e", 5, 40)]]


def split_kv(number: int, count: int, tensors: int | None = None, kind: Type = Type.U16) -> list[Kv]:
    kv: list[Kv] = [("split.no", kind, number), ("split.count", kind, count)]
    return kv if tensors is None else [*kv, ("split.tensors.count", Type.I32, tensors)]


def part(folder: Path, number: int, count: int) -> Path:
    return folder / f"m-{number:05d}-of-{count:05d}.gguf"


def write_split(folder: Path, tensors: Sequence[Sequence[Tensor]] = TENSORS) -> Path:
    """A split model in the folder, as writers make it: metadata in the first part. Returns that."""
    count, total = len(tensors), sum(len(t) for t in tensors)
    for i, own in enumerate(tensors):
        kv = split_kv(i, count, total) + ([("general.architecture", Type.STRING, "llama")] if i == 0 else [])
        write_gguf(part(folder, i + 1, count), kv, own)
    return part(folder, 1, count)


# ---- sound ones ------------------------------------------------------------------------------------------------------


def test_all_parts_are_one_view(tmp_path: Path) -> None:
    g = Gguf(write_split(tmp_path))
    flat = [t for own in TENSORS for t in own]
    assert g.files == [str(part(tmp_path, i, 3)) for i in (1, 2, 3)]
    assert g.file_size == sum(os.path.getsize(f) for f in g.files)
    assert [(t.name, t.file) for t in g.tensors] == [("a", 0), ("b", 0), ("c", 1), ("d", 2), ("e", 2)]
    for i, (name, _, _, data) in enumerate(flat):
        t = g.tensors[i]
        assert g.tensor_index(str(name)) == i
        assert g.dequantize(str(name)).tobytes() == data
        assert Path(g.files[t.file]).read_bytes()[t.offset : t.offset + t.n_bytes] == data
    assert g.get("general.architecture") == "llama"


def test_logits_equal_those_of_the_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    types = {"": "Q4_0", "attn_v": "Q8_0", "output": "F16"}
    whole = write_tiny_llama(tmp_path / "whole.gguf", types=types)
    monkeypatch.setattr(gguf, "GGUFWriter", partial(gguf.GGUFWriter, split_max_tensors=5))
    write_tiny_llama(tmp_path / "split.gguf", types=types)
    parts = sorted(tmp_path.glob("split-*.gguf"))
    ids = list(range(3, 40))
    with LLM(whole, threads=1) as a, LLM(parts[0], threads=1) as b:
        assert len(parts) == 5
        assert np.array_equal(a.logits(ids), b.logits(ids))


def test_the_gguf_package_splits_so(tmp_path: Path) -> None:
    w = gguf.GGUFWriter(tmp_path / "m.gguf", "llama", split_max_tensors=1)
    arrays = {name: np.random.default_rng(i).standard_normal((2, 32), np.float32) for i, name in enumerate("xyz")}
    for name, values in arrays.items():
        w.add_tensor(name, values)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    g = Gguf(part(tmp_path, 1, 3))
    assert [t.name for t in g.tensors] == list(arrays)
    assert all(np.array_equal(g.dequantize(name), values) for name, values in arrays.items())


def test_a_first_part_without_tensors_and_parts_of_other_alignment(tmp_path: Path) -> None:
    write_gguf(part(tmp_path, 1, 2), split_kv(0, 2, 2))
    kv: list[Kv] = [*split_kv(1, 2, 2), ("general.alignment", Type.U32, 128)]
    write_gguf(part(tmp_path, 2, 2), kv, TENSORS[0], alignment=128)
    g = Gguf(part(tmp_path, 1, 2))
    assert [t.name for t in g.tensors] == ["a", "b"]
    assert g.dequantize("b").tobytes() == TENSORS[0][1][3]


@pytest.mark.parametrize("kind", [Type.U8, Type.I16, Type.U32, Type.I32, Type.U64, Type.I64])
def test_numbers_may_have_any_whole_type(tmp_path: Path, kind: Type) -> None:
    for i in range(2):
        write_gguf(part(tmp_path, i + 1, 2), split_kv(i, 2, kind=kind), TENSORS[i])
    assert len(Gguf(part(tmp_path, 1, 2)).tensors) == 3


def test_one_part_of_one_may_have_any_name(tmp_path: Path) -> None:
    g = Gguf(write_gguf(tmp_path / "m.gguf", split_kv(0, 1, 2), TENSORS[0]))
    assert g.files == [str(tmp_path / "m.gguf")]
    assert len(g.tensors) == 2


def test_a_closed_split_model_lets_go_of_all_parts(tmp_path: Path) -> None:
    def open_parts() -> int:
        links = (os.readlink(f) for f in Path("/proc/self/fd").iterdir() if f.is_symlink())
        return sum(link.startswith(str(tmp_path)) for link in links)

    g = Gguf(write_split(tmp_path))
    if not Path("/proc/self/fd").exists():
        pytest.skip("no /proc here")
    assert open_parts() == 3
    g.close()
    assert open_parts() == 0


# ---- what is refused -------------------------------------------------------------------------------------------------


def refusal(path: Path) -> str:
    start = time.perf_counter()
    with pytest.raises(ModelError) as info:
        Gguf(path)
    assert time.perf_counter() - start < 1
    message = str(info.value)
    assert message.isprintable()
    assert str(path.parent) in message
    return message.removeprefix(f"{path.parent}/")


def rewrite(number: int, kv: list[Kv], tensors: Sequence[Tensor] = TENSORS[1]) -> Callable[[Path], object]:
    return lambda folder: write_gguf(part(folder, number, 3), kv, tensors)


def replace(number: int, make: Callable[[Path], object]) -> Callable[[Path], object]:
    def do(folder: Path) -> None:
        path = part(folder, number, 3)
        path.unlink()
        make(path)

    return do


FIRST: list[Kv] = [("general.architecture", Type.STRING, "llama")]
WRONG: dict[str, tuple[Callable[[Path], object], str]] = {
    "a missing part": (replace(2, lambda p: None), r"m-00002-of-00003\.gguf: part 2 of 3 .*missing.*m-00001"),
    "the last part missing": (replace(3, lambda p: None), r"m-00003-of-00003\.gguf: part 3 of 3"),
    "a part that is a pipe": (replace(2, os.mkfifo), r"m-00002-of-00003\.gguf: not a regular file"),
    "a part that is a folder": (replace(2, os.mkdir), r"m-00002-of-00003\.gguf: this is a folder"),
    "a part that is a loop": (replace(3, lambda p: p.symlink_to(p)), r"m-00003-of-00003\.gguf: .*(missing|links)"),
    "an empty part": (replace(2, lambda p: p.touch()), r"m-00002-of-00003\.gguf: the file is empty"),
    "a part that is cut": (
        replace(3, lambda p: write_gguf(p, split_kv(2, 3, 5), TENSORS[2], keep=-64)),
        r"m-00003-of-00003\.gguf: tensor 'e': .*pull it again",
    ),
    "a part of another split": (rewrite(2, split_kv(1, 4, 5)), "m-00002.*part 2 of 4, .*used as part 2 of 3"),
    "a part in the wrong place": (rewrite(2, split_kv(2, 3, 5)), "m-00002.*part 3 of 3, .*used as part 2 of 3"),
    "another number of tensors": (
        rewrite(2, split_kv(1, 3, 6)),
        r"m-00002.*'split\.tensors\.count': 6, and 5 .*different models",
    ),
    "a part of another model": (
        rewrite(2, [*split_kv(1, 3, 5), ("general.architecture", Type.STRING, "qwen2")]),
        r"m-00002.*'general\.architecture': .*different models",
    ),
    "a part that is a whole model": (rewrite(2, FIRST), "m-00002.*does not say that it is a part"),
    "a tensor in two parts": (
        rewrite(2, split_kv(1, 3, 5), [tensor("e", 9)]),
        "m-00001.*tensor 'e': it stands in two parts",
    ),
    "fewer tensors than promised": (
        rewrite(2, split_kv(1, 3, 5), []),
        r"m-00001.*'split\.tensors\.count': 5, but its parts hold 4",
    ),
    "a count of zero": (rewrite(1, split_kv(0, 0)), r"'split\.count': 0 parts"),
    "a count of -1": (rewrite(1, split_kv(0, -1, kind=Type.I16)), r"'split\.count': -1 "),
    "a count of 65535": (rewrite(1, split_kv(0, 65535)), r"'split\.count': 65535 parts, must be 1 to 512"),
    "a count of 2^63": (rewrite(1, split_kv(0, 2**63, kind=Type.U64)), r"'split\.count': -?\d+"),
    "a number past the count": (rewrite(1, split_kv(7, 3)), r"'split\.no': 7, but there are only 3"),
    "a count that is text": (rewrite(1, [("split.count", Type.STRING, "3")]), r"'split\.count': .*whole number"),
    "a count that is a list": (
        rewrite(1, [("split.count", Type.ARRAY, (Type.U16, [3]))]),
        r"'split\.count': .*whole number",
    ),
    "a count that its name does not have": (
        rewrite(1, split_kv(0, 2)),
        r"part 1 .* 2 parts, .*'-00001-of-00002\.gguf'",
    ),
}


@pytest.mark.parametrize("fault", WRONG)
def test_wrong_parts_are_refused(tmp_path: Path, fault: str) -> None:
    first = write_split(tmp_path)
    change, reason = WRONG[fault]
    change(tmp_path)
    message = refusal(first)
    assert re.match(reason, message) or re.search(reason, message), message


def test_a_later_part_names_the_first(tmp_path: Path) -> None:
    write_split(tmp_path)
    message = refusal(part(tmp_path, 2, 3))
    assert re.search(r"part 2 of a model in 3 parts; .*'m-00001-of-00003\.gguf'", message), message
    shutil.copy(part(tmp_path, 3, 3), tmp_path / "other.gguf")
    assert "part 3 of a model in 3 parts; give the path of the first" in refusal(tmp_path / "other.gguf")


def test_a_renamed_first_part_tells_how_to_name_it(tmp_path: Path) -> None:
    first = write_split(tmp_path)
    for name in ("model.gguf", "-00001-of-00003.gguf", "m-00001-of-00003.gguf.bin"):
        shutil.copy(first, tmp_path / name)
        assert "'-00001-of-00003.gguf'" in refusal(tmp_path / name)


def test_many_parts_open_quickly(tmp_path: Path) -> None:
    n = 512
    for i in range(n):
        write_gguf(part(tmp_path, i + 1, n), split_kv(i, n, n), [tensor(f"t{i}", i)])
    start = time.perf_counter()
    g = Gguf(part(tmp_path, 1, n))
    assert time.perf_counter() - start < 1
    assert len(g.tensors) == n
    assert g.dequantize("t511").tobytes() == tensor("t511", 511)[3]
