"""The rationale gate: a reason must name a mechanism and what it rests on. A pure function of the text.

It reads English and Chinese. It judges substance by form: whether a term of the field stands there and whether the text
points at something that can be looked up (a figure, a remark, a line, a place in the kernel, a class of shapes). It
cannot tell a true reason from a false one; the ablation and the hypothesis do that.
"""

from __future__ import annotations

import re
import tomllib
import unicodedata
from collections.abc import Iterable, Sequence
from functools import cache
from importlib import resources
from typing import Literal, NamedTuple

from kernelcrew.record import Record

Rule = Literal["missing", "long", "hidden", "order", "short", "list", "boilerplate", "mechanism", "evidence", "copy"]

MIN_WORDS = 7
"""Of a reason in English; two Chinese characters count as one word."""
MIN_CONTENT = 4
"""Words that are no stock phrase."""
MOST_CHARACTERS = 4000
"""Of a whole candidate's reasons together."""
ADD = "say which mechanism makes it faster (which latency it hides, which bytes it saves) and on what evidence"

_WORD = re.compile(r"[A-Za-z][A-Za-z0-9'-]*")
_HAN = re.compile(r"[\u3400-\u9fff]")


class Words(NamedTuple):
    """`rationale.toml`, ready to be searched with."""

    orders: re.Pattern[str]
    """Text that speaks to whoever judges."""
    mechanisms: dict[str, re.Pattern[str]]
    """Terms of the field by what they speak of."""
    evidence: dict[str, re.Pattern[str]]
    """What a reason may rest on, by kind."""
    links: frozenset[str]
    """Words that make a sentence of a list of terms."""
    links_chinese: frozenset[str]
    """The same."""
    stock: frozenset[str]
    """Words that say nothing of their own, links included."""
    stock_chinese: re.Pattern[str]
    """The same."""


@cache
def vocabulary() -> Words:
    """The words that ship with kernelcrew."""
    text = resources.files("kernelcrew.tools").joinpath("rationale.toml").read_text(encoding="utf-8")
    raw = tomllib.loads(text)
    links = frozenset(raw["links"])
    return Words(
        orders=_any(raw["orders"]),
        mechanisms={name: _any(terms) for name, terms in raw["mechanisms"].items()},
        evidence={name: _any(terms) for name, terms in raw["evidence"].items()},
        links=links,
        links_chinese=frozenset(raw["links_chinese"]),
        stock=links | frozenset(raw["stock"]),
        stock_chinese=_any(raw["stock_chinese"]),
    )


def _any(terms: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(terms), re.IGNORECASE | re.MULTILINE)


class BrokenRule(Record):
    """One thing that is wrong with a reason."""

    rule: Rule
    """Its name."""
    message: str
    """What to do about it."""


class Reasoned(Record):
    """What the gate says of one reason."""

    status: Literal["ok", "refused"]
    """Whether it may stand."""
    broken: tuple[BrokenRule, ...] = ()
    """The rules it breaks; the first one found, since the rest follows from it."""
    mechanisms: tuple[str, ...] = ()
    """What its terms speak of."""
    evidence: tuple[str, ...] = ()
    """Kinds of what it points at."""

    @property
    def figure(self) -> str:
        """One line for the record."""
        if self.broken:
            return f"{self.broken[0].rule}: {self.broken[0].message}"
        return f"names {', '.join(self.mechanisms)}; rests on {', '.join(self.evidence)}"


def judge_rationale(text: str, others: Iterable[str] = ()) -> Reasoned:
    """Judge one reason. `others` are the reasons of different changes: a copy of one of them explains neither."""
    plain = unicodedata.normalize("NFKC", text[: MOST_CHARACTERS + 1])
    known = vocabulary()
    mechanisms = tuple(name for name, pattern in known.mechanisms.items() if pattern.search(plain))
    evidence = tuple(name for name, pattern in known.evidence.items() if pattern.search(plain))
    broken = _first_broken(plain, mechanisms, evidence, others)
    return Reasoned(
        status="refused" if broken else "ok",
        broken=(broken,) if broken else (),
        mechanisms=mechanisms,
        evidence=evidence,
    )


def same_words(one: str, other: str) -> bool:
    """Whether two reasons are copies: case, white space, punctuation and figures apart."""
    return _bare(one) == _bare(other)


def _first_broken(
    text: str, mechanisms: Sequence[str], evidence: Sequence[str], others: Iterable[str]
) -> BrokenRule | None:
    known, words = vocabulary(), _WORD.findall(text)
    han = _HAN.findall(text)
    size = len(words) + len(han) // 2
    if not size:
        return _broken("missing", f"there is none: begin the source with a comment, or give --why, and {ADD}")
    if len(text) > MOST_CHARACTERS:
        return _broken("long", f"it is longer than {MOST_CHARACTERS} characters: in a few sentences, {ADD}")
    if hidden := _hidden(text):
        return _broken("hidden", f"it holds {hidden}: write plain letters and {ADD}")
    if known.orders.search(text):
        return _broken("order", f"it speaks to the reader as an order: leave that out and {ADD}")
    if size < MIN_WORDS:
        counted = "1 word is" if size == 1 else f"{size} words are"
        return _broken("short", f"{counted} too few, {MIN_WORDS} are the least: {ADD}")
    if not any(w.lower() in known.links for w in words) and not known.links_chinese & set(text):
        return _broken("list", f"it is a list of terms, not a sentence: {ADD}")
    content = {w.lower() for w in words if len(w) > 2} - known.stock
    if len(content) + len(set(_HAN.findall(known.stock_chinese.sub("", text)))) // 2 < MIN_CONTENT:
        return _broken("boilerplate", f"it says nothing of its own: {ADD}")
    if not mechanisms:
        return _broken("mechanism", f"it names no mechanism: {ADD}")
    if not evidence:
        return _broken(
            "evidence",
            "it rests on nothing that can be looked up: name a figure of the profile, a compiler's remark, a source "
            f"line or loop, or the shapes that the mechanism holds back; {ADD}",
        )
    if any(same_words(text, other) for other in others):
        return _broken("copy", f"it is word for word the reason of another change: {ADD}")
    return None


def _hidden(text: str) -> str:
    """Characters that a person does not see, or letters that only look like others."""
    if any(unicodedata.category(c) in ("Cf", "Co", "Cn") for c in text):
        return "invisible characters"
    if any(re.search("[A-Za-z]", word) and re.search("[\u0400-\u04ff]", word) for word in text.split()):
        return "letters of two scripts in one word"
    return ""


def _bare(text: str) -> str:
    letters = re.sub(r"[\d\W_]+", " ", unicodedata.normalize("NFKC", text).lower())
    return " ".join(letters.split())


def _broken(rule: Rule, message: str) -> BrokenRule:
    return BrokenRule(rule=rule, message=message)
