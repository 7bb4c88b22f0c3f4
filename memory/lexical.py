"""Search by words: small, pure, exact. It carries what vectors miss: names of macros and recipes, other languages.

Scores follow Okapi BM25 (Robertson and Zaragoza, 2009) with its usual parameters.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from importlib import resources

K1 = 1.2
B = 0.75
NEAR_WEIGHT = 0.5
"""A term that only the glossary ties to the question counts half of one that stands in it."""

_WORD = re.compile(r"[a-z0-9]+(?:[_.-][a-z0-9]+)*|[\u3400-\u9fff]+")
_PART = re.compile(r"[_.-]")
_VERB_ENDINGS = (
    *("isation", "ization", "ations", "ation"),
    *("ising", "izing", "ised", "ized", "ise", "ize", "ings", "ing"),
)
_STOP = frozenset(
    (
        *("a", "an", "and", "are", "as", "at", "be", "but", "by", "can", "did", "do", "does", "for", "from", "has"),
        *("have", "how", "if", "in", "into", "is", "it", "its", "of", "on", "or", "so", "than", "that", "the", "then"),
        *("this", "to", "was", "were", "what", "when", "where", "which", "why", "will", "with", "would"),
    )
)


def words(text: str) -> list[str]:
    """Terms of a text in order: lower case, plural and verb endings off, `snake_case` whole and in parts, Chinese as
    pairs of characters."""
    found: list[str] = []
    for match in _WORD.findall(text.lower()):
        if match[0] >= "\u3400":
            found += [match] if len(match) == 1 else [match[i : i + 2] for i in range(len(match) - 1)]
            continue
        parts = _PART.split(match)
        if len(parts) > 1:
            found.append(match)
        found += [_stem(part) for part in parts if part not in _STOP]
    return found


def _stem(word: str) -> str:
    """Take off the endings that separate forms of one word; short words stay."""
    for ending in _VERB_ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 4:
            return word[: -len(ending)]
    for ending in ("ies", "ied"):
        if word.endswith(ending) and len(word) > 4:
            return word[:-3] + "y"
    for ending in ("ed", "es", "s", "e"):
        if word.endswith(ending) and len(word) - len(ending) >= 3 and not word.endswith("ss"):
            return word[: -len(ending)]
    return word


@lru_cache(maxsize=1)
def glossary() -> tuple[tuple[tuple[str, ...], ...], ...]:
    """Groups of phrases of the field that mean nearly the same, each as its terms. Read from `data/glossary.toml`."""
    text = resources.files("kernelcrew.memory").joinpath("data/glossary.toml").read_text(encoding="utf-8")
    return tuple(tuple(tuple(words(phrase)) for phrase in group) for group in tomllib.loads(text)["groups"])


def expand(question: str) -> dict[str, float]:
    """Terms of a question with their weights: its own at 1, those of its glossary groups at `NEAR_WEIGHT`."""
    own = words(question)
    weights = dict.fromkeys(own, 1.0)
    present = set(own)
    for group in glossary():
        if any(present.issuperset(phrase) for phrase in group):
            for phrase in group:
                for term in phrase:
                    weights.setdefault(term, NEAR_WEIGHT)
    return weights


def scores(question: str, documents: Sequence[str]) -> list[float]:
    """BM25 score of each document for the question; 0 where no term is shared."""
    if not documents:
        return []
    weights = expand(question)
    counts = [Counter(words(document)) for document in documents]
    lengths = [sum(count.values()) for count in counts]
    mean = sum(lengths) / len(lengths) or 1.0
    holding = {term: sum(1 for count in counts if term in count) for term in weights}
    total = len(documents)
    rarity = {term: math.log(1 + (total - n + 0.5) / (n + 0.5)) for term, n in holding.items()}

    def one(count: Counter[str], length: int) -> float:
        norm = K1 * (1 - B + B * length / mean)
        return sum(w * rarity[t] * count[t] * (K1 + 1) / (count[t] + norm) for t, w in weights.items() if t in count)

    return [one(count, length) for count, length in zip(counts, lengths, strict=True)]


def nearness(left: str, right: str) -> float:
    """Cosine of the two texts' term counts, 0 to 1: whether two reasons say the same."""
    a, b = Counter(words(left)), Counter(words(right))
    dot = sum(n * b[term] for term, n in a.items())
    size = math.sqrt(sum(n * n for n in a.values()) * sum(n * n for n in b.values()))
    return dot / size if size else 0.0
