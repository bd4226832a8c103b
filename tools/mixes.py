"""Which format each tensor of a model gets: formats and named mixes, as llama.cpp has them.

Owns the names of TYPE, the choice per tensor, what to take where a row does not fit, and between which formats a choice
by size is made (pyedge/evaluation/target.py). Does not own how a tensor is
quantized, nor any file. A mix gives more bits to the tensors whose errors cost most: values and down projections of
the first and last layers, the output. The choices are llama.cpp's, so that a name promises the same file everywhere;
tests/tools/mixes.json holds what its program chose.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from pyedge import _core
from pyedge.errors import ModelError

_FORMATS = {info.name: info for info in _core.formats()}
WRITABLE = tuple(name for name, info in _FORMATS.items() if info.runs)
FLOATS = ("F32", "F16", "BF16")

# TYPE: the format of most tensors, and the number that stands for the mix in `general.file_type`.
MIXES: dict[str, tuple[str, int]] = {
    "F32": ("F32", 0),
    "F16": ("F16", 1),
    "BF16": ("BF16", 32),
    "Q8_0": ("Q8_0", 7),
    "Q6_K": ("Q6_K", 18),
    "Q5_K_M": ("Q5_K", 17),
    "Q5_K_S": ("Q5_K", 16),
    "Q5_1": ("Q5_1", 9),
    "Q5_0": ("Q5_0", 8),
    "Q4_K_M": ("Q4_K", 15),
    "Q4_K_S": ("Q4_K", 14),
    "Q4_1": ("Q4_1", 3),
    "Q4_0": ("Q4_0", 2),
    "IQ4_NL": ("IQ4_NL", 25),
    "IQ4_XS": ("IQ4_XS", 30),
    "MXFP4": ("MXFP4", 38),
    "MXFP4_MOE": ("MXFP4", 38),  # experts alone; all else is Q8_0
    "Q3_K_L": ("Q3_K", 13),
    "Q3_K_M": ("Q3_K", 12),
    "Q3_K_S": ("Q3_K", 11),
    "Q2_K": ("Q2_K", 10),
}
# Between these a choice by size is made. Not MXFP4: at nearly the size of IQ4_XS it is for weights trained in it.
BY_SIZE = ("Q2_K", "Q3_K", "IQ4_XS", "Q4_0", "IQ4_NL", "Q4_K", "Q4_1", "Q5_0", "Q5_K", "Q5_1", "Q6_K", "Q8_0")
ALIASES = {"Q5_K": "Q5_K_M", "Q4_K": "Q4_K_M", "Q3_K": "Q3_K_M"}

# What is taken for rows that are no multiple of 256: blocks of 32 with no fewer bits.
_FALLBACKS = {"Q2_K": "Q4_0", "Q3_K": "Q4_0", "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0", "IQ4_XS": "IQ4_NL"}

# Tensors with these in their names keep their type: norms, routers, positions, and small ones of other architectures.
_KEPT = (
    "_norm.weight", "ffn_gate_inp.weight", "ffn_gate_tid2eid.weight", "altup", "laurel", "per_layer_model_proj",
    "ssm_conv1d", "shortconv.conv.weight", "indexer.k_proj.weight", "indexer.q_proj.weight", "attn_rel_b.weight",
    ".position_embd", "sam.pos_embd", "sam.neck.", "sam.net_", ".rel_pos", ".patch_embd", ".patch_merger",
    "a.rvq.codebook", "mm.a.code_embd", "time_mix_first.weight", "time_mix_w0.weight", "time_mix_w1.weight",
    "time_mix_w2.weight", "time_mix_v0.weight", "time_mix_v1.weight", "time_mix_v2.weight", "time_mix_a0.weight",
    "time_mix_a1.weight", "time_mix_a2.weight", "time_mix_g1.weight", "time_mix_g2.weight",
    "time_mix_decay_w1.weight", "time_mix_decay_w2.weight", "time_mix_lerp_fused.weight",
)  # fmt: skip
_KEPT_WHOLE = ("position_embd.weight", "token_types.weight")

_EMBEDDING, _OUTPUT, _V, _K, _ATTENTION_OUTPUT, _DOWN, _OTHER = range(7)
_ROLES = (  # the first one whose text is in the name
    ("attn_qkv.weight", _V), ("attn_kv_b.weight", _V), ("attn_v.weight", _V), ("attn_k.weight", _K),
    ("attn_output.weight", _ATTENTION_OUTPUT), ("ffn_down", _DOWN),
)  # fmt: skip


@dataclass(frozen=True)
class Traits:
    """What the choice depends on besides a tensor's name and shape."""

    architecture: str
    n_layers: int
    group_size: int  # query heads per key head
    n_experts: int
    of_70b: bool  # Llama 2 70B and what has its shape: eight query heads to a value head, in 80 layers
    tied: bool  # the embedding is the output too
    importance: bool  # there is an importance matrix

    @classmethod
    def of(cls, gguf: _core.Gguf, importance: bool) -> Traits:
        architecture = str(gguf.get("general.architecture", ""))

        def number(key: str, default: int) -> int:
            value = gguf.get(f"{architecture}.{key}", default)
            first = value[0] if isinstance(value, list) and value else value
            return first if isinstance(first, int) else default

        heads = number("attention.head_count", 1)
        kv_heads = number("attention.head_count_kv", heads)
        layers = number("block_count", 0)
        large = {"llama": 80, "qwen2": 80, "deci": 80, "olmo": 80, "jais2": 68}.get(architecture) == layers
        return cls(
            architecture=architecture,
            n_layers=layers,
            group_size=heads // kv_heads if kv_heads > 0 else 0,
            n_experts=number("expert_count", 0),
            of_70b=large and (architecture != "llama" or heads != kv_heads),
            tied=gguf.tensor_index("output.weight") < 0,
            importance=importance,
        )


@dataclass(frozen=True)
class Wishes:
    """What a person asks for."""

    mix: str  # of MIXES
    tensor_types: Sequence[tuple[re.Pattern[str], str]] = ()  # the first whose pattern is found in the name counts
    output_type: str | None = None
    embedding_type: str | None = None
    pure: bool = False  # the mix's format for all matrices

    @property
    def format(self) -> str:
        return MIXES[self.mix][0]


@dataclass(frozen=True)
class Choice:
    """What becomes of one tensor."""

    name: str
    shape: tuple[int, ...]  # columns first
    source: str  # its format, and
    type: str  # the one it gets
    wanted: str  # which is another than this one where a row does not fit


def mix_named(text: str) -> str:
    """A TYPE in whatever case. ValueError for what is none."""
    name = ALIASES.get(text.upper(), text.upper())
    if name not in MIXES:
        raise ValueError(f"'{text}' is no type; take one of {', '.join(MIXES)}")
    return name


def format_named(text: str) -> str:
    """A format in whatever case. ValueError for what is none."""
    if text.upper() not in WRITABLE:
        raise ValueError(f"'{text}' is no format; take one of {', '.join(WRITABLE)}")
    return text.upper()


def is_quantized_by_rule(name: str, shape: Sequence[int]) -> bool:
    """Whether a tensor is a matrix, or several, whose numbers may be made coarser."""
    matrix = any(n > 1 for n in shape[1:])
    return matrix and name.endswith("weight") and name not in _KEPT_WHOLE and not any(part in name for part in _KEPT)


def choose(tensors: Iterable[_core.TensorInfo], traits: Traits, wishes: Wishes) -> list[Choice]:
    """For all tensors, in the order given. ValueError for a pattern that no tensor has."""
    tensors = list(tensors)
    mixed = _Mixed(traits, wishes, sum(_role(t.name) == _V for t in tensors))
    unused = {pattern.pattern for pattern, _ in wishes.tensor_types}
    chosen: dict[str, Choice] = {}
    for t in sorted(tensors, key=lambda t: (layer(t.name, -1), t.name)):  # the rules count along the layers
        wanted = t.type
        if is_quantized_by_rule(t.name, t.shape):
            named = next((pair for pair in wishes.tensor_types if pair[0].search(t.name)), None)
            wanted = mixed.format(t.name, t.shape) if named is None else named[1]
            unused -= {pattern.pattern for pattern, _ in wishes.tensor_types if pattern.search(t.name)}
        chosen[t.name] = Choice(t.name, t.shape, t.type, _fitting(wanted, t), wanted)
    if unused:
        raise ValueError(f"tensor_type '{min(unused)}': found in no name of a tensor that is quantized")
    return [chosen[t.name] for t in tensors]


def candidates(tensors: Iterable[_core.TensorInfo], wishes: Wishes) -> dict[str, list[str]]:
    """Of each matrix that the wishes leave open: the formats it may get, smaller than its own, and its own (F16 for
    F32), the smallest first."""
    found: dict[str, list[str]] = {}
    for t in tensors:
        if is_quantized_by_rule(t.name, t.shape) and not _named(t.name, wishes):
            largest = "F16" if t.type == "F32" else t.type
            fitting = [name for name in BY_SIZE if t.shape[0] % _FORMATS[name].block_values == 0]
            smaller = [name for name in fitting if bits(name) < bits(largest)]
            found[t.name] = [*sorted(smaller, key=bits), largest]
    return found


def bits(name: str) -> float:
    """Of a value in a format."""
    return 8 * _FORMATS[name].block_bytes / _FORMATS[name].block_values


def mostly(types: Mapping[str, int]) -> int:
    """The number of `general.file_type` for a file that no mix made, from the bytes of each format: the mix that is
    mostly of the format with the most."""
    most = max(types, key=lambda name: types[name])
    return next((number for kind, number in MIXES.values() if kind == most), MIXES["F32"][1])


def _named(name: str, wishes: Wishes) -> bool:
    """Whether a person said what this tensor gets."""
    role = _role(name)
    if (role == _EMBEDDING and wishes.embedding_type) or (role == _OUTPUT and wishes.output_type):
        return True
    return any(pattern.search(name) for pattern, _ in wishes.tensor_types)


def _fitting(wanted: str, tensor: _core.TensorInfo) -> str:
    """The format itself, or where the tensor's rows are no whole number of its blocks, the next that fits."""
    columns = tensor.shape[0]
    if columns % _FORMATS[wanted].block_values == 0:
        return wanted
    smaller = _FALLBACKS.get(wanted, wanted)
    if columns % _FORMATS[smaller].block_values == 0:
        return smaller
    return tensor.type if tensor.type in FLOATS[1:] else "F16"


def layer(name: str, default: int) -> int:
    """That a tensor is of, and the default for one of none."""
    found = re.match(r"blk\.(\d+)\.", name)
    return int(found[1]) if found else default


def _role(name: str) -> int:
    if name == "output.weight":
        return _OUTPUT
    if name in ("token_embd.weight", "per_layer_token_embd.weight"):
        return _EMBEDDING
    return next((role for part, role in _ROLES if part in name), _OTHER)


@dataclass
class _Mixed:
    """The choice of a mix, tensor by tensor along the layers: some rules count the tensors of a role."""

    traits: Traits
    wishes: Wishes
    n_v: int  # how many tensors are values
    seen: dict[int, int] = field(default_factory=dict)  # by role

    def format(self, name: str, shape: Sequence[int]) -> str:
        wishes, role = self.wishes, _role(name)
        if role == _EMBEDDING and wishes.embedding_type:
            return wishes.embedding_type
        if role == _OUTPUT and wishes.output_type:
            return wishes.output_type
        if wishes.format in FLOATS or wishes.pure:
            return wishes.format
        if role == _OUTPUT or (role == _EMBEDDING and self.traits.tied):
            return wishes.output_type or self._output(shape[0])
        if wishes.mix == "MXFP4_MOE":
            return "MXFP4" if len(shape) > 2 and shape[2] > 1 else "Q8_0"
        at = self.seen.get(role, 0)
        self.seen[role] = at + 1
        if role == _V:
            return self._v(at)
        if role == _K:
            return "Q8_0" if self.traits.n_experts == 8 else wishes.format
        if role == _DOWN:
            return self._down(name, at)
        return self._attention_output() if role == _ATTENTION_OUTPUT else wishes.format

    def _output(self, columns: int) -> str:
        base = self.wishes.format
        fits = columns % _FORMATS[base].block_values == 0
        if self.wishes.mix in ("MXFP4_MOE", "Q8_0") or self.traits.architecture == "falcon" or not fits:
            return "Q8_0"
        return "Q6_K"

    def _v(self, at: int) -> str:
        mix, base, traits = self.wishes.mix, self.wishes.format, self.traits
        wide = traits.group_size >= 4  # a value head serves many query heads, and is a small part of the file
        chosen = base
        if mix == "Q2_K":
            chosen = "Q4_K" if wide else "Q3_K"
        elif mix == "Q3_K_M":
            chosen = "Q5_K" if at < 2 else "Q4_K"
        elif mix == "Q3_K_L" or (mix in ("IQ4_NL", "IQ4_XS") and wide) or (mix == "Q4_K_S" and at < 4):
            chosen = "Q5_K"
        elif mix in ("Q4_K_M", "Q5_K_M") and _more_bits(at, self.n_v):
            chosen = "Q6_K"
        if traits.of_70b and chosen in ("Q3_K", "Q4_K"):
            chosen = "Q5_K"
        return "Q8_0" if traits.n_experts == 8 else chosen

    def _down(self, name: str, at: int) -> str:
        mix, base, traits = self.wishes.mix, self.wishes.format, self.traits
        layers, falcon = traits.n_layers, traits.architecture == "falcon"
        if traits.n_experts > 1:  # experts may be tensors of their own
            at = layer(name, -1)
            if not 0 <= at < layers:
                raise ModelError(f"tensor '{name}': belongs to none of the {layers} layers; convert the model again")
        if mix == "Q2_K":
            return "Q3_K"
        if mix == "Q3_K_M":
            return "Q5_K" if at < layers // 16 else "Q4_K" if not falcon or _more_bits(at, layers) else "Q3_K"
        if mix == "Q3_K_L":
            return "Q4_K" if falcon else "Q5_K"
        if mix == "Q4_K_M" and falcon:
            return "Q6_K" if at < layers // 16 else "Q5_K" if _more_bits(at, layers) else "Q4_K"
        if mix in ("Q4_K_M", "Q5_K_M") and _more_bits(at, layers):
            return "Q6_K"
        if at < layers // 8:
            if mix in ("IQ4_NL", "IQ4_XS") and not traits.importance:
                return "Q5_K"
            if mix == "Q4_K_S" and not falcon:
                return "Q5_K"
            if mix in ("Q4_0", "Q5_0") and traits.importance:
                return "Q4_1" if mix == "Q4_0" else "Q5_1"
        return base

    def _attention_output(self) -> str:
        mix, base, traits = self.wishes.mix, self.wishes.format, self.traits
        if traits.architecture == "falcon":
            return "Q4_K" if mix == "Q3_K_L" else base
        if traits.n_experts == 8:
            return "Q5_K" if base in ("Q2_K", "Q3_K", "Q4_K", "IQ4_NL", "IQ4_XS") and mix != "Q3_K_L" else base
        return {"Q2_K": "Q3_K", "Q3_K_M": "Q4_K", "Q3_K_L": "Q5_K"}.get(mix, base)


def _more_bits(at: int, n: int) -> bool:
    """The first and last eighth of the layers, and every third between."""
    return at < n // 8 or at >= 7 * n // 8 or (at - n // 8) % 3 == 2
