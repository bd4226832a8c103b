"""Converted checkpoints beside transformers, every family with every option, as a table:

    python tests/bench/conversion.py [WORD...]   # rows that have all WORDs; without any, all

Needs torch, transformers (5.24 was used) and sentence-transformers beside pyedge and gguf. Each row has transformers
make a tiny random checkpoint and save it, converts that, and reads the same tokens with both, in float32: a checkpoint
in BF16 or F16 too, which transformers would else compute in that. The figure is the largest difference of a
log-probability over all tokens and the whole vocabulary (of an embedding's component, for encoders) and is to be below
0.01; or it is the words of the refusal, where one is due.
"""

from __future__ import annotations

import argparse
import io
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "helpers"))
sys.path.insert(0, str(Path(__file__).parents[1] / "models" / "families"))

import families
import hfcheckpoint
import make
import make_encoders
import make_experts
import sentencepiece
import spmodel
import tokenizers
import torch
import transformers

from pyedge import LLM, ModelError, _core
from pyedge.tokenizers import Tokenizer
from pyedge.tools.convert import convert

MOST = 0.01
N_TOKENS = 40
N_PIECES = 320
Edit = Callable[[Path], None]

FAMILIES: dict[str, dict[str, Any]] = {
    name: {**make.BASE, **config, "vocab_size": N_PIECES}
    for name, (_, config, *_) in {**make.CASES, **make_experts.CASES}.items()
    if name
    in {
        "llama-2", "mistral-window", "mixtral", "qwen2", "qwen3", "qwen3moe", "gemma2", "gemma3", "phi3-window",
        "phi4-mini", "smollm3", "granite", "olmo2", "olmo3", "stablelm-2", "stablelm-2-12b", "gpt-oss",
    }
}  # fmt: skip
FAMILIES["mixtral"]["head_dim"] = 16  # or transformers has no scaling for it
for own in FAMILIES["olmo3"]["rope_parameters"].values():
    own["rope_theta"] = 500000.0  # transformers takes no other from an old config for layers with a window


@dataclass(frozen=True)
class Row:
    family: str
    option: str
    run: Callable[[Path], float | str]  # in an empty folder
    refused: str | None = None  # a part of the refusal that is due


# ---- Decoders --------------------------------------------------------------------------------------------------------


def pieces_model() -> bytes:
    lines = [
        " ".join(str(i * j) for j in range(1, 40)) + " the quick brown fox jumps over a lazy dog" for i in range(1, 60)
    ]
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=out, vocab_size=N_PIECES, model_type="bpe", byte_fallback=True,
        character_coverage=1.0, normalization_rule_name="identity", remove_extra_whitespaces=False, minloglevel=2,
    )  # fmt: skip
    return out.getvalue()


PIECES = pieces_model()


def build(config: Mapping[str, Any]) -> Any:
    """A model of transformers with weights of good gains."""
    settings = {k: v for k, v in config.items() if k != "model_type"}
    made = transformers.AutoConfig.for_model(config["model_type"], **settings)
    model = transformers.AutoModelForCausalLM.from_config(made, attn_implementation="eager").eval()
    draw(model, config)
    return model


def draw(model: Any, config: Mapping[str, Any]) -> None:
    shapes = {k: list(v.shape) for k, v in model.state_dict().items()}
    if config.get("tie_word_embeddings"):
        shapes.pop("lm_head.weight", None)
    weights = families.draw(shapes, 3, config)
    model.load_state_dict({k: torch.from_numpy(v) for k, v in weights.items()}, strict=False)
    if hasattr(model, "tie_weights"):
        model.tie_weights()


def save(folder: Path, config: Mapping[str, Any], dtype: torch.dtype, most: str) -> None:
    build(config).to(dtype).save_pretrained(folder, max_shard_size=most)
    (folder / "tokenizer.model").write_bytes(PIECES)
    settings = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "add_bos_token": True}
    hfcheckpoint.write_json(folder / "tokenizer_config.json", settings)


def decoder(
    config: Mapping[str, Any],
    *,
    dtype: torch.dtype = torch.float32,
    most: str = "5GB",
    n_tokens: int = N_TOKENS,
    edit: Edit | None = None,
    converted: Callable[[Path], None] | None = None,
    kind: str | None = None,
) -> Callable[[Path], float]:
    """converted: looks at the file."""

    def run(folder: Path) -> float:
        save(folder, config, dtype, most)
        if edit is not None:
            edit(folder)
        path = folder / "m.gguf"
        convert(folder, path, kind)
        if converted is not None:
            converted(path)
        tokens = np.random.RandomState(3).randint(3, N_PIECES, n_tokens).tolist()
        theirs = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        with torch.no_grad():
            expected = theirs(torch.tensor([tokens])).logits[0].double().log_softmax(-1).numpy()
        length = n_tokens if n_tokens != N_TOKENS else None
        with LLM(path, precision="f32", max_model_len=length, threads=1) as llm:
            found = torch.from_numpy(llm.logits(tokens)).double().log_softmax(-1).numpy()
        assert found.std() > 0.5, "the logits are too small to tell anything"
        return float(np.abs(found - expected).max())

    return run


def rope(config: Mapping[str, Any], **settings: Any) -> dict[str, Any]:
    """The config with this kind of scaling, where its family says it."""
    own = config["rope_parameters"]
    if "full_attention" in own:
        return {**config, "rope_parameters": {**own, "full_attention": {**_base(own["full_attention"]), **settings}}}
    return {**config, "rope_parameters": {**_base(own), **settings}}


def _base(own: Mapping[str, Any]) -> dict[str, Any]:
    kept = {k: own[k] for k in ("rope_theta", "partial_rotary_factor", "truncate") if k in own}
    return {**kept, "rope_theta": min(kept["rope_theta"], 10000.0)}  # or few pairs of so small a head would move


def n_pairs(config: Mapping[str, Any]) -> int:
    own = config["rope_parameters"]
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return int(head_dim * own.get("partial_rotary_factor", 1.0)) // 2


ROPES: dict[str, dict[str, Any]] = {
    "rope linear": {"rope_type": "linear", "factor": 4.0},
    "rope llama3": {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 16,
    },
    "rope yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
    "rope longrope": {"rope_type": "longrope", "original_max_position_embeddings": 16, "factor": 4.0},
}  # fmt: skip


def decoders() -> Iterator[Row]:
    for family, config in FAMILIES.items():
        untied = {**config, "tie_word_embeddings": False}
        yield Row(family, "untied", decoder(untied))
        yield Row(family, "tied", decoder({**config, "tie_word_embeddings": True}))
        if config["model_type"] not in ("phi3", "stablelm"):  # which have no such setting
            yield Row(family, "head_dim 32, not 16", decoder({**untied, "head_dim": 32}))
        yield Row(family, "32 rows without tokens", decoder({**untied, "vocab_size": N_PIECES + 32}))
        yield Row(family, "4 shards", decoder(untied, most="60KB", edit=is_sharded))
        yield Row(family, "BF16", decoder(untied, dtype=torch.bfloat16, converted=is_of("BF16")))
        yield Row(family, "F16", decoder(untied, dtype=torch.float16, converted=is_of("F16")))
        yield Row(family, "config before version 5", decoder(untied, edit=older))
        for option, settings in ROPES.items():
            if config["model_type"] == "phi3" and settings["rope_type"] != "longrope":
                continue  # which transformers knows no other of
            if settings["rope_type"] == "longrope":
                n = n_pairs(config)
                factors = {
                    "long_factor": np.linspace(1.05, 4, n).tolist(),
                    "short_factor": np.linspace(1, 1.3, n).tolist(),
                }
                scaled = rope({**untied, "original_max_position_embeddings": 16}, **settings, **factors)
                yield Row(family, option + ", short", decoder(scaled, n_tokens=14))
                yield Row(family, option + ", long", decoder(scaled))
            else:
                yield Row(family, option, decoder(rope(untied, **settings)))
        dynamic = rope(untied, rope_type="dynamic", factor=4.0, original_max_position_embeddings=16)
        if config["model_type"] != "phi3":
            yield Row(family, "rope dynamic", decoder(dynamic), refused="'dynamic' is not supported")
        yield Row(family, "fp8", decoder(untied, edit=fp8), refused="(fp8), which is not converted")


def is_sharded(folder: Path) -> None:
    assert len(list(folder.glob("*.safetensors"))) >= 4


def is_of(kind: str) -> Callable[[Path], None]:
    def look(path: Path) -> None:
        with _core.Gguf(path) as gguf:
            assert {t.type for t in gguf.tensors if t.name == "token_embd.weight"} == {kind}

    return look


def older(folder: Path) -> None:
    path = folder / "config.json"
    config = hfcheckpoint.as_before_5(json.loads(path.read_text()))
    if scaling := config.get("rope_scaling"):
        scaling["rope_type"] = scaling["type"]  # published ones have either, or both
    hfcheckpoint.write_json(path, config)


def fp8(folder: Path) -> None:
    """One matrix is."""
    import safetensors.torch as st

    path = folder / "model.safetensors"
    tensors = st.load_file(path)
    name = next(n for n, t in tensors.items() if t.ndim > 1 and "o_proj" in n)
    tensors[name] = tensors[name].to(torch.float8_e4m3fn)
    st.save_file(tensors, path)


# ---- Encoders --------------------------------------------------------------------------------------------------------

TEXTS = [  # of several lengths, so that some are padded when they are read together
    "The keeper of the lighthouse wrote down what the sea did.",
    "Hi",
    "Über den Dächern, naïve café; 12 ships on Tuesday, none in the storm of 1897!",
    "",
    "sea " * 20,
]


def encoder(config: Mapping[str, Any], pooling: str, tokenizer: Any, dense: int = 0) -> Callable[[Path], float]:
    """A model as sentence-transformers saves it, and how it embeds TEXTS. dense: width between two last layers."""

    def run(folder: Path) -> float:
        from sentence_transformers import SentenceTransformer
        from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

        settings = {k: v for k, v in config.items() if k != "model_type"}
        made = transformers.AutoConfig.for_model(config["model_type"], **settings)
        model = transformers.AutoModel.from_config(made, attn_implementation="eager").eval()
        draw(model, config)
        model.save_pretrained(folder / "plain")
        tokenizer().save_pretrained(folder / "plain")
        width = config["hidden_size"]
        modules: list[Any] = [Transformer(str(folder / "plain"), model_kwargs={"attn_implementation": "eager"})]
        modules.append(Pooling(width, pooling))
        if dense:
            modules.append(Dense(width, dense, bias=False, activation_function=torch.nn.Identity()))
            modules.append(Dense(dense, width, bias=False, activation_function=torch.nn.Identity()))
        theirs = SentenceTransformer(modules=[*modules, Normalize()], device="cpu")
        theirs.save(str(folder / "whole"))
        expected = theirs.encode(TEXTS, batch_size=len(TEXTS))
        convert(folder / "whole", folder / "m.gguf")
        with LLM(folder / "m.gguf", precision="f32", threads=1) as llm:
            for text in TEXTS:
                ids = theirs.tokenizer(text)["input_ids"]
                assert llm.tokenizer.encode(text) == ids, f"{llm.tokenizer.encode(text)} for {ids}"
            found = llm.embed(TEXTS)
        assert np.abs(expected - expected[:1]).max() > 0.05, (
            "the embeddings are too near to each other to tell anything"
        )
        return float(np.abs(found - expected).max())

    return run


def words_tokenizer(lowercase: bool = True) -> Callable[[], Any]:
    def build() -> Any:
        trained = tokenizers.BertWordPieceTokenizer(lowercase=lowercase)
        trained.train_from_iterator(TEXTS, vocab_size=N_PIECES, min_frequency=1, show_progress=False)
        vocabulary = trained.get_vocab()
        return transformers.BertTokenizer(vocab=vocabulary, do_lower_case=lowercase, model_max_length=64)

    return build


def of_pieces(kind: str, around: str | None = None) -> Callable[[], Any]:
    """A tokenizer of transformers with the pieces of tokenizer.model: every pair that makes one, the likeliest first.
    around: what stands around a text."""

    def build() -> Any:
        library = sentencepiece.SentencePieceProcessor(model_proto=PIECES)
        ids = {library.IdToPiece(i): i for i in range(N_PIECES)}
        pairs = [
            (-library.GetScore(i), ids[text[:n]], ids[text[n:]], (text[:n], text[n:]))
            for text, i in ids.items()
            if not (library.IsControl(i) or library.IsByte(i) or library.IsUnknown(i))
            for n in range(1, len(text))
            if text[:n] in ids and text[n:] in ids
        ]
        names = {"unk_token": "<unk>", "bos_token": "<s>", "eos_token": "</s>", "pad_token": "</s>"}
        made = getattr(transformers, kind)(vocab=ids, merges=[pair for *_, pair in sorted(pairs)], **names)
        if around is not None:
            template = tokenizers.processors.TemplateProcessing(
                single=around, special_tokens=[("<s>", ids["<s>"]), ("</s>", ids["</s>"])]
            )
            made.backend_tokenizer.post_processor = template
        return made

    return build


def roberta_tokenizer() -> Any:
    blank = transformers.RobertaTokenizer()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=N_PIECES,
        show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
    )
    blank.backend_tokenizer.train_from_iterator(TEXTS, trainer)
    model = json.loads(blank.backend_tokenizer.to_str())["model"]
    return transformers.RobertaTokenizer(vocab=model["vocab"], merges=[tuple(pair) for pair in model["merges"]])


def unigram_tokenizer(kind: str) -> Callable[[], Any]:
    """Of SentencePiece's own kind, with its own table of characters."""

    def build() -> Any:
        out = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(TEXTS * 8), model_writer=out, vocab_size=120, model_type="unigram", minloglevel=2,
            hard_vocab_limit=False,
        )  # fmt: skip
        parts = spmodel.fields(out.getvalue())
        charsmap = next(dict(spmodel.fields(part))[2] for number, part in parts if number == 3)
        begins = ["<s>", "<pad>", "</s>", "<unk>"] if kind == "XLMRobertaTokenizer" else ["<pad>", "</s>", "<unk>"]
        pieces = [(text, 0.0) for text in begins] + [(t, s) for t, s, k in spmodel.pieces_of(out.getvalue()) if k == 1]
        pieces += [("<mask>", 0.0)] if kind == "XLMRobertaTokenizer" else []
        return getattr(transformers, kind)(vocab=pieces, _spm_precompiled_charsmap=charsmap)

    return build


def encoders() -> Iterator[Row]:
    bert = {**make.BASE, **make_encoders.BERT, "vocab_size": N_PIECES, "max_position_embeddings": 128}
    for pooling in ("mean", "cls", "lasttoken"):
        yield Row("bert", f"pooling {pooling}", encoder(bert, pooling, words_tokenizer()))
    yield Row("bert", "with capitals", encoder(bert, "mean", words_tokenizer(lowercase=False)))
    yield Row("bert", "one token type", encoder({**bert, "type_vocab_size": 1}, "mean", words_tokenizer()))
    yield Row("bert", "rows without tokens", encoder({**bert, "vocab_size": N_PIECES + 32}, "mean", words_tokenizer()))
    for kind in ("XLMRobertaTokenizer", "T5Tokenizer"):
        yield Row("bert", f"{kind}, as of multilingual MiniLM", encoder(bert, "mean", unigram_tokenizer(kind)))
    roberta = {**bert, "type_vocab_size": 1, "layer_norm_eps": 1e-5, "pad_token_id": 1, "max_position_embeddings": 130}
    for model in ("xlm-roberta", "roberta"):
        kind = {"xlm-roberta": unigram_tokenizer("XLMRobertaTokenizer"), "roberta": roberta_tokenizer}[model]
        yield Row("bert", f"of {model}", encoder({**roberta, "model_type": model}, "mean", kind))
    nomic = {**make.BASE, **make_encoders.CASES["nomic-bert"][1], "vocab_size": N_PIECES}
    yield Row("nomic-bert", "pooling mean", encoder(nomic, "mean", words_tokenizer()))
    gemma = {**make.BASE, **make_encoders.CASES["gemma-embedding"][1], "vocab_size": N_PIECES}
    gemma["max_position_embeddings"] = 128
    yield Row(
        "gemma-embedding",
        "two layers behind the mean",
        encoder(gemma, "mean", of_pieces("GemmaTokenizer", "<s> $A </s>"), dense=96),
    )
    qwen = {**FAMILIES["qwen3"], "tie_word_embeddings": True}
    yield Row("qwen3", "pooling lasttoken", encoder(qwen, "lasttoken", words_tokenizer()))


# ---- Tokenizers and ends ---------------------------------------------------------------------------------------------


def tokenizer(build_it: Callable[[], Any]) -> Callable[[Path], str]:
    """The ids of TEXTS, and a chat by a template in each of the two places that it may stand in."""

    def run(folder: Path) -> str:
        build(FAMILIES["llama-2"]).save_pretrained(folder)
        theirs = build_it()
        theirs.chat_template = "{% for m in messages %}{{ eos_token }}{{ m.role }} {{ m.content }}{% endfor %}"
        theirs.save_pretrained(folder)
        ends = {"eos_token_id": [theirs.eos_token_id, 7, 9]}
        hfcheckpoint.write_json(folder / "generation_config.json", ends)
        for place in ("chat_template.jinja", "tokenizer_config.json"):
            if place != "chat_template.jinja":
                (folder / "chat_template.jinja").unlink()
                about = json.loads((folder / place).read_text())
                hfcheckpoint.write_json(folder / place, {**about, "chat_template": theirs.chat_template})
            convert(folder, folder / "m.gguf")
            with _core.Gguf(folder / "m.gguf") as gguf:
                ours = Tokenizer.from_gguf(gguf)
            for text in TEXTS:
                ids = theirs(text)["input_ids"]
                assert ours.encode(text) == ids, f"{ours.encode(text)} for {ids}"
            assert {theirs.eos_token_id, 7, 9} <= ours.end_ids
            chat = [{"role": "user", "content": "the sea"}]
            expected = theirs.apply_chat_template(chat, tokenize=False)
            assert ours.render_chat_template(chat, add_generation_prompt=False) == expected
        return "same ids, ends and chats"

    return run


def byte_tokenizer() -> Any:
    blank = transformers.Qwen2Tokenizer()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=N_PIECES - 3,
        show_progress=False,
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
    )
    blank.backend_tokenizer.train_from_iterator(TEXTS, trainer)
    model = json.loads(blank.backend_tokenizer.to_str())["model"]
    return transformers.Qwen2Tokenizer(vocab=model["vocab"], merges=[tuple(pair) for pair in model["merges"]])


def vocabularies() -> Iterator[Row]:
    yield Row("tokenizer.json", "BPE of bytes", tokenizer(byte_tokenizer))
    yield Row("tokenizer.json", "BPE of pieces, Llama", tokenizer(of_pieces("LlamaTokenizer")))
    yield Row("tokenizer.json", "BPE of pieces, Gemma", tokenizer(of_pieces("GemmaTokenizer")))
    for kind in ("XLMRobertaTokenizer", "T5Tokenizer"):
        yield Row("tokenizer.json", f"Unigram, {kind}", tokenizer(unigram_tokenizer(kind)))


# ---- The command -----------------------------------------------------------------------------------------------------


def rows() -> Iterator[Row]:
    yield from decoders()
    yield from encoders()
    yield from vocabularies()


def verdict(row: Row) -> tuple[bool, str]:
    folder = Path(tempfile.mkdtemp())
    try:
        found = row.run(folder)
    except ModelError as e:
        said = str(e).removeprefix(f"{folder}: ")
        return row.refused is not None and row.refused in said, f"refused: {said}"
    except Exception as e:
        return False, f"{type(e).__name__}: {' '.join(str(e).split()):.160}"
    finally:
        shutil.rmtree(folder)
    if row.refused is not None:
        return False, "was not refused"
    return (True, found) if isinstance(found, str) else (found < MOST, f"{found:.1e}")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*")
    words = parser.parse_args(arguments).words
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.set_num_threads(1)
    n_wrong = 0
    for row in rows():
        if not all(word in f"{row.family} {row.option}" for word in words):
            continue
        fine, said = verdict(row)
        n_wrong += not fine
        print(f"| {row.family} | {row.option} | {said}{'' if fine else ' **WRONG**'} |", flush=True)
    return int(n_wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
