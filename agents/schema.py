"""JSON schemas as model servers take them, and the one parser of model answers."""

from __future__ import annotations

import json
from typing import Any

from pydantic import BaseModel, ValidationError

SHOWN = 12
"""Problems of one answer that are named; the rest follow from them as a rule."""


def strict_schema(kind: type[BaseModel]) -> dict[str, Any]:
    """The schema of `kind` with references put in place, every field required and no other field allowed.

    Servers that hold a model to a schema want it closed and without siblings of `$ref`; no type here is recursive.
    """
    raw = kind.model_json_schema()
    closed: dict[str, Any] = _closed(raw, raw.get("$defs", {}))
    return closed


def argument_schema(raw: dict[str, Any]) -> dict[str, Any]:
    """A tool's argument schema with references put in place; optional arguments stay optional."""
    inlined: dict[str, Any] = _inlined(raw, raw.get("$defs", {}))
    return inlined


def json_object_in(text: str) -> str:
    """The first JSON object in `text`, without fence or prose around it; `text` itself when there is none."""
    decoder = json.JSONDecoder()
    start = text.find("{")
    while start >= 0:
        try:
            _, end = decoder.raw_decode(text, start)
        except json.JSONDecodeError:
            start = text.find("{", start + 1)
            continue
        return text[start:end]
    return text.strip()


def describe(error: ValidationError) -> str:
    """What is wrong with an answer, a line a problem, for the model that gave it."""
    problems = error.errors(include_url=False)
    lines = [f"- {'.'.join(map(str, p['loc'])) or 'the answer'}: {p['msg']}" for p in problems[:SHOWN]]
    left = len(problems) - SHOWN
    return "\n".join([*lines, f"- and {left} more"] if left > 0 else lines)


def _inlined(node: Any, defs: dict[str, Any]) -> Any:
    if isinstance(node, list):
        return [_inlined(item, defs) for item in node]
    if not isinstance(node, dict):
        return node
    if "$ref" in node:
        target = _inlined(defs[node["$ref"].rsplit("/", 1)[-1]], defs)
        beside = {key: value for key, value in node.items() if key != "$ref"}
        return {**target, **beside}
    return {key: _inlined(value, defs) for key, value in node.items() if key != "$defs" and not _is_title(key, value)}


def _closed(node: Any, defs: dict[str, Any]) -> Any:
    return _close(_inlined(node, defs))


def _close(node: Any) -> Any:
    if isinstance(node, list):
        return [_close(item) for item in node]
    if not isinstance(node, dict):
        return node
    done = {key: _close(value) for key, value in node.items() if key != "default"}
    if isinstance(done.get("properties"), dict):
        done["required"] = list(done["properties"])
        done["additionalProperties"] = False
    return done


def _is_title(key: str, value: Any) -> bool:
    """pydantic's generated title is a string; a field that is itself named `title` is a schema."""
    return key == "title" and isinstance(value, str)
