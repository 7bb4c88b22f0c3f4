"""Record, the base of every noun: frozen, unknown fields refused, a docstring under each field, a content hash."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from pydantic import BaseModel, ConfigDict


class Record(BaseModel):
    """A small frozen value. The docstring under a field is its description in the JSON schema."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    def content_hash(self) -> str:
        """16 hex digits of SHA-256 over the canonical JSON of this value."""
        return hash_of(self.model_dump(mode="json"))


def hash_of(*parts: Any) -> str:
    """16 hex digits of SHA-256 over the canonical JSON of `parts` (Records are dumped first)."""
    plain = [part.model_dump(mode="json") if isinstance(part, BaseModel) else part for part in parts]
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=_plain)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, set | frozenset):
        return sorted(value)
    return str(value)
