"""Two rankings made one: nearness of vectors and shared words, by reciprocal rank fusion (Cormack and others, 2009)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from kernelcrew.memory.lexical import scores
from kernelcrew.memory.nouns import Rationale

DAMPING = 60
"""The usual constant of reciprocal rank fusion: how little the first places count above the next."""
LEAST_COSINE = 0.15
"""Below it two texts have nothing to do with each other: questions about other fields reached at most 0.09 on
MiniLM, weakly related ones 0.2 and more."""


class Ranked(NamedTuple):
    """An entry that may answer, before ranking."""

    entry: Rationale
    cosine: float | None
    """Nearness of its vector to the question's; None where vectors do not count or the index did not name it."""


def cosine(vector: Sequence[float], matrix: npt.NDArray[np.float64]) -> list[float]:
    """Cosine of one vector with each row of a matrix (entries x dimension)."""
    if matrix.size == 0:
        return []
    target = np.asarray(vector, dtype=np.float64)
    sizes = np.linalg.norm(matrix, axis=1) * np.linalg.norm(target)
    return [float(x) for x in matrix @ target / np.maximum(sizes, 1e-12)]


def fuse(question: str, ranked: Sequence[Ranked], n: int) -> list[tuple[Rationale, float, str]]:
    """The `n` best entries with fused score and how each was found (`vector`, `lexical` or `both`), best first."""
    lexical = scores(question, [f"{r.entry.mechanism} {r.entry.operator} {r.entry.text}" for r in ranked])
    by_words = _places({i: score for i, score in enumerate(lexical) if score > 0})
    near = {i: r.cosine for i, r in enumerate(ranked) if r.cosine is not None and r.cosine >= LEAST_COSINE}
    by_vector = _places(near)
    fused = {
        i: sum(1 / (DAMPING + places[i]) for places in (by_words, by_vector) if i in places)
        for i in by_words.keys() | by_vector.keys()
    }
    best = sorted(fused, key=lambda i: (-fused[i], ranked[i].entry.id))[:n]

    def how(i: int) -> str:
        return "both" if i in by_words and i in by_vector else "lexical" if i in by_words else "vector"

    return [(ranked[i].entry, fused[i], how(i)) for i in best]


def _places(values: dict[int, float]) -> dict[int, int]:
    """Place from 1, the largest value first; equal values share a place."""
    ordered = sorted(values.values(), reverse=True)
    first: dict[float, int] = {}
    for place, value in enumerate(ordered, 1):
        first.setdefault(value, place)
    return {i: first[value] for i, value in values.items()}
