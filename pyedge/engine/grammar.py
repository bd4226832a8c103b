"""Structured output: what a request's text must be, and which tokens may come next for it.

Owns the forms of a constraint (`Grammar`), compiling one for a vocabulary, and the state of one request in it
(`Matcher`). Grammars are llguidance's work; a mask is applied by the core's sampler; when a request ends is the
engine's business.

It fails closed. What does not compile within the limits is a ValueError when the request is made (a BusyError, if it is
others that take the time), and a state that passes a limit later ends the request with a ValueError: never free text.
Masks are made while all others wait, so their time is limited too.
"""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from time import thread_time
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, cast

from pyedge.errors import BusyError

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer, TokenizerWrapper

T = TypeVar("T")

MAX_SIZE = 128 * 1024  # characters of a grammar; OpenAI allows 120,000 in a schema's names and values
SECONDS = 5.0  # to compile one: 5,000 properties take as long, what people write takes milliseconds
MASK_SECONDS, MASK_SECONDS_EACH = 1.0, 0.005  # for a request's masks, and for each of its tokens more: they take 0.1 ms
_AT_ONCE = 2  # compilations; llguidance cannot be broken off, so one that is late goes on for a while
_KEPT = 32  # compiled grammars: the next request with the same one copies it, which takes microseconds

# Between the parts of JSON. A model that is lost writes white space for ever where the grammar lets it.
_WHITE_SPACE = r"(?:\x20|\n{1,2}[\x20\t]{0,18})"
# Without it, text that can only be one way is tokenized by llguidance, which calls back into Python, where Ctrl-C is
# an exception that it takes for its own failure. With it, the model chooses among the tokens that spell the same.
_FOOTER = '\n%llguidance {"no_forcing": true}\n'


class TokenBytes(Protocol):
    """What is read of a tokenizer."""

    @property
    def end_ids(self) -> Collection[int]: ...
    @property
    def hidden_ids(self) -> Collection[int]: ...
    def vocabulary_bytes(self) -> list[bytes]: ...


@dataclass(frozen=True)
class Grammar:
    """What a request's text must be, made by one of the class methods."""

    kind: Literal["json_object", "json_schema", "regex", "grammar"]
    text: str  # the schema as JSON, the regular expression, the grammar
    after: str = ""  # free text up to this, and with it, comes first: a thought, which is not to be bound
    instead: str = ""  # a grammar of which it may be a text in its place

    @classmethod
    def json_object(cls) -> Grammar:
        """Any JSON object."""
        return cls("json_object", '{"type": "object"}')

    @classmethod
    def json_schema(cls, schema: Mapping[str, Any] | str) -> Grammar:
        """JSON that fits a schema: a dict, or its text. Properties come in the schema's order; keywords that cannot be
        enforced are refused, and not ignored."""
        if isinstance(schema, str):
            try:
                schema = json.loads(schema)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"json_schema: this is no JSON: {_line(error)}; give a schema") from None
        if not isinstance(schema, Mapping):
            raise ValueError(f"json_schema: a schema is a JSON object, not {type(schema).__name__}")
        try:
            text = json.dumps(dict(schema), allow_nan=False)
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"json_schema: this is no JSON: {_line(error)}; give a schema") from None
        return cls("json_schema", text)

    @classmethod
    def regex(cls, pattern: str) -> Grammar:
        """Text that a regular expression matches from beginning to end. No look-around, no back-references."""
        return cls("regex", pattern)

    @classmethod
    def grammar(cls, source: str) -> Grammar:
        """Text by a context-free grammar: Lark's notation as llguidance has it, or llama.cpp's GBNF."""
        return cls("grammar", source)

    def behind(self, end: str) -> Grammar:
        """The same behind a free text that ends so."""
        return replace(self, after=end)

    def otherwise(self, source: str) -> Grammar:
        """The same, or a text by that grammar: Lark that begins with its start rule. No other rule of it may bear the
        name of one here, so this is for the forms that are no grammar."""
        return replace(self, instead=source)

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise ValueError(f"{self.kind}: must be text, not {type(self.text).__name__}")
        if not self.text.strip():
            raise ValueError(f"{self.kind}: is empty; give one, or leave it out")
        if len(self.text) > MAX_SIZE:
            raise ValueError(f"{self.kind}: {len(self.text)} characters; {MAX_SIZE} is the most; make it smaller")

    def lark(self) -> str:
        """The same in llguidance's Lark notation. ValueError if that is impossible."""
        from llguidance import LLMatcher
        from llguidance.gbnf_to_lark import any_to_lark

        if self.kind in ("json_object", "json_schema"):
            # The schema's own x-guidance could make it lenient.
            options = {"whitespace_pattern": _WHITE_SPACE}
            source = f"start: %json {json.dumps({**json.loads(self.text), 'x-guidance': options})}"
        elif self.kind == "regex":
            source = json.loads(LLMatcher.grammar_from_regex(self.text))["grammars"][0]["lark_grammar"]
        else:
            try:
                source = any_to_lark(self.text)
            except Exception as error:  # its own class for what is no GBNF, and others for what it did not foresee
                raise ValueError(_line(error)) from None
        if self.instead:
            source = f"start: form | other\nform:{source.removeprefix('start:')}\nother:{self.instead[6:]}\n"
        if self.after:
            if not source.startswith("start:"):
                raise ValueError("free text before it needs a grammar that begins with its start rule")
            source = (
                f"start: free gap answer\nfree[suffix={json.dumps(self.after)}]: /(.|\\n)*/\ngap: /\\n{{1,2}}/ |\n"
                f"answer:{source.removeprefix('start:')}"
            )
        return str(source) + _FOOTER


class Matcher:
    """One request's place in its grammar. What it allows depends on the tokens it accepted, and on nothing else."""

    def __init__(self, matcher: LLMatcher, end_bits: int, n_bytes: int) -> None:
        self._matcher = matcher
        self._end_bits = end_bits
        self._n_bytes = n_bytes
        self._left = MASK_SECONDS

    def copy(self) -> Matcher:
        return Matcher(self._matcher.deep_copy(), self._end_bits, self._n_bytes)

    @property
    def complete(self) -> bool:
        """The text fits, and nothing can follow."""
        return self._matcher.is_stopped() and not self._matcher.is_error()

    def mask(self, hold_end: bool = False) -> bytes:
        """A bit for each token that may come next, as the core's sampler wants them. hold_end: end-of-text tokens only
        where nothing else may come. ValueError: the grammar has become too complex, takes too long, or was given a
        token that it did not allow."""
        if not self._matcher.is_error():
            start = thread_time()
            bits = self._matcher.compute_bitmask()[: self._n_bytes]
            if hold_end:
                others = int.from_bytes(bits, "little") & ~self._end_bits
                bits = others.to_bytes(self._n_bytes, "little") if others else bits
            self._left += MASK_SECONDS_EACH - (thread_time() - start)
            if self._left < 0:
                raise ValueError("the grammar takes too long to be followed; make it simpler")
        if self._matcher.is_error():
            raise ValueError(
                f"the grammar cannot be followed further: {_line(self._matcher.get_error())}; make it simpler"
            )
        return bits

    def accept(self, token: int) -> None:
        """Never raises: `mask` does, if the token was not allowed."""
        self._matcher.consume_token(token)


class GrammarCompiler:
    """Makes matchers for one vocabulary. Threads may share it."""

    def __init__(self, tokenizer: TokenBytes, n_vocab: int, seconds: float = SECONDS) -> None:
        """n_vocab: bits of a mask; a model may have logits for more tokens than its tokenizer knows."""
        self._tokenizer = tokenizer
        self._n_vocab = n_vocab
        self._seconds = seconds
        self._vocabulary: LLTokenizer | None = None  # made when first needed: 100 bytes or so for each token
        self._building = threading.Lock()
        self._end_bits = sum(1 << token for token in tokenizer.end_ids)
        self._compiled: OrderedDict[Grammar, Matcher] = OrderedDict()  # none of them was given a token
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """What the first grammar would have to wait for: up to some seconds for a large vocabulary."""
        self._llguidance_vocabulary()

    def matcher(self, grammar: Grammar) -> Matcher:
        """At the grammar's beginning. ValueError: it does not compile, or takes too much to do so. BusyError: others
        are being compiled, and take long."""
        with self._lock:
            if (known := self._compiled.get(grammar)) is not None:
                self._compiled.move_to_end(grammar)
                return known.copy()
        try:
            vocabulary = self._llguidance_vocabulary()
            compiled = _within(self._seconds, lambda: self._compile(grammar, vocabulary))
        except ValueError as error:
            raise ValueError(f"{grammar.kind}: {error}") from None
        with self._lock:
            self._compiled[grammar] = compiled
            while len(self._compiled) > _KEPT:
                self._compiled.popitem(last=False)
        return compiled.copy()

    def _compile(self, grammar: Grammar, vocabulary: LLTokenizer) -> Matcher:
        from llguidance import LLMatcher, LLParserLimits

        limits = LLParserLimits(verbose_errors=False)
        compiled = LLMatcher(vocabulary, grammar.lark(), log_level=0, limits=limits)
        if not compiled.is_error():
            first = int.from_bytes(compiled.compute_bitmask(), "little")
            if not compiled.is_error() and not first & ~self._end_bits:
                raise ValueError("it allows no text at all; correct it")
        if compiled.is_error():
            raise ValueError(_why(compiled.get_error()))
        return Matcher(compiled, self._end_bits, -(-self._n_vocab // 32) * 4)

    def _llguidance_vocabulary(self) -> LLTokenizer:
        with self._building:
            if self._vocabulary is None:
                self._vocabulary = self._build()
            return self._vocabulary

    def _build(self) -> LLTokenizer:
        from llguidance import LLTokenizer

        tokens = self._tokenizer.vocabulary_bytes()[: self._n_vocab]
        tokens += [b""] * (self._n_vocab - len(tokens))
        ends = sorted(end for end in self._tokenizer.end_ids if end < self._n_vocab)
        specials = sorted({*ends, *(token for token in self._tokenizer.hidden_ids if token < self._n_vocab)})
        if not ends:  # of a model that knows none; one must be there, so it is one that cannot be drawn
            tokens.append(b"<end>")
            ends, specials = [self._n_vocab], [*specials, self._n_vocab]
        wrapper = cast("TokenizerWrapper", _Wrapper(tokens, specials, ends[0]))
        return LLTokenizer(wrapper, n_vocab=len(tokens), eos_token=ends)


class _Wrapper:
    """A tokenizer as llguidance wants to see one (its TokenizerWrapper, in types only)."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, tokens: list[bytes], specials: list[int], end: int) -> None:
        self.tokens = tokens
        self.special_token_ids = specials
        self.eos_token_id = end

    def __call__(self, text: str) -> list[int]:
        raise AssertionError("llguidance has no text to tokenize where nothing is forced")


_compilations = threading.BoundedSemaphore(_AT_ONCE)


def _within(seconds: float, work: Callable[[], T]) -> T:
    """What the work returns or raises; ValueError if it takes longer. It goes on in its thread then, and as long as too
    many do, BusyError."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(work())
        except BaseException as error:
            errors.append(error)
        finally:
            _compilations.release()

    if not _compilations.acquire(timeout=seconds):
        raise BusyError(f"other grammars are being compiled, for more than {seconds:g} s; send it again later")
    thread = threading.Thread(target=run, name="pyedge-grammar", daemon=True)
    try:
        thread.start()
    except BaseException:
        _compilations.release()
        raise
    thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise ValueError(f"it takes more than {seconds:g} s to compile; make it simpler")
    return results[0]


def _why(error: str) -> str:
    """What is said of a grammar that llguidance does not take."""
    if error.startswith("NoExtension"):
        return "it allows no text at all: a $ref or rule may lead back to itself with nothing between; correct it"
    if (schema := error.partition("failed to compile JSON schema: ")[2]) and (first := schema.splitlines()):
        error = first[0]  # what follows is a source that is not the one that was given
    return f"it does not compile: {_line(error)}; correct it"


def _line(error: object) -> str:
    """An error of another program in one line."""
    text = " ".join(str(error).split())
    return text if len(text) <= 200 else text[:197] + "..."
