"""What a config.json says of rotary embeddings, as a GGUF says it: `rope.*` keys, and tensors of factors.

Owns the spellings of both generations of transformers: `rope_parameters`, by layer type where that matters, and before
that `rope_theta`, `rope_scaling` and `partial_rotary_factor`. A kind of scaling that is not written is refused by name.
What the keys mean is told by pyedge/models/rope.py.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pyedge.errors import ModelError
from pyedge.models.checkpoint import Checkpoint, Config

_PLAIN = (None, "default")


def rope(config: Config, about: Checkpoint) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Keys without the architecture, and tensors."""
    everywhere, local = _parameters(config)
    n_rot = int(everywhere.number("rope_pct", "partial_rotary_factor", default=1.0) * config.head_dim)
    base = everywhere.number("rotary_emb_base", "rope_theta")  # a family may have a default for the latter
    if base <= 0:
        raise config.fail("rope_theta", base, "above 0")
    keys: dict[str, Any] = {"rope.dimension_count": n_rot, "rope.freq_base": base}
    if local is not None:
        keys["rope.freq_base_swa"] = local.number("rope_theta")
        if (kind := _kind(local)) not in _PLAIN:
            raise _refused(kind, "of layers with a window")
    kind = _kind(everywhere)
    if kind in _PLAIN:
        return keys, {}
    if kind == "linear":
        return {**keys, "rope.scaling.type": "linear", "rope.scaling.factor": everywhere.number("factor")}, {}
    if kind == "llama3":
        return keys, {"rope_freqs.weight": _llama3(everywhere, n_rot, base)}
    if kind == "yarn":
        return {**keys, **_yarn(config, everywhere, about.yarn_truncates)}, {}
    if kind in ("longrope", "su"):
        more, tensors = _longrope(config, everywhere, n_rot)
        return {**keys, **more}, tensors
    raise _refused(kind)


def _refused(kind: Any, where: str = "") -> ModelError:
    where = f" {where}" if where else ""
    return ModelError(
        f"config.json: rope scaling{where}: {kind!r:.40} is not supported, only linear, llama3, yarn and longrope are; "
        "take another model"
    )


def _kind(parameters: Config) -> Any:
    kind = parameters.value("rope_type", "type")
    return kind.lower() if isinstance(kind, str) else kind


def _parameters(config: Config) -> tuple[Config, Config | None]:
    """Of layers that see everything, and of those with a window where they differ."""
    top = {
        name: config.value(name)
        for name in ("rope_theta", "rotary_emb_base", "partial_rotary_factor", "rope_pct")
        if config.value(name) is not None
    }
    new = config.within("rope_parameters")
    if "full_attention" in new.names():
        local = new.within("sliding_attention")
        return _over(new.within("full_attention"), top), local if local.names() else None
    base = config.value("rope_local_base_freq")
    everywhere = _over(new if new.names() else config.within("rope_scaling"), top)
    return everywhere, None if base is None else Config({"rope_theta": base})


def _over(parameters: Config, top: dict[str, Any]) -> Config:
    return Config({name: parameters.value(name) for name in parameters.names()}, top)


def _original(config: Config, parameters: Config) -> int:
    """The context that the model was first trained for."""
    name = "original_max_position_embeddings"
    most = config.integer("max_position_embeddings")
    return parameters.integer(name, default=config.integer(name, default=most))


def _llama3(parameters: Config, n_rot: int, base: float) -> np.ndarray:
    """Divisors of frequencies: 1 for fast pairs, the factor for slow ones, and between them a mean."""
    wavelengths = 2 * math.pi * base ** (np.arange(0, n_rot, 2) / n_rot)
    factor = parameters.number("factor")
    low, high = parameters.number("low_freq_factor"), parameters.number("high_freq_factor")
    original = parameters.integer("original_max_position_embeddings")
    if not (factor > 0 and 0 < low < high and original):
        raise ModelError(
            "config.json: rope scaling: its numbers are not possible; get the checkpoint's own config.json"
        )
    smooth = np.clip((original / wavelengths - low) / (high - low), 0, 1)
    return (1.0 / ((1.0 - smooth) / factor + smooth)).astype(np.float32)


def _yarn(config: Config, parameters: Config, truncates: bool) -> dict[str, Any]:
    if parameters.flag("truncate", default=True) != truncates:
        raise _refused("yarn with truncate")
    original = _original(config, parameters)
    factor = parameters.number("factor", default=config.integer("max_position_embeddings") / max(original, 1))
    keys: dict[str, Any] = {
        "rope.scaling.type": "yarn",
        "rope.scaling.factor": factor,
        "rope.scaling.original_context_length": original,
    }
    magnitude = parameters.value("attention_factor")
    ours, all_dim = parameters.value("mscale"), parameters.value("mscale_all_dim")
    if magnitude is None and ours and all_dim:
        grown = 0.1 * math.log(max(factor, 1.0))
        magnitude = (grown * parameters.number("mscale") + 1.0) / (grown * parameters.number("mscale_all_dim") + 1.0)
    if magnitude is not None:
        keys["rope.scaling.yarn_attn_factor"] = float(magnitude)
    for name in ("beta_fast", "beta_slow"):
        if parameters.value(name):
            keys[f"rope.scaling.yarn_{name}"] = parameters.number(name)
    return keys


def _longrope(config: Config, parameters: Config, n_rot: int) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    original = _original(config, parameters)
    factor = parameters.number("factor", default=config.integer("max_position_embeddings") / max(original, 1))
    grown = 1.0 if factor <= 1.0 or original < 2 else math.sqrt(1 + math.log(factor) / math.log(original))
    tensors = {}
    for kind in ("long", "short"):
        factors = parameters.value(f"{kind}_factor")
        try:
            values = np.array(factors, np.float32)
        except (TypeError, ValueError):
            values = np.zeros(0, np.float32)
        if values.shape != (n_rot // 2,) or not (np.isfinite(values) & (values > 0)).all():
            raise ModelError(
                f"config.json: rope scaling: {kind}_factor is no list of {n_rot // 2} numbers above 0; "
                "get the checkpoint's own config.json"
            )
        tensors[f"rope_factors_{kind}.weight"] = values
    keys = {
        "rope.scaling.type": "longrope",
        "rope.scaling.original_context_length": original,
        "rope.scaling.attn_factor": parameters.number("attention_factor", default=grown),
    }
    return keys, tensors
