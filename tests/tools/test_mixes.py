"""Every mix has llama.cpp's choice of format for every tensor; and what a person asks for overrides it."""

import json
import re
from pathlib import Path

import mixshapes
import pytest

from pyedge import _core
from pyedge.tools import mixes
from pyedge.tools.mixes import Choice, Traits, Wishes

CHOSEN = json.loads(Path(__file__).with_name("mixes.json").read_text())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shapes")


def choices(folder: Path, name: str, wishes: Wishes, importance: bool = False) -> list[Choice]:
    path = folder / f"{name}.gguf"
    if not path.exists():
        mixshapes.write(name, path)
    with _core.Gguf(path) as gguf:
        return mixes.choose(gguf.tensors, Traits.of(gguf, importance), wishes)


def types(found: list[Choice]) -> dict[str, str]:
    return {c.name: c.type for c in found}


@pytest.mark.parametrize("name", mixshapes.SHAPES)
def test_each_mix_chooses_as_llama_cpp_does(folder: Path, name: str) -> None:
    for mix in mixshapes.MIXES:
        found = choices(folder, name, Wishes(mix))
        assert mixshapes.by_role(types(found)) == CHOSEN[name][mix], mix
        assert [c.name for c in found] == [tensor for tensor, _ in mixshapes.tensors(name)]


def test_every_mix_is_held_against_llama_cpp() -> None:
    """But for those that have one format and nothing else, and MXFP4, which is ours."""
    assert set(mixes.MIXES) - set(mixshapes.MIXES) == {"F32", "F16", "MXFP4"}


def test_norms_routers_and_vectors_stay(folder: Path) -> None:
    found = types(choices(folder, "mixtral", Wishes("Q2_K")))
    assert found["blk.0.ffn_gate_inp.weight"] == "F16"
    assert found["blk.0.attn_norm.weight"] == found["output_norm.weight"] == "F32"


def test_rows_that_no_block_divides_get_another_format(folder: Path) -> None:
    found = {c.name: c for c in choices(folder, "odd", Wishes("Q4_0"))}
    assert (found["blk.0.attn_q.weight"].type, found["blk.0.attn_q.weight"].wanted) == ("F16", "Q4_0")  # rows of 72
    assert found["blk.0.ffn_down.weight"].type == "Q4_0"  # rows of 288
    found = {c.name: c for c in choices(folder, "smollm2", Wishes("Q2_K"))}
    assert (found["blk.0.attn_q.weight"].type, found["blk.0.attn_q.weight"].wanted) == ("Q4_0", "Q2_K")


def test_an_importance_matrix_moves_bits(folder: Path) -> None:
    down = "blk.0.ffn_down.weight"
    assert types(choices(folder, "llama-1b", Wishes("Q4_0"), importance=True))[down] == "Q4_1"
    assert types(choices(folder, "llama-1b", Wishes("IQ4_XS"), importance=True))[down] == "IQ4_XS"
    assert types(choices(folder, "llama-1b", Wishes("IQ4_XS")))[down] == "Q5_K"


def test_wishes_come_before_the_mix(folder: Path) -> None:
    pairs = [(re.compile(r"blk\.[01]\.ffn_down"), "Q8_0"), (re.compile("ffn_down"), "Q2_K")]
    found = types(choices(folder, "llama-2-7b", Wishes("Q4_K_M", pairs, "F16", "Q5_1")))
    assert [found[f"blk.{i}.ffn_down.weight"] for i in range(3)] == ["Q8_0", "Q8_0", "Q2_K"]
    assert (found["output.weight"], found["token_embd.weight"]) == ("F16", "Q5_1")
    tied = types(choices(folder, "llama-1b", Wishes("Q4_K_M", output_type="Q8_0")))
    assert tied["token_embd.weight"] == "Q8_0"
    pure = set(types(choices(folder, "llama-2-7b", Wishes("Q4_K_M", pure=True))).values())
    assert pure == {"Q4_K", "F32"}
    with pytest.raises(ValueError, match=r"tensor_type 'ffn_sideways': found in no name"):
        choices(folder, "llama-1b", Wishes("Q4_0", [(re.compile("ffn_sideways"), "Q8_0")]))
    with pytest.raises(ValueError, match="found in no name of a tensor that is quantized"):
        choices(folder, "llama-1b", Wishes("Q4_0", [(re.compile("attn_norm"), "Q8_0")]))


def test_names_are_taken_in_any_case_and_wrong_ones_refused() -> None:
    assert mixes.mix_named("q4_k") == "Q4_K_M"
    assert mixes.format_named("q8_0") == "Q8_0"
    with pytest.raises(ValueError, match="'Q4' is no type; take one of F32, F16"):
        mixes.mix_named("Q4")
    with pytest.raises(ValueError, match="'Q4_K_M' is no format"):
        mixes.format_named("Q4_K_M")
