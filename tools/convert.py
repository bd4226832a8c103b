"""A checkpoint in Hugging Face's form becomes a GGUF file: what `pyedge convert` does.

Owns the plan of the file: types and shapes of its tensors (placing.py says what they are made of, made_tensor.py makes
them), and the keys that all families have. What is particular to a family stands in its module of pyedge/models:
CHECKPOINTS. Nothing is written before the file that will be there has been tried as far as that goes without weights:
its plan is built, and its tokenizer.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from pyedge import _core
from pyedge.errors import ModelError
from pyedge.models import build_plan, checkpoints
from pyedge.models.checkpoint import Checkpoint as About
from pyedge.models.checkpoint import Config, To
from pyedge.tools import rope_settings, tokenizer_files
from pyedge.tools.checkpoint import AGAIN, FLOATS, Checkpoint, Stored
from pyedge.tools.gguf_writer import GgufWriter, Kind, Tensor, packed
from pyedge.tools.made_tensor import Made
from pyedge.tools.placing import Placed, placed

TYPES = {"f32": ("F32", 0), "f16": ("F16", 1), "bf16": ("BF16", 32), "q8_0": ("Q8_0", 7)}  # and general.file_type
_MXFP4_FILE = 38  # general.file_type, where experts are in MXFP4
_KEPT = ("ffn_gate_inp.weight", "position_embd.weight", "token_types.weight")  # small, and always F32

_KEYS: dict[str, tuple[str, ...]] = {  # whole numbers, and what checkpoints call them
    "block_count": ("num_hidden_layers", "n_layer"),
    "context_length": ("max_trained_positions", "max_position_embeddings", "n_positions"),
    "embedding_length": ("hidden_size", "n_embd"),
    "feed_forward_length": ("intermediate_size", "n_inner"),
    "attention.head_count": ("num_attention_heads", "n_head"),
    "attention.head_count_kv": ("num_key_value_heads",),
}
_KINDS = {"tokenizer.ggml.precompiled_charsmap": Kind.U8}  # of values that others want so
_EPSILONS = {
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps",),
    "attention.layer_norm_epsilon": ("layer_norm_eps", "layer_norm_epsilon", "norm_eps"),
}
_POOLINGS = {"mean": 1, "cls": 2, "lasttoken": 3}  # pooling_type
_POOLING_FLAGS = {
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_cls_token": "cls",
    "pooling_mode_lasttoken": "lasttoken",
}


def convert(
    folder: str | os.PathLike[str],
    out: str | os.PathLike[str],
    type: str | None = None,
    *,
    pre: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Writes `out`, and says what it is: architecture, type, tensors, file_bytes.

    type: of TYPES, for matrices whose rows it fits; None: what most weights of the checkpoint are in. pre: how words
    are cut, in place of what is recognised (`tokenizer.ggml.pre`). progress: called with bytes written and in all.
    ModelError says what is wrong with the checkpoint; OSError names `out`. In either case there is no file."""
    if type is not None and type not in TYPES:
        raise ValueError(f"type {type!r:.40} is not known, only {', '.join(TYPES)} are")
    if _is_read(Path(folder), Path(out)):
        raise ValueError(f"{os.fspath(out)}: is a file of the checkpoint; give another name")
    try:
        plan = _Plan(Checkpoint(folder), type, pre)
        with GgufWriter(out, {key: _packed(key, value) for key, value in plan.keys.items()}, plan.tensors) as writer:
            done, total = 0, sum(t.n_bytes for t in plan.tensors)
            for made in plan.made:
                for piece in made.pieces():
                    writer.write(made.tensor.name, piece)
                    done += piece.nbytes
                    if progress is not None:
                        progress(done, total)
    except ModelError as e:
        raise ModelError(f"{os.fspath(folder)}: {e}") from None
    return {
        "architecture": plan.architecture,
        "type": plan.type,
        "tensors": len(plan.tensors),
        "file_bytes": writer.file_size,
    }


class _Plan:
    """What the file will be."""

    def __init__(self, checkpoint: Checkpoint, type: str | None, pre: str | None) -> None:
        self._checkpoint = checkpoint
        self._about, self._config = _family(checkpoint)
        self.architecture = self._about.architecture
        stored = checkpoint.tensors()
        found = self._placed(stored)
        self.type = type or _most(found)
        made = [self._made(name, to, sources, stored) for name, (to, sources) in found.items()]
        _check_modules(checkpoint)
        self.pooling = _pooling(checkpoint)
        self._check_output(found, stored)
        rope = ({}, {}) if "rope_theta" not in self._about.defaults else rope_settings.rope(self._config, self._about)
        made += [Made(Tensor(n, "F32", v.shape), To(n), (), values=v) for n, v in rope[1].items()]
        self.made = sorted(made, key=lambda m: _order(m.tensor.name))
        self.tensors = [m.tensor for m in self.made]
        own = {
            "vocab_size": self._n_rows(),
            **self._common(),
            **rope[0],
            **self._windows(),
            **self._about.keys(self._config),
        }
        self.keys = {
            **self._general(),
            **{f"{self.architecture}.{key}": value for key, value in own.items()},
            **tokenizer_files.keys(checkpoint, self._n_rows(), pre),
        }
        if self._config.value("type_vocab_size") is not None:
            self.keys["tokenizer.ggml.token_type_count"] = self._config.integer("type_vocab_size")
        self._try()

    # ---- Tensors ----

    def _placed(self, stored: dict[str, Stored]) -> Placed:
        config = self._config
        optional = ["output", *self._about.sized, *(() if config.value("type_vocab_size") else ("token_types",))]
        found = dict(placed(self._about, stored, config.integer("num_hidden_layers", "n_layer"), optional))
        if self._tied:
            found.pop("output.weight", None)
        return found

    def _made(self, name: str, to: To, sources: list[Stored], stored: dict[str, Stored]) -> Made:
        shape = list(sources[0].shape)
        if any(s.shape != sources[0].shape for s in sources):
            raise ModelError(f"{sources[-1].name}: has another shape than others of its kind; {AGAIN}")
        scales = None
        if to.scales is not None:
            scales = stored.get(sources[0].name.rpartition(".mlp.")[0] + f".{to.scales}")
            if scales is None or (scales.dtype, sources[0].dtype) != ("U8", "U8") or [*scales.shape, 16] != shape:
                raise ModelError(f"{sources[0].name}: has no scales that fit its blocks; {AGAIN}")
            shape = [*shape[:-2], shape[-2] * 32]
        if to.transposed:
            shape[-2:] = shape[:-3:-1]
        axis = -1 if name.endswith(".bias") or len(shape) == 1 else -2
        first, step = to.rows
        if step > 1 and shape[axis] % step:
            raise ModelError(f"{sources[0].name}: has {shape[axis]} rows, which do not go by {step}; {AGAIN}")
        shape[axis] = len(range(first, shape[axis], step))
        if "{e}" in name or len(sources) > 1:
            shape = [len(sources), *shape]
        head_dim = 0
        if to.heads is not None:
            heads = self._config.integer(to.heads, default=self._config.integer("num_attention_heads"))
            head_dim = shape[0] // max(heads, 1)
            if head_dim * heads != shape[0] or head_dim % 2:
                raise ModelError(f"{sources[0].name}: {shape[0]} rows are no {heads} heads; {AGAIN}")
        kind = "MXFP4" if scales is not None else self._kind(name, shape)
        return Made(Tensor(name, kind, tuple(reversed(shape))), to, tuple(sources), scales, head_dim)

    def _kind(self, name: str, shape: list[int]) -> str:
        if len(shape) == 1 or name.endswith(".bias") or "norm" in name or name.endswith(_KEPT):
            return "F32"
        kind = TYPES[self.type][0]
        return "F16" if kind == "Q8_0" and shape[-1] % 32 else kind  # as in llama.cpp

    @property
    def _tied(self) -> bool:
        return self._config.flag("tie_word_embeddings")

    def _check_output(self, found: Placed, stored: dict[str, Stored]) -> None:
        needed = "lm_head" in self._about.tensors and not self._tied and self.pooling is None
        if needed and "output.weight" not in found:
            raise ModelError(
                f"lm_head.weight: missing, and config.json does not say that the embedding is used again; {AGAIN}"
            )

    # ---- Keys ----

    def _general(self) -> dict[str, Any]:
        mxfp4 = any(t.type == "MXFP4" for t in self.tensors)
        keys: dict[str, Any] = {
            "general.architecture": self.architecture,
            "general.type": "model",
            "general.name": _name(self._checkpoint),
            "general.file_type": _MXFP4_FILE if mxfp4 else TYPES[self.type][1],
            "general.quantization_version": 2,
        }
        if (license := _license(self._checkpoint)) is not None:
            keys["general.license"] = license
        return keys

    def _common(self) -> dict[str, Any]:
        config, rotated = self._config, "rope_theta" in self._about.defaults
        keys: dict[str, Any] = {}
        for key, names in _KEYS.items():
            if config.value(*names) is not None:
                keys[key] = config.integer(*names)
        for key, names in _EPSILONS.items():
            if config.value(*names) is not None:
                keys[key] = config.number(*names)
        if rotated or config.value("head_dim") is not None:
            keys["attention.key_length"] = keys["attention.value_length"] = config.head_dim
        if self.pooling is not None:
            keys["pooling_type"] = self.pooling
        for t in self.tensors:
            if (name := t.name.removesuffix(".weight")) in self._about.sized:
                keys[f"{name}_feat_in"], keys[f"{name}_feat_out"] = t.shape[:2]
        return keys

    def _windows(self) -> dict[str, Any]:
        """The window, and which layers have it where that is not what a file means that says nothing."""
        config, period = self._config, self._about.windows
        n, window = config.integer("num_hidden_layers", "n_layer"), config.value("sliding_window")
        types = config.value("layer_types")
        if types is not None and not isinstance(types, list):
            raise config.fail("layer_types", types, "a list")

        def by(period: int | None) -> list[bool]:
            return [period is not None and (period == 0 or i % period < period - 1) for i in range(n)]

        assumed, own = by(period), config.value("sliding_window_pattern", "_sliding_window_pattern")
        if isinstance(types, list):
            windowed = [t == "sliding_attention" for t in types]
        else:
            windowed = by(config.integer("sliding_window_pattern", "_sliding_window_pattern")) if own else assumed
        if period is None or window is None or window == 0:
            if isinstance(types, list) and any(windowed):
                raise ModelError("config.json: layer_types: has windows, which this family has not; take another model")
            return {}
        if isinstance(types, list) and (len(types) != n or not set(types) <= {"sliding_attention", "full_attention"}):
            raise ModelError(f"config.json: layer_types: {types!r:.60} is not supported; take another model")
        keys: dict[str, Any] = {"attention.sliding_window": config.integer("sliding_window")}
        if windowed != assumed:
            keys["attention.sliding_window_pattern"] = windowed
        return keys

    def _n_rows(self) -> int:
        embedding = next((t for t in self.tensors if t.name == "token_embd.weight"), None)
        if embedding is None or len(embedding.shape) != 2:
            raise ModelError(f"the embedding of tokens is missing; {AGAIN}")
        return embedding.shape[1]

    def _try(self) -> None:
        """What is asked of a file when it is loaded, asked of one that is not there yet."""
        try:
            build_plan(cast(_core.Gguf, _Unwritten(self.keys, self.tensors)))
        except ModelError as e:
            raise ModelError(f"the file would not run: {str(e).removeprefix(': ')}") from None


class _Unwritten:
    """Looks like an open GGUF of these keys and tensors."""

    path = ""

    def __init__(self, keys: dict[str, Any], tensors: list[Tensor]) -> None:
        self._keys, self.tensors = keys, tensors
        self._index = {t.name: i for i, t in enumerate(tensors)}

    def get(self, key: str) -> Any:
        return self._keys.get(key)

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def length(self, key: str) -> int:
        value = self._keys[key]
        return len(value) if isinstance(value, list) else 1

    def tensor_index(self, name: str) -> int:
        return self._index.get(name, -1)


def _is_read(folder: Path, out: Path) -> bool:
    """Whether writing `out` would overwrite a part of the checkpoint; an earlier GGUF in its folder is none."""
    if not out.is_file() or not out.resolve().is_relative_to(folder.resolve()):
        return False
    with out.open("rb") as file:
        return file.read(4) != b"GGUF"


def _packed(key: str, value: Any) -> bytes:
    try:
        return packed(value, _KINDS.get(key))
    except ValueError as e:
        raise ModelError(f"{key}: {value!r:.60} cannot be written ({e}); get the checkpoint from another source") from e


def _order(name: str) -> tuple[int, int, str]:
    """As readers go through a file: what comes before the layers, each layer, and the end."""
    parts = name.split(".")
    if parts[0] == "blk":
        return 1, int(parts[1]), name
    return (2 if name.startswith("output") else 0), 0, name


def _most(found: Placed) -> str:
    """The type of most weights."""
    counts = dict.fromkeys(FLOATS, 0)
    for _, sources in found.values():
        for source in sources:
            if source.dtype in counts:
                counts[source.dtype] += source.n_bytes
    return max(counts, key=lambda dtype: counts[dtype]).lower()


def _family(checkpoint: Checkpoint) -> tuple[About, Config]:
    """The table of a checkpoint's family, and its config with the family's defaults."""
    raw = checkpoint.config
    names = raw.get("architectures")
    known = checkpoints()
    found = next((n for n in names if isinstance(n, str) and n in known), None) if isinstance(names, list) else None
    if found is None:
        raise ModelError(
            f"config.json: architectures: {names!r:.80} is not supported; supported: {', '.join(sorted(known))}"
        )
    about = known[found]
    inner = raw.get("text_config")
    if isinstance(inner, dict):
        raw = {**{k: v for k, v in raw.items() if k in ("tie_word_embeddings", "eos_token_id")}, **inner}
    quantized = raw.get("quantization_config") or checkpoint.config.get("quantization_config")
    if quantized:
        method = quantized.get("quant_method") if isinstance(quantized, dict) else quantized
        if method != "mxfp4":
            raise ModelError(
                f"config.json: quantization_config: weights are quantized by {method!r:.40}, which is not converted; "
                "get the checkpoint in F32, F16 or BF16"
            )
    for name, computed in about.computed.items():
        value = raw.get(name)
        value = about.defaults.get(name) if value is None else value
        if value is not None and value not in computed:
            raise ModelError(
                f"config.json: {name}: {value!r:.40} is not supported for {about.architecture}; take another model"
            )
    return about, Config(raw, about.defaults)


def _check_modules(checkpoint: Checkpoint) -> None:
    """What stands between the model and its embeddings must be linear."""
    for kind, path in checkpoint.modules:
        function = checkpoint.object(f"{path}/config.json").get("activation_function") if kind == "Dense" else None
        if kind not in ("Transformer", "Pooling", "Dense", "Normalize"):
            raise ModelError(f"modules.json: {kind!r:.40} is not supported; take another model")
        if function is not None and not str(function).endswith(".Identity"):
            raise ModelError(
                f"{path}/config.json: activation_function: {function!r:.60} is not supported; take another"
            )


def _pooling(checkpoint: Checkpoint) -> int | None:
    """pooling_type of a model of sentence-transformers; None: it is none."""
    folder = next((path for kind, path in checkpoint.modules if kind == "Pooling"), None)
    if folder is None:
        return None
    name = f"{folder}/config.json"
    about = checkpoint.object(name)
    modes = {mode for flag, mode in _POOLING_FLAGS.items() if about.get(flag)}
    modes |= {about["pooling_mode"]} if isinstance(about.get("pooling_mode"), str) else set()
    if len(modes) != 1 or not modes <= set(_POOLINGS):
        raise ModelError(f"{name}: pooling by {sorted(modes)} is not supported, only by mean, cls or lasttoken")
    return _POOLINGS[modes.pop()]


def _name(checkpoint: Checkpoint) -> str:
    """As the folder is called, or the repository whose snapshot in a cache it is."""
    folder = checkpoint.folder.resolve()
    if folder.parent.name == "snapshots":
        return folder.parent.parent.name.rpartition("--")[2]
    return folder.name


def _license(checkpoint: Checkpoint) -> str | None:
    """What the model card's head says."""
    lines = (checkpoint.text("README.md") or "").splitlines()
    if lines[:1] != ["---"]:
        return None
    for line in lines[1:200]:
        if line == "---":
            return None
        if line.startswith("license:"):
            return line.partition(":")[2].strip(" '\"")[:80] or None
    return None
