"""Text to token ids and back, for the vocabulary of one model file.

Owns the facade that every kind of tokenizer stands behind: special tokens, BOS, chat prompts. The kinds, one file each,
turn text without special tokens into ids.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

from pyedge.errors import ModelError
from pyedge.tokenizers.bpe import BpeTokenizer
from pyedge.tokenizers.chat_template import ChatTemplate, Message, Prompt, check_text
from pyedge.tokenizers.detokenizer import IncrementalDetokenizer
from pyedge.tokenizers.sentencepiece import SentencePieceTokenizer
from pyedge.tokenizers.stop import StopMatcher
from pyedge.tokenizers.vocabulary import Frame, Metadata, SpecialTokens, Vocabulary
from pyedge.tokenizers.wordpiece import WordPieceTokenizer

if TYPE_CHECKING:
    from pyedge.tokenizers.template_sandbox import ChatTemplateError

__all__ = ["ChatTemplateError", "IncrementalDetokenizer", "StopMatcher", "Tokenizer"]


def __getattr__(name: str) -> Any:
    if name == "ChatTemplateError":  # its module imports jinja2
        from pyedge.tokenizers.template_sandbox import ChatTemplateError

        return ChatTemplateError
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class TokenizerKind(Protocol):
    """What one `tokenizer.ggml.model` does."""

    @property
    def frame(self) -> Frame: ...
    @property
    def space_prefix(self) -> bool: ...  # encode puts a space before the text
    def fewest(self, text: str) -> int: ...  # tokens that the text has at least, found at once
    def encode(self, text: str) -> Iterator[list[int]]: ...  # of a text without special tokens, piece by piece
    def token_bytes(self, token: int) -> bytes: ...  # of a token that is none


_KINDS: dict[str, Callable[[Metadata, Vocabulary, str | None], TokenizerKind]] = {
    "gpt2": BpeTokenizer,
    "gemma4": BpeTokenizer,
    "bert": WordPieceTokenizer,
    "llama": SentencePieceTokenizer,
    "t5": SentencePieceTokenizer,
}


class Tokenizer:
    """Tokenization, detokenization and chat prompts. Decoding what was encoded gives the same text, to the byte
    (but for what a vocabulary has no token for, and models that want their text normalized)."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        kind: TokenizerKind,
        *,
        strips: bool = False,
        chat_templates: Mapping[str, str] | None = None,
        path: str | None = None,
    ) -> None:
        """strips: as of SpecialTokens. path: the file that errors name."""
        self._path = path
        self._vocabulary = vocabulary
        self._kind = kind
        self._specials = SpecialTokens(vocabulary, strips)
        self._bytes: dict[int, bytes] = {}
        self._frame = kind.frame
        self.bos_id = kind.frame.begin
        self.eos_id = vocabulary.special_ids.get("eos")
        self.add_bos = kind.frame.add_begin
        self.chat_templates = dict(chat_templates or {})  # by name: "default", "tool_use"

    @classmethod
    def from_gguf(cls, gguf: Metadata, pre: str | None = None) -> Tokenizer:
        """The tokenizer of a file. pre: how words are cut, in place of the file's `tokenizer.ggml.pre`.

        Keeps nothing of gguf. Raises ModelError: `FILE: key: what is wrong; what to do`, if gguf has a path."""
        path = getattr(gguf, "path", None)
        try:
            return cls._from_gguf(gguf, pre, path)
        except ModelError as error:
            if not path or str(error).startswith(path):  # the loader's own errors name the file
                raise
            raise ModelError(f"{path}: {error}") from None

    @classmethod
    def _from_gguf(cls, gguf: Metadata, pre: str | None, path: str | None) -> Tokenizer:
        model = gguf.get("tokenizer.ggml.model")
        if model is None:
            raise ModelError("tokenizer.ggml.model: missing; this file has no tokenizer, use a complete one")
        if not isinstance(model, str) or model not in _KINDS:
            raise ModelError(
                f"tokenizer.ggml.model: {str(model)[:40]!r} is not supported, only {', '.join(_KINDS)} are; "
                "use a model with one of these"
            )
        if pre is not None and _KINDS[model] is not BpeTokenizer:
            raise ValueError(f"pre {pre!r:.80} has no meaning for this model's tokenizer, {model!r}; leave it out")
        vocabulary = Vocabulary.from_gguf(gguf)
        return cls(
            vocabulary,
            _KINDS[model](gguf, vocabulary, pre),
            strips=model == "llama" and gguf.get("general.architecture") == "phi3",
            chat_templates=_chat_templates(gguf),
            path=path,
        )

    # ---- Vocabulary ----

    @property
    def n_vocab(self) -> int:
        return len(self._vocabulary)

    @property
    def pieces(self) -> Sequence[str]:
        """The vocabulary as the file spells it, by id."""
        return self._vocabulary.texts

    @property
    def end_ids(self) -> frozenset[int]:
        """Tokens that end a generation: end of text, of turn, of message."""
        return self._vocabulary.end_ids

    @property
    def hidden_ids(self) -> frozenset[int]:
        """Tokens that a reader does not see."""
        return self._vocabulary.hidden_ids

    def token_bytes(self, token: int) -> bytes:
        """What a token stands for: UTF-8, or a part of it."""
        if not hasattr(token, "__index__"):
            raise ValueError(f"a token id must be an integer, not {type(token).__name__}")
        known = self._bytes.get(token)
        if known is None:
            if not 0 <= token < self.n_vocab:
                raise ValueError(f"token id {token} is outside the vocabulary of {self.n_vocab}")
            known = self._vocabulary.special_bytes(token)
            if known is None:
                known = self._kind.token_bytes(token)
            self._bytes[token] = known
        return known

    def vocabulary_bytes(self) -> list[bytes]:
        """`token_bytes` of all tokens, by id. They are not kept: a large vocabulary takes tens of megabytes."""
        special, own = self._vocabulary.special_bytes, self._kind.token_bytes
        return [own(token) if (known := special(token)) is None else known for token in range(self.n_vocab)]

    # ---- Text ----

    def encode(
        self,
        text: str,
        special: bool = False,
        bos: bool | None = None,
        *,
        eos: bool | None = None,
        limit: int | None = None,
    ) -> list[int]:
        """Token ids. special: a control token's text is that token, else it is text. bos: begin with BOS ([CLS] where
        a model has that); None: as the model wants it. eos: end with EOS ([SEP]); None: as the model wants it, and not
        where bos is False. limit: the most tokens there may be; more raise ValueError, as soon as that is certain.

        A long text is encoded in pieces, with the same ids: memory is that of the ids, and Ctrl-C is seen between two
        pieces. (A run without any letter or space is one piece, however long.)"""
        check_text(text)
        ids, frame = _Ids(limit, len(text)), self._frame
        if frame.begin is not None and (frame.add_begin if bos is None else bos):
            ids.add([frame.begin])
        self._encode(text, special, ids)
        if frame.end is not None and (frame.add_end and bos is not False if eos is None else eos):
            ids.add([frame.end])
        return ids.ids

    def _encode(self, text: str, special: bool, ids: _Ids) -> None:
        for run in self._specials.split(text, control=special):
            if isinstance(run, int):
                ids.add([run])
                continue
            if ids.limit is not None:
                ids.foresee(self._kind.fewest(run))
            for piece in self._kind.encode(run):
                ids.add(piece)

    def decode(self, ids: Iterable[int], skip_special: bool = False, *, continues: bool = False) -> str:
        """Text of token ids. Bytes that are no UTF-8 become U+FFFD. skip_special: leave control tokens out. continues:
        the tokens follow others, so that a space that they begin with is theirs, and not the one that encoding puts
        before a text."""
        if isinstance(ids, (str, bytes, bytearray, Mapping)) or not isinstance(ids, Iterable):
            raise ValueError(f"the token ids must be a list of integers, not {type(ids).__name__}")
        try:
            each = iter(ids)
        except TypeError:  # of an array without dimensions
            raise ValueError(f"the token ids must be a list of integers, not {type(ids).__name__}") from None
        detokenizer = self.detokenizer(skip_special, continues=continues)
        return "".join(map(detokenizer.push, each)) + detokenizer.finish()

    def detokenizer(self, skip_special: bool = True, *, continues: bool = True) -> IncrementalDetokenizer:
        """For what a model writes, or (continues: False) a text from its beginning."""
        prefixed = self._specials.ids if self._kind.space_prefix else None
        return IncrementalDetokenizer(self, skip_special, prefixed=prefixed, continues=continues)

    def stop_matcher(self, stops: Iterable[str]) -> StopMatcher:
        return StopMatcher(stops)

    # ---- Chat ----

    @property
    def chat_template(self) -> str | None:
        return self.chat_templates.get("default")

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        *,
        limit: int | None = None,
        **kwargs: Any,
    ) -> list[int]:
        """Token ids of a conversation. A control token's text in a message stays text. limit: as of encode. kwargs:
        for the template.

        Raises ValueError for messages of a wrong form, and ChatTemplateError (a ValueError) where the template refuses
        them, is missing, wrong or too costly."""
        prompt = self._prompt(messages, tools, add_generation_prompt, kwargs)
        ids = _Ids(limit, len(prompt.marked))
        for run in self._specials.split(prompt.marked, control=True):
            if isinstance(run, int):
                ids.add([run])
            else:
                self._encode(run.replace(prompt.mark, ""), False, ids)
        if self.add_bos and self.bos_id is not None and ids.ids[:1] != [self.bos_id]:
            ids.ids.insert(0, self.bos_id)
            ids.foresee(0)
        return ids.ids

    def render_chat_template(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        **kwargs: Any,
    ) -> str:
        """The prompt as text, to look at: in it, a control token cannot be told from its text in a message."""
        return self._prompt(messages, tools, add_generation_prompt, kwargs).text

    def _prompt(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        kwargs: Mapping[str, Any],
    ) -> Prompt:
        from pyedge.tokenizers.template_sandbox import ChatTemplateError, ChatTemplateRefusalError

        template = self._templates.get("tool_use") if tools else None
        template = template or self._templates.get("default")
        if template is None:
            raise ChatTemplateError(f"{self._where}this model has no chat template; give it a plain prompt")
        try:
            return template.render(messages, tools, add_generation_prompt, **kwargs)
        except ChatTemplateRefusalError:  # it is the messages that are to be changed
            raise
        except ChatTemplateError as error:
            raise ChatTemplateError(f"{self._where}{error}; give a plain prompt, or use another file") from None

    @property
    def _where(self) -> str:
        return f"{self._path}: " if self._path else ""

    @cached_property
    def _templates(self) -> dict[str, ChatTemplate]:
        texts, ids = self._vocabulary.texts, self._vocabulary.special_ids
        names = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}
        variables = {variable: texts[ids[name]] for name, variable in names.items() if name in ids}
        return {
            name: ChatTemplate(source, self._specials.control, variables)
            for name, source in self.chat_templates.items()
        }


class _Ids:
    """Ids of a prompt, up to a limit."""

    def __init__(self, limit: int | None, n_characters: int) -> None:
        self.ids: list[int] = []
        self.limit = limit
        self._n_characters = n_characters

    def add(self, ids: list[int]) -> None:
        self.ids += ids
        self.foresee(0)

    def foresee(self, n: int) -> None:
        """At least n are still to come."""
        if self.limit is not None and len(self.ids) + n > self.limit:
            raise ValueError(
                f"the prompt is a text of {self._n_characters} characters and has more than {self.limit} tokens, which "
                "is all that the context holds; shorten the prompt or raise max_model_len"
            )


def _chat_templates(gguf: Metadata) -> dict[str, str]:
    key = "tokenizer.chat_template"
    templates = {"default": gguf.get(key)}
    names = gguf.get("tokenizer.chat_templates")
    for name in names if isinstance(names, list) else ():
        templates.setdefault(str(name), gguf.get(f"{key}.{name}"))
    return {name: source for name, source in templates.items() if isinstance(source, str) and source}
