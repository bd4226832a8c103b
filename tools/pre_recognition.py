"""Which `tokenizer.ggml.pre` a tokenizer.json means: by how it cuts words.

Owns the comparison. The rules are those of pyedge/tokenizers/pretokenizers.py. Regular expressions are written in many
ways that mean the same, and are split over several steps or built in; so the checkpoint's own cut a text, and so do the
rules' patterns, and where every word is the same the rules are.
"""

from __future__ import annotations

import logging
import random
from functools import cache
from operator import eq
from typing import TYPE_CHECKING

from pyedge.errors import ModelError
from pyedge.tokenizers.bpe import cutter
from pyedge.tokenizers.pretokenizers import PRE_TOKENIZERS

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from tokenizers.pre_tokenizers import PreTokenizer

log = logging.getLogger(__name__)

_APART = "e\u0301"

# One or more of every class that any rule tells from others: letters of all kinds, marks, digits and other numbers,
# white space, quotes, the ASCII marks that single rules name, other punctuation and symbols, CJK, and contractions.
_UNITS = [
    *"abzAZéßÄ\u03b1ΩжЯǅʰªºمשका์नगกあアー中文한", "\u0301", "\u093f", "\ufe0f",
    *"0123789²½Ⅷ٣", *"   \n\n\r\t\u00a0\u3000\u2028\x0b", "\r\n", "  ", "\n\n",
    *"'\u2019\"!?.,:;-_/\\|@#$%^&*()[]{}<>=+`~", *"。\uff0c、\uff01«»—…€©→😀\u06d4।،", "\x00", "\u200b", "\u200d",
    "'s", "'S", "'t", "'re", "'VE", "'m", "'ll", "'D", "'x", "don't", "HELLO", "Hello", "123", "1234", " a", " B",
]  # fmt: skip
_LENGTH = 12_000  # units: most pairs and many triples of them


@cache
def probe() -> str:
    """A text on which all rules differ that are not the same."""
    return "".join(random.Random(1).choices(_UNITS, k=_LENGTH))


@cache
def cuts_of(patterns: tuple[str, ...]) -> tuple[int, ...]:
    """Where the probe's words end by these patterns."""
    return _cuts(cutter(patterns, byte_level=True))


def _cuts(pre_tokenizer: PreTokenizer) -> tuple[int, ...]:
    return tuple(end for _, (_, end) in pre_tokenizer.pre_tokenize_str(probe()))


def recognised(library: Tokenizer, whole_words: bool) -> str:
    """The name. library: of a tokenizer.json. whole_words: that it takes a word that is a token as one, which need not
    make a difference, no more than NFC: rules that say otherwise come second."""
    cuts = _cuts(library.pre_tokenizer) if library.pre_tokenizer is not None else (len(probe()),)
    found = [name for name, rules in PRE_TOKENIZERS.items() if rules.byte_level and cuts_of(rules.patterns) == cuts]
    if not found:
        raise ModelError(
            "tokenizer.json: cuts words by rules that have no name here; if they are nearly those of another model, "
            "say --pre NAME (in Python, pre=NAME)"
        )
    composes = library.normalizer is not None and library.normalizer.normalize_str(_APART) != _APART
    wanted = (whole_words, composes)
    name = max(found, key=lambda n: tuple(map(eq, (PRE_TOKENIZERS[n].whole_words, PRE_TOKENIZERS[n].composes), wanted)))
    if PRE_TOKENIZERS[name].composes != composes:
        log.warning(
            "tokenizer.json: %s text to NFC, and pre %s says otherwise: letters with their marks apart will have other "
            "tokens than with transformers",
            "brings" if composes else "does not bring",
            name,
        )
    return name
