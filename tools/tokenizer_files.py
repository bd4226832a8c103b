"""A checkpoint's tokenizer as a GGUF has it: the `tokenizer.*` keys.

Owns which of a checkpoint's files say what: the vocabulary, special tokens, what stands around a text, where a
generation ends, chat templates. Does not own the vocabularies' forms (vocabulary_files.py) and how words are cut
(pre_recognition.py). What is made is tried against the checkpoint's own tokenizer before anybody relies on it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pyedge.errors import ModelError
from pyedge.tokenizers import Tokenizer
from pyedge.tokenizers.vocabulary import SPACE
from pyedge.tokenizers.vocabulary import Vocabulary as Read
from pyedge.tools import pre_recognition, vocabulary_files
from pyedge.tools.checkpoint import AGAIN, Checkpoint
from pyedge.tools.vocabulary_files import Vocabulary

if TYPE_CHECKING:
    import tokenizers

log = logging.getLogger(__name__)

_SPECIAL = {  # as tokenizer_config.json has them, and `tokenizer.ggml.NAME_token_id`
    "bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding", "cls_token": "cls",
    "sep_token": "seperator", "mask_token": "mask",
}  # fmt: skip
_SAMPLES = (  # nothing that a normalizer to NFC would change
    "Hello world! It's 2026, and 1234567 isn't 3.14159; we'll see: (a+b)*c == 42?\n\n  two  spaces,\ttab\r\nEND",
    "Über naïve café, Привет мир. Γειά σου Κόσμε. שלום مرحبا नमस्ते สวัสดี 你好，世界。こんにちは 안녕하세요 😀👍",  # noqa: RUF001
    "def f(x):\n    return {'a': [1, 2], \"b\": x ** 2}  # TODO\n\n\n\nclass HTTPServer:\n\tpass\n",
)


def keys(checkpoint: Checkpoint, n_tokens: int, pre: str | None = None) -> dict[str, Any]:
    """All keys, by their full names. n_tokens: rows of the embedding. pre: how words are cut, in place of what is
    recognised."""
    source = _Source(checkpoint)
    vocabulary = source.vocabulary()
    for token, text, special in source.added():
        if not 0 <= token < 4 * n_tokens + 1024:
            raise ModelError(f"tokenizer.json: token {text!r:.40} has the id {token!r:.40}; {AGAIN}")
        vocabulary.add(token, text, special)
    if vocabulary.model == "gpt2":
        vocabulary.keys["pre"] = pre or source.recognised()
    elif pre is not None:
        raise ValueError(f"pre {pre!r:.80} has no meaning for this tokenizer, {vocabulary.model!r}; leave it out")
    else:
        vocabulary.keys["pre"] = "default"
    if dropped := vocabulary.fit(n_tokens):
        log.warning("%d tokens behind the embedding's %d rows are left out: nothing stands for them", dropped, n_tokens)
    found = {"model": vocabulary.model, **vocabulary.keys, "tokens": vocabulary.texts, "token_type": vocabulary.types}
    if vocabulary.scores is not None:
        found["scores"] = vocabulary.scores
    if vocabulary.merges is not None:
        found["merges"] = vocabulary.merges
    found |= source.specials(vocabulary)
    found = {f"tokenizer.ggml.{name}": value for name, value in found.items()}
    _end_everywhere(found, source.end_ids())
    if source.library is not None:
        _try(found, source.library, strict=vocabulary.model == "gpt2" and pre is None)
    return {**found, **_templates(checkpoint)}


class _Source:
    """The checkpoint's files that have to do with its tokenizer."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._checkpoint = checkpoint
        self._config = checkpoint.object("tokenizer_config.json")
        self._others = checkpoint.object("special_tokens_map.json")
        self._generation = checkpoint.object("generation_config.json")
        self._json = checkpoint.object("tokenizer.json")
        self._model = checkpoint.bytes("tokenizer.model")
        # Before the library sees it: there are vocabularies that it panics at.
        self._own = vocabulary_files.from_json(self._json) if self._json and self._model is None else None
        self.library = self._load()

    def _load(self) -> tokenizers.Tokenizer | None:
        if not self._json:
            return None
        import tokenizers

        try:
            library = tokenizers.Tokenizer.from_str(self._checkpoint.text("tokenizer.json") or "")
        except BaseException as e:
            raise _as_ours(e, "cannot be read", f"{AGAIN}, or update tokenizers") from None
        library.no_padding()
        library.no_truncation()
        return library

    def vocabulary(self) -> Vocabulary:
        if self._model is not None:
            found = vocabulary_files.from_sentencepiece(self._model)
            prefix = self._config.get("add_prefix_space")
            if isinstance(prefix, bool):
                found.keys["add_space_prefix"] = prefix
            return found
        if self._own is not None:
            if self._own.scores is not None:
                self._own.keys["add_space_prefix"] = self._puts_space_before()
            if self._own.model == "t5" and self._squeezes_spaces():
                self._own.keys["remove_extra_whitespaces"] = True
            return self._own
        words = self._checkpoint.text("vocab.txt")
        if words is not None:
            return vocabulary_files.from_words(words, bool(self._config.get("do_lower_case", True)))
        raise ModelError(
            "no tokenizer.json, tokenizer.model or vocab.txt: the checkpoint has no tokenizer that is read; "
            "load it with transformers and save_pretrained() it there"
        )

    def _puts_space_before(self) -> bool:
        assert self.library is not None
        tokens = _encoded(self.library, "a").tokens
        return bool(tokens) and tokens[0].startswith(SPACE)

    def _squeezes_spaces(self) -> bool:
        assert self.library is not None
        few, many = (_encoded(self.library, text).ids for text in ("a a", "a  a "))
        return few == many

    def recognised(self) -> str:
        assert self.library is not None
        normalizer = self._json.get("normalizer")
        if normalizer is not None and any(self.library.normalizer.normalize_str(text) != text for text in _SAMPLES):
            raise ModelError(
                "tokenizer.json: its normalizer changes plain text, which is not supported for BPE of bytes"
            )
        return pre_recognition.recognised(self.library, bool(self._json["model"].get("ignore_merges", False)))

    def added(self) -> Iterator[tuple[int, str, bool]]:
        """Tokens beside the vocabulary, or that mean more than their text: id, text, and whether it is for control."""
        listed = self._checkpoint.object("added_tokens.json")
        found = [(token, text, False) for text, token in listed.items()]
        decoder = self._config.get("added_tokens_decoder", {})
        more = [{**about, "id": int(token)} for token, about in decoder.items()] if _is_decoder(decoder) else []
        for about in [*more, *(self._json.get("added_tokens") or [])]:
            if not isinstance(about, dict):
                raise ModelError(f"tokenizer.json: added_tokens is no list of tokens; {AGAIN}")
            found.append((about.get("id"), about.get("content"), bool(about.get("special"))))  # type: ignore[arg-type]
        for token, text, special in found:
            if type(token) is not int or not isinstance(text, str):
                raise ModelError(f"tokenizer.json: added token {text!r:.40} has the id {token!r:.40}; {AGAIN}")
            yield token, text, special

    def end_ids(self) -> list[int]:
        """All that end a generation."""
        found: list[int] = []
        for values in (self._generation.get("eos_token_id"), self._checkpoint.config.get("eos_token_id")):
            found += [
                i
                for i in (values if isinstance(values, list) else [values])
                if type(i) is int and 0 <= i < 2**31 and i not in found
            ]
        return found

    def specials(self, vocabulary: Vocabulary) -> dict[str, Any]:
        """Ids that have a meaning, and whether a text begins and ends with some."""
        ids = {text: i for i, text in enumerate(vocabulary.texts)}
        found: dict[str, int] = {}
        for theirs, name in _SPECIAL.items():
            given = next((g for c in (self._config, self._others) if (g := _content(c.get(theirs))) is not None), None)
            if given in ids:
                found[name] = ids[given]
        for name, theirs in (("bos", "bos_token_id"), ("padding", "pad_token_id")):
            token = self._checkpoint.config.get(theirs)
            if type(token) is int and 0 <= token < len(ids):
                found.setdefault(name, token)
        ends = [i for i in self.end_ids() if i < len(ids)]
        if ends:
            found.setdefault("eos", ends[0])
        if vocabulary.model == "bert":  # other programs know [CLS] and [SEP] by these names
            found |= {theirs: found[ours] for theirs, ours in (("bos", "cls"), ("eos", "seperator")) if ours in found}
        begins, ends = self._frame(vocabulary.model, found)
        if len(begins) > 1 or len(ends) > 1:
            log.warning(
                "a text begins with %d special tokens and ends with %d: one of each is kept", *map(len, (begins, ends))
            )
        if begins:
            found["bos"] = begins[0]
        if ends and ends[-1] != found.get("eos"):
            if "eos" in found:
                found["eot"] = found["eos"]
            found["eos"] = ends[-1]
        adds = {"add_bos_token": bool(begins), "add_eos_token": bool(ends)}
        return {**{f"{name}_token_id": i for name, i in found.items()}, **adds}

    def _frame(self, model: str, ids: dict[str, int]) -> tuple[list[int], list[int]]:
        """The tokens that stand before a text, and behind it."""
        if self.library is not None:
            whole, inner = (_encoded(self.library, "a", special).ids for special in (True, False))
            at = next((i for i in range(len(whole)) if whole[i : i + len(inner)] == inner), 0)
            begins, ends = whole[:at], whole[at + len(inner) :]
        else:
            begins = [ids["bos"]] if model != "t5" and "bos" in ids else []
            ends = [ids["eos"]] if model != "llama" and "eos" in ids else []
        for name, flag in (("bos", self._config.get("add_bos_token")), ("eos", self._config.get("add_eos_token"))):
            if isinstance(flag, bool):
                made = [ids[name]] if flag and name in ids else []
                begins, ends = (made, ends) if name == "bos" else (begins, made)
        return begins, ends


def _encoded(library: tokenizers.Tokenizer, text: str, special: bool = False) -> tokenizers.Encoding:
    try:
        return library.encode(text, add_special_tokens=special)
    except BaseException as e:
        raise _as_ours(e, "cannot encode a text", AGAIN) from None


def _as_ours(e: BaseException, what: str, to_do: str) -> BaseException:
    """Of the library's errors, PanicException is no Exception."""
    if not isinstance(e, Exception) and type(e).__name__ != "PanicException":
        return e
    said = " ".join(str(e).split())
    return ModelError(f"tokenizer.json: {what} ({said:.120}); {to_do}")


def _is_decoder(value: Any) -> bool:
    if not isinstance(value, dict) or not all(
        isinstance(v, dict) and k.isdecimal() and len(k) < 10 for k, v in value.items()
    ):
        raise ModelError(f"tokenizer_config.json: added_tokens_decoder is no table of tokens; {AGAIN}")
    return True


def _content(token: Any) -> str | None:
    value = token.get("content") if isinstance(token, dict) else token
    return value if isinstance(value, str) else None


def _end_everywhere(found: dict[str, Any], ends: list[int]) -> None:
    """Ends that a reader of the file would not see by their texts get the keys that are left."""
    prefix = "tokenizer.ggml."
    left = [f"{prefix}{name}_token_id" for name in ("eot", "eom") if f"{prefix}{name}_token_id" not in found]
    n, seen = len(found[f"{prefix}tokens"]), Read.from_gguf(found).end_ids
    for token in ends:
        if token < n and token not in seen:
            if not left:
                log.warning("generation_config.json: no key is left to say that token %d ends a generation", token)
                return
            found[left.pop(0)] = token


def _try(found: dict[str, Any], library: tokenizers.Tokenizer, strict: bool) -> None:
    """The tokenizer that a reader will have, against the checkpoint's own. Raises ModelError."""
    ours = Tokenizer.from_gguf(found)
    for text in _SAMPLES:
        ids, expected = ours.encode(text, bos=False, eos=False), _encoded(library, text).ids
        if ids == expected:
            continue
        pairs = enumerate(zip(ids, expected, strict=False))
        at = next((i for i, (a, b) in pairs if a != b), min(len(ids), len(expected)))
        what = f"cuts {ours.decode(expected[max(at - 2, 0) : at + 3])!r} otherwise than the file would say"
        if strict:
            raise ModelError(f"tokenizer.json: {what}; if the difference is of no matter, say --pre NAME")
        log.warning("tokenizer.json: %s: some texts will have other tokens than with transformers", what)
        return


def _templates(checkpoint: Checkpoint) -> dict[str, Any]:
    """Chat templates: files of their own come before what tokenizer_config.json says."""
    given = checkpoint.object("tokenizer_config.json").get("chat_template")
    found: dict[str, str] = {}
    if isinstance(given, str):
        found["default"] = given
    for about in given if isinstance(given, list) else []:
        if isinstance(about, dict) and isinstance(name := about.get("name"), str):
            found[name] = str(about.get("template", ""))
    alone = checkpoint.object("chat_template.json").get("chat_template")
    if isinstance(alone, str):
        found["default"] = alone
    if (text := checkpoint.text("chat_template.jinja")) is not None:
        found["default"] = text
    for path in sorted((checkpoint.folder / "additional_chat_templates").glob("*.jinja")):
        found[path.stem] = checkpoint.text(f"additional_chat_templates/{path.name}") or ""
    more = [name for name in found if name != "default" and name.replace("_", "").isalnum()]
    keys: dict[str, Any] = {"tokenizer.chat_template": found["default"]} if "default" in found else {}
    keys |= {f"tokenizer.chat_template.{name}": found[name] for name in more}
    return {**keys, "tokenizer.chat_templates": more} if more else keys
