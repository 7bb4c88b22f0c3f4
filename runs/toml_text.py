"""TOML text of plain values: strings, numbers, booleans, lists and tables. None is left out, as TOML has none."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

BARE = re.compile(r"[A-Za-z0-9_-]+")


def toml_text(value: Mapping[str, Any], where: tuple[str, ...] = ()) -> str:
    """`value` as TOML; lists of tables become `[[tables]]`, tables inside lists deeper down stand inline."""
    plain = {k: v for k, v in value.items() if v is not None and not _is_table(v) and not _is_tables(v)}
    lines = [f"{_key(k)} = {_inline(v)}" for k, v in plain.items()]
    for name, inner in value.items():
        path = (*where, name)
        title = ".".join(_key(p) for p in path)
        if _is_table(inner):
            lines += ["", f"[{title}]", toml_text(inner, path).strip("\n")]
        elif _is_tables(inner):
            for one in inner:
                lines += ["", f"[[{title}]]", *(f"{_key(k)} = {_inline(v)}" for k, v in one.items() if v is not None)]
    return "\n".join(lines).strip("\n") + "\n"


def _is_table(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_tables(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(isinstance(v, Mapping) for v in value)


def _key(name: str) -> str:
    return name if BARE.fullmatch(name) else _string(name)


def _inline(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(k)} = {_inline(v)}" for k, v in value.items() if v is not None) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_inline(v) for v in value if v is not None) + "]"
    return _string(str(value))


def _string(text: str) -> str:
    """JSON's escapes are TOML's as well, but for the delete character, which JSON leaves as it is."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
