"""Which models run: family by family and variant by variant, with what shows it.

Owns the table, the small chat templates in each family's style, and the part of README.md that is made from both:
`python tests/helpers/familytable.py` writes it anew. tests/models/test_family_table.py goes through the rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"
BEGIN = "<!-- families: made by python tests/helpers/familytable.py -->\n"
END = "<!-- end of families -->\n"

MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello!"},
    {"role": "user", "content": "Why?"},
]


@dataclass(frozen=True)
class Template:
    source: str
    rendered: str  # of MESSAGES, with bos_token "<s>" and eos_token "</s>"


@dataclass(frozen=True)
class Variant:
    architecture: str  # general.architecture
    models: str  # for people
    what: str  # it has that the family's others have not
    fixture: str  # in tests/models/families, that proves the logits or the embedding
    tokenizer: tuple[str, str | None]  # tokenizer.ggml.model and .pre of its files
    template: str | None  # of TEMPLATES; None: the models do not chat


def _turns(before: str, between: str, after: str, answer: str) -> str:
    """A template that writes every message alike, and begins the answer."""
    turn = f"{before}{{{{ m.role }}}}{between}{{{{ m.content }}}}{after}"
    return f"{{% for m in messages %}}{turn}{{% endfor %}}{{% if add_generation_prompt %}}{answer}{{% endif %}}"


TEMPLATES = {
    "chatml": Template(
        _turns("<|im_start|>", "\n", "<|im_end|>\n", "<|im_start|>assistant\n"),
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello!<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n",
    ),
    "llama-3": Template(
        "{{ bos_token }}"
        + _turns(
            "<|start_header_id|>",
            "<|end_header_id|>\n\n",
            "<|eot_id|>",
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
        "<s><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nHi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nHello!<|eot_id|>"
        "<|start_header_id|>user<|end_header_id|>\n\nWhy?<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
    ),
    # The system message goes into the first turn of the user.
    "llama-2": Template(
        "{% set system = messages[0].content if messages[0].role == 'system' else none %}"
        "{% for m in messages if m.role != 'system' %}"
        "{% if m.role == 'user' %}{{ bos_token }}[INST] "
        "{% if loop.first and system %}<<SYS>>\n{{ system }}\n<</SYS>>\n\n{% endif %}{{ m.content | trim }} [/INST]"
        "{% else %} {{ m.content | trim }} {{ eos_token }}{% endif %}{% endfor %}",
        "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST] Hello! </s><s>[INST] Why? [/INST]",
    ),
    "mistral": Template(
        "{{ bos_token }}{% set ns = namespace(system='') %}{% for m in messages %}"
        "{% if m.role == 'system' %}{% set ns.system = m.content ~ '\n\n' %}"
        "{% elif m.role == 'user' %}[INST] {{ ns.system ~ m.content }} [/INST]{% set ns.system = '' %}"
        "{% elif m.role == 'assistant' %} {{ m.content }}{{ eos_token }}"
        "{% else %}{{ raise_exception('roles are system, user and assistant') }}{% endif %}{% endfor %}",
        "<s>[INST] Be brief.\n\nHi [/INST] Hello!</s>[INST] Why? [/INST]",
    ),
    "gemma": Template(
        "{{ bos_token }}{% set first = '' %}"
        "{% if messages[0].role == 'system' %}{% set first = messages[0].content + '\n\n' %}"
        "{% set messages = messages[1:] %}{% endif %}{% for m in messages %}"
        "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('user and model take turns') }}"
        "{% endif %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
        "{{ first if loop.first else '' }}{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
        "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}",
        "<s><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\nHello!<end_of_turn>\n"
        "<start_of_turn>user\nWhy?<end_of_turn>\n<start_of_turn>model\n",
    ),
    "phi-3": Template(
        _turns("<|", "|>\n", "<|end|>\n", "<|assistant|>\n"),
        "<|system|>\nBe brief.<|end|>\n<|user|>\nHi<|end|>\n<|assistant|>\nHello!<|end|>\n<|user|>\nWhy?<|end|>\n"
        "<|assistant|>\n",
    ),
    "granite": Template(
        _turns(
            "<|start_of_role|>",
            "<|end_of_role|>",
            "<|end_of_text|>\n",
            "<|start_of_role|>assistant<|end_of_role|>",
        ),
        "<|start_of_role|>system<|end_of_role|>Be brief.<|end_of_text|>\n"
        "<|start_of_role|>user<|end_of_role|>Hi<|end_of_text|>\n"
        "<|start_of_role|>assistant<|end_of_role|>Hello!<|end_of_text|>\n"
        "<|start_of_role|>user<|end_of_role|>Why?<|end_of_text|>\n<|start_of_role|>assistant<|end_of_role|>",
    ),
    "olmo": Template(
        "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}"
        "{{ eos_token if m.role == 'assistant' else '' }}\n{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
        "<s><|system|>\nBe brief.\n<|user|>\nHi\n<|assistant|>\nHello!</s>\n<|user|>\nWhy?\n<|assistant|>\n",
    ),
    "harmony": Template(
        _turns("<|start|>", "<|message|>", "<|end|>", "<|start|>assistant"),
        "<|start|>system<|message|>Be brief.<|end|><|start|>user<|message|>Hi<|end|>"
        "<|start|>assistant<|message|>Hello!<|end|><|start|>user<|message|>Why?<|end|><|start|>assistant",
    ),
}

SPM = ("llama", None)  # SentencePiece
WPM = ("bert", None)  # WordPiece

TABLE = [
    Variant("llama", "Llama 1, 2, TinyLlama", "", "llama-2", SPM, "llama-2"),
    Variant("llama", "Llama 3.1, 3.2, 3.3", "rope factors by tensor", "llama-3.2", ("gpt2", "llama-bpe"), "llama-3"),
    Variant("llama", "LongChat, Vicuna 16k", "linear rope scaling", "llama-linear", SPM, None),
    Variant("llama", "Yarn Llama 2", "YaRN", "llama-yarn", SPM, None),
    Variant("llama", "SmolLM, SmolLM2", "9 heads, tied embedding", "smollm2", ("gpt2", "smollm"), "chatml"),
    Variant("llama", "Mistral 7B", "sliding window, where the file has it", "mistral-window", SPM, "mistral"),
    Variant("llama", "Mixtral 8x7B, 8x22B", "experts", "mixtral", SPM, "mistral"),
    Variant("qwen2", "Qwen 2, 2.5", "biases on q, k and v", "qwen2", ("gpt2", "qwen2"), "chatml"),
    Variant("qwen2", "Qwen 2.5 with long context", "YaRN", "qwen2-yarn", ("gpt2", "qwen2"), "chatml"),
    Variant("qwen2", "DeepSeek R1 Distill Qwen", "", "qwen2", ("gpt2", "deepseek-r1-qwen"), None),
    Variant("qwen3", "Qwen 3", "norms of q and k", "qwen3", ("gpt2", "qwen2"), "chatml"),
    Variant("qwen3", "Qwen 3 Embedding", "last-token pooling", "qwen3-embedding", ("gpt2", "qwen2"), None),
    Variant("qwen3moe", "Qwen 3 30B-A3B, 235B-A22B", "experts", "qwen3moe", ("gpt2", "qwen2"), "chatml"),
    Variant("gemma2", "Gemma 2 2B, 9B", "soft-caps, alternating windows", "gemma2", SPM, "gemma"),
    Variant("gemma2", "Gemma 2 27B", "its own query scale", "gemma2-27b", SPM, "gemma"),
    Variant("gemma3", "Gemma 3 270M, 1B", "5 windows of 6, two rope bases", "gemma3", SPM, "gemma"),
    Variant("gemma3", "Gemma 3 4B to 27B (text)", "linear scaling of global layers", "gemma3-linear", SPM, "gemma"),
    Variant("phi3", "Phi 3 mini 4k", "fused weights, sliding window", "phi3-window", SPM, "phi-3"),
    Variant("phi3", "Phi 3, 3.5 128k", "long rope factors", "phi3-long", SPM, "phi-3"),
    Variant("phi3", "Phi 3, 3.5 128k used up to 4k", "short rope factors", "phi3-short", SPM, "phi-3"),
    Variant("phi3", "Phi 4 mini", "part of each head rotated", "phi4-mini", ("gpt2", "gpt-4o"), "phi-3"),
    Variant("smollm3", "SmolLM3", "every fourth layer without positions", "smollm3", ("gpt2", "llama-bpe"), "chatml"),
    Variant("granite", "Granite 3, 4 (dense)", "four multipliers", "granite", ("gpt2", "refact"), "granite"),
    Variant("olmo2", "OLMo 2", "post-norms, norms of whole q and k", "olmo2", ("gpt2", "dbrx"), "olmo"),
    Variant("olmo2", "OLMo 3", "3 windows of 4, YaRN beside them", "olmo3", ("gpt2", "dbrx"), "olmo"),
    Variant("stablelm", "StableLM 2 1.6B", "layer norms, biases", "stablelm-2", ("gpt2", "stablelm2"), "chatml"),
    Variant("stablelm", "StableLM 2 12B", "parallel, norms by head", "stablelm-2-12b", ("gpt2", "stablelm2"), "chatml"),
    Variant("gpt-oss", "gpt-oss 20B, 120B", "sinks, experts in MXFP4", "gpt-oss-mxfp4", ("gpt2", "gpt-4o"), "harmony"),
    Variant("gpt-oss", "gpt-oss, converted anew", "experts in any format", "gpt-oss", ("gpt2", "gpt-4o"), "harmony"),
    Variant("bert", "MiniLM, e5, gte", "encoder, mean pooling", "bert-mean", WPM, None),
    Variant("bert", "bge", "encoder, pooling by [CLS]", "bert-cls", WPM, None),
    Variant("bert", "bge-m3, multilingual e5", "XLM-R: encoder of many languages", "bert-cls", ("t5", None), None),
    Variant("bert", "distilroberta", "RoBERTa: encoder, BPE of bytes", "bert-mean", ("gpt2", "gpt-2"), None),
    Variant("nomic-bert", "nomic-embed-text 1, 1.5", "encoder, rotated, gated", "nomic-bert", WPM, None),
    Variant("gemma-embedding", "EmbeddingGemma", "windows on both sides", "gemma-embedding", SPM, None),
]


def section() -> str:
    """The table as Markdown."""
    rows = ["| `general.architecture` | models | variant | tokenizer |", "| --- | --- | --- | --- |"]
    for v in TABLE:
        model, pre = v.tokenizer
        rows.append(f"| `{v.architecture}` | {v.models} | {v.what} | {f'{model}, {pre}' if pre else model} |")
    return BEGIN + "\n".join(rows) + "\n" + END


def in_readme(text: str) -> str:
    return text[text.index(BEGIN) : text.index(END) + len(END)]


if __name__ == "__main__":
    text = README.read_text(encoding="utf-8")
    README.write_text(text.replace(in_readme(text), section()), encoding="utf-8")
