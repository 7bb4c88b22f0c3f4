"""`kernelcrew query`: the knowledge base, asked from the command line."""

from __future__ import annotations

from pathlib import Path

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


class Restored(Record):
    """What a rebuilt store holds."""

    tried: int
    """Tried patches."""
    rationale: int
    """Reasons."""


def ask_memory(settings: Settings, question: str, operator: str, platform: str, n: int) -> list[Hit]:
    """Answers with what each rests on; another platform's are labelled. Raises UnknownName for a platform."""
    here = detect(settings.cc).platform
    any_platform = platform == "any"
    wanted = here.id if any_platform else resolve(platform, here).id
    if not (settings.home / "memory").is_dir():
        return []
    with Memory(settings.home, choose(settings.embedder)[0]) as memory:
        return memory.query(question, operator=operator or None, platform=wanted, any_platform=any_platform, n=n)


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
