"""What the compiler says, read: diagnostics as JSON or text, and remarks on loops."""

from __future__ import annotations

import json
import re
from typing import Any

from kernelcrew.tools.nouns import Diagnostic, LoopRemark

MAX_DIAGNOSTICS = 50
IN_ORDER = "in-order reduction: vector code, but the additions stay one chain in source order"

_TEXT = re.compile(
    r"^(?P<file>[^:\s][^:]*):(?:(?P<line>\d+):(?:\d+:)?)? (?P<kind>fatal error|error|warning): (?P<words>.*?)"
    r"(?: \[(?P<option>-W[^\]]+)\])?$"
)
_LINKER = re.compile(r"^\S*ld(?:\.[a-z]+)?: (?P<words>.*)$")
_REMARK = re.compile(r"^(?P<file>[^:]+):(?P<line>\d+):\d+: (?P<kind>optimized|missed|note):\s+(?P<words>.*)$")
_VECTORIZED = re.compile(r"loop vectorized using (\d+) byte vectors")


def diagnostics(text: str, source: str) -> list[Diagnostic]:
    """Errors and warnings in what the compiler wrote to standard error; `source` is the candidate's file."""
    found: list[Diagnostic] = []
    for line in text.splitlines():
        stripped = line.strip()
        if stripped.startswith("[{") and stripped.endswith("}]"):
            found += _from_json(stripped, source)
        elif match := _TEXT.match(stripped):
            kind = "warning" if match["kind"] == "warning" else "error"
            at = int(match["line"] or 0) if match["file"].endswith(source) else 0
            found.append(Diagnostic(kind=kind, line=at, message=match["words"], option=match["option"] or ""))
        elif match := _LINKER.match(stripped):
            found.append(Diagnostic(kind="error", line=0, message=f"linker: {match['words']}"))
    return found[:MAX_DIAGNOSTICS]


def _from_json(line: str, source: str) -> list[Diagnostic]:
    try:
        items = json.loads(line)
    except json.JSONDecodeError:
        return []
    return [_one(item, source) for item in items if item.get("kind") in ("error", "fatal error", "warning", "sorry")]


def _one(item: dict[str, Any], source: str) -> Diagnostic:
    notes = [str(child.get("message", "")) for child in item.get("children", []) if child.get("kind") == "note"]
    words = "; ".join([str(item.get("message", "")), *notes[:2]])
    line = 0
    for place in item.get("locations", []):
        caret = place.get("caret", {})
        if str(caret.get("file", "")).endswith(source):
            line = int(caret.get("line", 0))
            break
    kind = "warning" if item["kind"] == "warning" else "error"
    return Diagnostic(kind=kind, line=line, message=words, option=item.get("option", ""))


def loop_remarks(text: str, source: str) -> tuple[LoopRemark, ...]:
    """One remark a loop line: vectorised (and how wide), or the main reason why not."""
    done: dict[int, LoopRemark] = {}
    reasons: list[str] = []
    chained: set[int] = set()
    for row in text.splitlines():
        match = _REMARK.match(row)
        if match is None or not match["file"].endswith(source):
            continue
        line, words = int(match["line"]), match["words"].strip().rstrip(".")
        if "(fold-left) reduction" in words:
            chained.add(line)
        elif wide := _VECTORIZED.search(words):
            width = max(int(wide[1]), done[line].vector_bytes if line in done else 0)
            done[line] = LoopRemark(line=line, vectorized=True, vector_bytes=width)
            reasons = []
        elif words == "couldn't vectorize loop":
            if line not in done:
                done[line] = LoopRemark(line=line, vectorized=False, message=_main(reasons))
            reasons = []
        elif match["kind"] == "missed" and "not vectorized" in words:
            reasons.append(words)
    for line in chained & set(done):
        if done[line].vectorized:
            done[line] = done[line].model_copy(update={"message": IN_ORDER})
    return tuple(done[line] for line in sorted(done))


def _main(reasons: list[str]) -> str:
    """The reason that tells most: one about statements without a vector type comes after all others."""
    telling = [r for r in reasons if "no vectype for stmt" not in r] or reasons
    words = telling[0] if telling else "no reason given"
    return re.sub(r"^not vectorized[:,]\s*", "", words)
