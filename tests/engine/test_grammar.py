"""Structured output on a tiny random model, which knows nothing of JSON: what it writes fits all the same."""

import json
import re
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tinymodel import write_tiny_llama

from pyedge import LLM, Grammar, SamplingParams
from pyedge.engine import grammar as grammar_module
from pyedge.engine.grammar import GrammarCompiler, Matcher
from pyedge.errors import BusyError
from pyedge.tokenizers import Tokenizer

COLOR = {
    "type": "object",
    "properties": {"color": {"enum": ["red", "green"]}, "ok": {"type": "boolean"}},
    "required": ["color", "ok"],
    "additionalProperties": False,
}
WILD = SamplingParams(temperature=1.5, top_k=0, top_p=1.0, min_p=0.0, max_tokens=400)


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    path = write_tiny_llama(tmp_path_factory.mktemp("model") / "tiny.gguf", n_vocab=300)  # more rows than tokens
    with LLM(path, kv_memory="4MB", threads=1) as llm:
        yield llm
        llm.engine.check_integrity()


def schemas(depth: int = 2) -> st.SearchStrategy[dict[str, Any]]:
    leaves: list[st.SearchStrategy[dict[str, Any]]] = [
        st.just({"type": "boolean"}),
        st.just({"type": "null"}),
        st.builds(lambda low, n: {"type": "integer", "minimum": low, "maximum": low + n}, st.integers(-9, 99), small),
        st.builds(lambda low, n: {"type": "string", "minLength": low, "maxLength": low + n}, small, small),
        st.builds(lambda values: {"enum": values}, st.lists(st.text(max_size=4), min_size=1, max_size=4, unique=True)),
        st.sampled_from(["^[a-f]{2,6}$", "^(x|yz)+$", r"^\d{1,3}\.\d$"]).map(
            lambda p: {"type": "string", "pattern": p, "maxLength": 12}
        ),
        st.sampled_from(["date", "uuid", "ipv4"]).map(lambda f: {"type": "string", "format": f}),
    ]
    if depth == 0:
        return st.one_of(leaves)
    inner = schemas(depth - 1)
    arrays = st.builds(
        lambda items, low, n: {"type": "array", "items": items, "minItems": low, "maxItems": low + n},
        inner,
        st.integers(0, 2),
        st.integers(0, 2),
    )
    objects = st.builds(
        lambda properties, closed: {
            "type": "object",
            "properties": properties,
            "required": sorted(properties)[::2],
            "additionalProperties": closed,
        },
        st.dictionaries(st.text(min_size=1, max_size=3), inner, max_size=3),
        st.just(False),
    )
    either = st.builds(lambda a, b: {"anyOf": [a, b]}, inner, inner)
    return st.one_of(*leaves, arrays, objects, either)


small = st.integers(0, 4)
_ended: list[bool] = []


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schemas(), st.integers(0, 2**32))
def test_what_is_written_fits_the_schema(llm: LLM, schema: dict[str, Any], seed: int) -> None:
    rules = [replace(WILD, seed=seed + i, grammar=Grammar.json_schema(schema)) for i in range(3)]
    for out in llm.generate(["the cat"] * 3, rules):
        _ended.append(out.finish_reason == "stop")
        assert not re.search(r"\s{21}", out.text)
        if out.finish_reason == "stop":
            value = json.loads(out.text)
            jsonschema.validate(value, schema, format_checker=jsonschema.FormatChecker())
            assert out.text == out.text.strip()


def test_most_of_that_came_to_an_end() -> None:
    if _ended:  # the one above ran
        assert sum(_ended) > len(_ended) / 2


def test_json_object_and_limits(llm: LLM) -> None:
    rules = replace(WILD, grammar=Grammar.json_schema(COLOR))
    for seed in range(5):
        whole = llm.generate("on", replace(rules, seed=seed))[0]
        assert whole.finish_reason == "stop"
        assert json.loads(whole.text).keys() == {"color", "ok"}
        cut = llm.generate("on", replace(rules, seed=seed, max_tokens=3))[0]
        assert (cut.finish_reason, cut.token_ids) == ("length", whole.token_ids[:3])
        exact = llm.generate("on", replace(rules, seed=seed, max_tokens=len(whole.token_ids)))[0]
        assert (exact.finish_reason, exact.text) == ("stop", whole.text)  # complete with its last token
        events = list(llm.stream("on", replace(rules, seed=seed)))
        assert "".join(event.text for event in events) == whole.text
        assert events[-1].finish_reason == "stop"
    for seed in range(3):
        out = llm.generate("on", replace(WILD, seed=seed, grammar=Grammar.json_object()))[0]
        assert out.text.startswith("{")
        if out.finish_reason == "stop":
            assert isinstance(json.loads(out.text), dict)


def test_regular_expressions_and_grammars(llm: LLM) -> None:
    gbnf = 'root ::= verb " " [0-9]+\nverb ::= "up" | "down"'
    lark = 'start: ("ab" | "c")+ "." \n%llguidance {"no_forcing": false}'  # which would be called back
    for made, pattern in (
        (Grammar.regex(r"[a-c]{3}/\d"), r"[a-c]{3}/\d"),
        (Grammar.regex(r"(é|ü){2,4}\n"), r"(é|ü){2,4}\n"),
        (Grammar.grammar(gbnf), r"(up|down) [0-9]+"),
        (Grammar.grammar(lark), r"(ab|c)+\."),
    ):
        out = llm.generate("on", replace(WILD, seed=3, grammar=made, max_tokens=200))[0]
        if out.finish_reason == "stop":
            assert re.fullmatch(pattern, out.text)
        else:
            assert made.kind == "grammar"  # without a bound


def test_what_is_drawn_is_the_models_choice_among_what_is_allowed(llm: LLM) -> None:
    """Greedy: at each step the most likely of the allowed tokens; log-probabilities are the model's own."""
    made = Grammar.regex("[a-z ]{8}")
    out = llm.generate("on", SamplingParams(temperature=0, grammar=made, logprobs=0))[0]
    matcher = llm.engine._grammars.matcher(made)
    ids = list(out.prompt_token_ids)
    for token, reported in zip(out.token_ids, out.logprobs or (), strict=True):
        row = llm.logits(ids)[-1].astype("f8")
        allowed = bits(matcher)
        assert token == max(allowed, key=lambda t: (row[t], -t))
        assert reported[token] == pytest.approx(row[token] - row.max() - _log_sum(row), abs=1e-5)
        matcher.accept(token)
        ids.append(token)
    assert matcher.complete
    assert len(out.text) == 8


def _log_sum(row: Any) -> float:
    import numpy as np

    return float(np.log(np.exp(row - row.max()).sum()))


def bits(matcher: Matcher, hold_end: bool = False) -> set[int]:
    mask = int.from_bytes(matcher.mask(hold_end), "little")
    return {i for i in range(mask.bit_length()) if mask >> i & 1}


def test_alone_in_company_and_after_preemption_the_same(llm: LLM) -> None:
    rules = [replace(WILD, seed=i, max_tokens=60, ignore_eos=True, grammar=g) for i, g in enumerate(GRAMMARS * 2)]
    alone = [llm.generate("the cat", rule)[0].token_ids for rule in rules]
    assert [out.token_ids for out in llm.generate(["the cat"] * len(rules), rules)] == alone
    small = 10 * 16 * 2 * 2 * 4 * 16 * 2  # pages for two of them, or so
    with LLM(llm.path, kv_memory=small, threads=1, prefix_cache=False) as tight:
        outs = tight.generate(["the cat"] * len(rules), rules)
        assert [out.token_ids for out in outs] == alone
        assert sum(out.metrics.preemptions for out in outs) > 0


GRAMMARS = [None, Grammar.regex("[a-z]{50,}"), Grammar.json_object()]


def test_several_answers_have_a_place_each(llm: LLM) -> None:
    rules = replace(WILD, seed=5, grammar=Grammar.regex("[a-z]{6}"))
    requests = llm.engine.requests(llm.tokenizer.encode("the cat"), replace(rules, n=3))
    for request in requests:
        llm.engine.add(request)
    while llm.engine.has_work:
        llm.engine.step()
    assert [r.text for r in requests] == [llm.generate("the cat", replace(rules, seed=5 + i))[0].text for i in range(3)]


def test_the_end_is_held_off_while_something_else_may_come(llm: LLM) -> None:
    for held in ({"ignore_eos": True}, {"min_tokens": 30}):
        fixed = llm.generate("on", replace(WILD, seed=1, grammar=Grammar.regex("[ab]{4}"), **held))[0]
        assert (fixed.finish_reason, len(fixed.text)) == ("stop", 4)
        open_end = llm.generate("on", replace(WILD, seed=1, grammar=Grammar.regex("[ab]*"), max_tokens=40, **held))[0]
        assert len(open_end.token_ids) >= 30
        assert not set(open_end.token_ids[:30]) & llm.tokenizer.end_ids
    ended = [llm.generate("on", replace(WILD, seed=i, grammar=Grammar.regex("[ab]*")))[0] for i in range(3)]
    assert all(out.token_ids[-1] in llm.tokenizer.end_ids for out in ended)  # which the mask offers


def test_a_stop_string_cuts(llm: LLM) -> None:
    rules = replace(WILD, seed=1, grammar=Grammar.json_schema(COLOR), stop=['"ok"'])
    out = llm.generate("on", rules)[0]
    assert (out.finish_reason, '"ok"' in out.text, '"color"' in out.text) == ("stop", False, True)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Grammar.json_schema({"type": "strin"}), "strin"),
        (lambda: Grammar.json_schema({"type": "array", "uniqueItems": True}), "uniqueItems"),
        (
            lambda: Grammar.json_schema({"type": "array", "uniqueItems": True, "x-guidance": {"lenient": True}}),
            "unique",
        ),
        (lambda: Grammar.json_schema({"type": "string", "format": "colour"}), "colour"),
        (lambda: Grammar.json_schema({"$ref": "#/$defs/none"}), "none"),
        (lambda: Grammar.json_schema({"$ref": "https://example.org/schema"}), "example.org"),
        (lambda: Grammar.json_schema(False), "JSON object, not bool"),  # type: ignore[arg-type]
        (lambda: Grammar.json_schema({"enum": []}), "json_schema: "),
        (lambda: Grammar.json_schema("{"), "no JSON"),
        (lambda: Grammar.json_schema("[]"), "JSON object, not list"),
        (lambda: Grammar.json_schema({"const": float("nan")}), "no JSON"),
        (lambda: Grammar.json_schema({"const": {1}}), "no JSON"),
        (lambda: Grammar.json_schema({"enum": ["x" * grammar_module.MAX_SIZE]}), "the most"),
        (lambda: Grammar.regex("("), "unclosed group"),
        (lambda: Grammar.regex(r"(a)\1"), "regex: it does not compile"),
        (lambda: Grammar.regex(""), "empty"),
        (lambda: Grammar.regex(7), "must be text, not int"),  # type: ignore[arg-type]
        (lambda: Grammar.grammar("nonsense"), "grammar: "),
        (lambda: Grammar.grammar("root ::= other"), "other"),
        (lambda: Grammar.grammar('start: "a" <|nobody|>'), "nobody"),
        (lambda: Grammar.grammar("start: " + "(" * 20000 + '"a"' + ")" * 20000), "deeply nested"),
        (lambda: Grammar.regex("(" * 20000 + "a" + ")" * 20000), "regex: "),
        (
            lambda: Grammar.json_schema({"$ref": "#"}),
            "json_schema: it allows no text at all: a $ref or rule may",
        ),
        (
            lambda: Grammar.json_schema({"$ref": "#/$defs/x"}),
            "does not compile: Pointer '/$defs/x' does not exist;",
        ),
    ],
)
def test_what_does_not_compile_is_refused_when_the_request_is_made(llm: LLM, make: Any, why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)) as error:
        llm.engine.request([1], SamplingParams(grammar=make()))
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 300


def test_a_compilation_has_a_deadline(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = GrammarCompiler(llm.tokenizer, 300, seconds=0.05)
    slow._vocabulary = llm.engine._grammars._llguidance_vocabulary()
    done = threading.Event()
    compile = GrammarCompiler._compile

    def late(self: GrammarCompiler, *given: Any) -> Matcher:
        done.wait(20)
        return compile(self, *given)

    monkeypatch.setattr(GrammarCompiler, "_compile", late)
    before = time.perf_counter()
    for i in range(2):
        with pytest.raises(ValueError, match=r"takes more than 0\.05 s to compile"):
            slow.matcher(Grammar.regex(f"a{i}"))
    with pytest.raises(BusyError, match="other grammars are being compiled"):
        slow.matcher(Grammar.regex("b"))
    assert time.perf_counter() - before < 10
    done.set()
    monkeypatch.undo()
    slow._seconds = 20  # those that were late end now
    assert bits(slow.matcher(Grammar.regex("b"))) == set(llm.tokenizer.encode("b"))


def test_a_state_beyond_the_limits_ends_the_request_with_an_error(llm: LLM) -> None:
    request = llm.engine.request([1], replace(WILD, seed=1, grammar=Grammar.regex("[ab]{9}")))
    assert request.matcher is not None
    request.matcher.accept(llm.tokenizer.encode("z")[0])  # as if one had come that was not allowed
    other = llm.engine.request([1], replace(WILD, seed=1, max_tokens=4))
    llm.engine.add(request)
    llm.engine.add(other)
    while llm.engine.has_work:
        llm.engine.step()
    assert request.finish_reason == "abort"
    assert isinstance(request.error, ValueError)
    assert "the grammar cannot be followed further" in str(request.error)
    assert request.text == ""
    assert len(other.output_token_ids) == 4


def test_masks_have_a_limit_of_time(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    rules = replace(WILD, seed=1, grammar=Grammar.regex("[ab]{40}"), max_tokens=40)
    assert len(llm.generate({"prompt_token_ids": [1]}, rules)[0].text) == 40
    monkeypatch.setattr("pyedge.engine.grammar.MASK_SECONDS_EACH", -0.1)
    request = llm.engine.request([1], rules)
    llm.engine.add(request)
    while llm.engine.has_work:
        llm.engine.step()
    assert isinstance(request.error, ValueError)
    assert "takes too long" in str(request.error)
    assert 0 < request.n_output <= 10


def test_control_tokens_are_never_part_of_a_text(llm: LLM) -> None:
    matcher = llm.engine._grammars.matcher(Grammar.regex(r"(.|\n)*"))
    everything = set(range(llm.tokenizer.n_vocab)) - llm.tokenizer.hidden_ids
    whole = {t for t in everything if _starts_a_character(llm.tokenizer, t)}
    assert bits(matcher) == whole | llm.tokenizer.end_ids
    assert bits(matcher, hold_end=True) == whole


def _starts_a_character(tokenizer: Tokenizer, token: int) -> bool:
    data = tokenizer.token_bytes(token)
    return data[0] < 0x80 or 0xC2 <= data[0] <= 0xF4


def test_a_model_that_knows_no_end(llm: LLM) -> None:
    class Endless:
        end_ids: frozenset[int] = frozenset()
        hidden_ids: frozenset[int] = frozenset()

        def vocabulary_bytes(self) -> list[bytes]:
            return [bytes([65 + i]) for i in range(26)]

    for n_vocab in (26, 32, 64):
        matcher = GrammarCompiler(Endless(), n_vocab).matcher(Grammar.regex("AB?"))
        assert len(matcher.mask()) == -(-n_vocab // 32) * 4
        assert bits(matcher) == {0}
        matcher.accept(0)
        assert 1 in bits(matcher)
        matcher.accept(1)
        assert matcher.complete
