"""`kernelcrew query`: the knowledge base, asked from the command line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from kernelcrew.errors import UnknownName
from kernelcrew.kernels.load import shipped
from kernelcrew.memory.embed import choose
from kernelcrew.memory.nouns import Hit, Rationale, TriedPatch
from kernelcrew.memory.rebuild import export_jsonl, import_jsonl, rebuild
from kernelcrew.memory.store import Memory
from kernelcrew.platforms.detect import detect
from kernelcrew.platforms.registry import resolve
from kernelcrew.record import Record
from kernelcrew.runs.journal import read_steps
from kernelcrew.runs.remembering import Remembered
from kernelcrew.settings import Settings

EMPTY = "the knowledge base has nothing on this yet: it is empty, and `kernelcrew run reduction` fills it"
MERGED = 8
"""Entries looked at for each answer wanted: runs repeat mechanisms."""


class Restored(Record):
    """What a rebuilt store holds."""

    tried: int
    """Tried patches."""
    rationale: int
    """Reasons."""


class Also(Record):
    """Another run's word on the same mechanism."""

    run: str
    """The run."""
    decision: str
    """What became of it there."""
    commit: str
    """The commit, if adopted."""
    evidence: str
    """The figures."""


class Answered(Record):
    """One answer: a mechanism on one operator and platform, with what every run said of it."""

    entry: Rationale
    """The adopted entry if there is one, else the nearest."""
    score: float
    """Higher is nearer; only comparable within one question."""
    proven_here: bool
    """False for another platform's entry."""
    how: str
    """vector, lexical or both."""
    also: tuple[Also, ...] = ()
    """The same mechanism elsewhere, nearest first."""


class Answers(Record):
    """What a question found."""

    answers: tuple[Answered, ...]
    """Best first."""
    note: str = ""
    """What to do when there is nothing."""


def ask_memory(settings: Settings, question: str, operator: str, platform: str, n: int) -> Answers:
    """Answers with what each rests on; another platform's are labelled. Raises UnknownName (operator, platform)."""
    here = detect(settings.cc).platform
    any_platform = platform == "any"
    wanted = here.id if any_platform else resolve(platform, here).id
    if not (settings.home / "memory").is_dir():
        _require_known(operator, ())
        return Answers(answers=(), note=EMPTY)
    with Memory(settings.home, choose(settings.embedder)[0]) as memory:
        kept = {name: counts.get("rationale", 0) for name, counts in memory.platforms().items()}
        if operator and operator not in shipped():
            _require_known(operator, {r.operator for name in kept for r in memory.rationales(None, name)})
        hits = memory.query(
            question, operator=operator or None, platform=wanted, any_platform=any_platform, n=n * MERGED
        )
    found = merged(hits)[:n]
    return Answers(answers=found, note="" if found else _note(kept, wanted, any_platform, operator))


def merged(hits: Sequence[Hit]) -> tuple[Answered, ...]:
    """One answer a mechanism, operator, backend and platform, in the order of the nearest entry of each."""
    groups: dict[tuple[str, ...], list[Hit]] = {}
    for hit in hits:
        e = hit.entry
        groups.setdefault((e.mechanism, e.operator, e.backend, e.platform), []).append(hit)
    return tuple(_answer(group) for group in groups.values())


def _answer(group: list[Hit]) -> Answered:
    first = next((h for h in group if h.entry.commit), group[0])
    also = tuple(
        Also(run=h.entry.run, decision=h.entry.decision, commit=h.entry.commit, evidence=h.entry.evidence)
        for h in group
        if h is not first
    )
    return Answered(entry=first.entry, score=group[0].score, proven_here=first.proven_here, how=group[0].how, also=also)


def _note(kept: dict[str, int], wanted: str, any_platform: bool, operator: str) -> str:
    """Why there is no answer, and what to do."""
    if not any(kept.values()):
        return EMPTY
    if not any_platform and not kept.get(wanted):
        others = ", ".join(f"{name} ({count})" for name, count in sorted(kept.items()) if count)
        return f"nothing is kept for platform {wanted}; reasons are kept for {others}: --platform any asks all of them"
    about = f" of operator {operator}" if operator else ""
    return f"nothing{about} is near this question: name a mechanism, loop or shape class, or leave options out"


def _require_known(operator: str, kept: Iterable[str]) -> None:
    known = {*shipped(), *kept}
    if operator and operator not in known:
        raise UnknownName("operator", operator, known, fix="give one of these, or leave --operator out")


def rebuild_memory(settings: Settings) -> Restored:
    """The store made anew from the journals of all runs: the journal is the truth."""
    tried: list[TriedPatch] = []
    reasons: list[Rationale] = []
    for path in sorted((settings.home / "runs").glob("*/journal.jsonl")):
        for step in read_steps(path.parent):
            if step.kind == "Remembered":
                kept = Remembered.model_validate(step.payload)
                tried += kept.tried
                reasons += kept.rationale
    with Memory(settings.home, choose(settings.embedder)[0]) as memory:
        counts = rebuild(memory, tried, reasons)
    return Restored(tried=counts.get("tried", 0), rationale=counts.get("rationale", 0))


def export_memory(settings: Settings, path: Path) -> int:
    """Every entry as a line of JSON, vectors included; how many."""
    with Memory(settings.home, choose(settings.embedder)[0]) as memory:
        return export_jsonl(memory, path)


def import_memory(settings: Settings, path: Path) -> int:
    """Take in what an export wrote; how many entries."""
    with Memory(settings.home, choose(settings.embedder)[0]) as memory:
        return import_jsonl(memory, path)
