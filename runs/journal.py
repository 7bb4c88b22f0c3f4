"""The journal: every step's result on disk before the next begins.

`journal.jsonl` holds one `Step` a line, synced a line; a torn last line is dropped on reading. Large texts lie beside
it by content hash in `blobs/`. Memory, report and branch can be rebuilt from it, and a killed run resumes by it.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from kernelcrew.errors import StoreError
from kernelcrew.record import Record, hash_of
from kernelcrew.runs.nouns import Step

T = TypeVar("T", bound=Record)

SCHEMA = 1
UPGRADERS: dict[int, Callable[[dict[str, object]], dict[str, object]]] = {}
"""From schema N to N + 1; applied in order when an old journal is read."""


@dataclass
class Journal:
    """One run's journal, open for appending. One writer at a time: the run's lock file holds that."""

    folder: Path
    steps: list[Step] = field(default_factory=list)
    on_reuse: Callable[[str], None] = lambda step: None
    tool_seconds: Callable[[], dict[str, float]] = dict
    waited_seconds: Callable[[], float] = float
    salt: str = ""

    @classmethod
    def open(cls, folder: Path) -> Journal:
        """Open or create; a torn last line (a kill in mid-write) is cut off the file."""
        with _disk(folder):
            (folder / "blobs").mkdir(parents=True, exist_ok=True)
            path = folder / "journal.jsonl"
            steps, good_bytes = _read(path) if path.exists() else ([], 0)
            if path.exists() and path.stat().st_size > good_bytes:
                os.truncate(path, good_bytes)
        return cls(folder=folder, steps=steps)

    def find(self, step: str, key: str = "") -> Step | None:
        """The last record of a step, of that key when one is given."""
        return next((s for s in reversed(self.steps) if s.step == step and key in ("", s.key)), None)

    def do(self, step: str, kind: type[T], inputs: object, work: Callable[[], T], parents: tuple[str, ...] = ()) -> T:
        """The result of a step: read back when this step with these inputs is here, else worked out and written."""
        key = hash_of(step, kind.__name__, inputs, list(parents), self.salt)
        found = self.find(step, key)
        if found is not None:
            self.on_reuse(step)
            return kind.model_validate(found.payload)
        started = datetime.now(UTC).isoformat(timespec="milliseconds")
        clock = time.monotonic() - self.waited_seconds()
        before = self.tool_seconds()
        result = work()
        after = self.tool_seconds()
        spent = {name: round(s - before.get(name, 0.0), 4) for name, s in after.items() if s > before.get(name, 0.0)}
        self.append(
            Step(
                schema_version=SCHEMA,
                seq=len(self.steps),
                step=step,
                key=key,
                parents=parents,
                status=str(getattr(result, "status", "ok")),
                kind=kind.__name__,
                started=started,
                seconds=round(time.monotonic() - self.waited_seconds() - clock, 4),
                tool_s=spent,
                payload=result.model_dump(mode="json"),
            )
        )
        return result

    def append(self, step: Step) -> None:
        """Write one line and sync it. Raises StoreError when the disk refuses."""
        line = json.dumps(step.model_dump(mode="json"), separators=(",", ":"), ensure_ascii=False) + "\n"
        with _disk(self.folder), open(self.folder / "journal.jsonl", "ab") as handle:
            size = handle.tell()
            try:
                handle.write(line.encode())
                handle.flush()
                os.fsync(handle.fileno())
            except OSError:
                os.truncate(handle.fileno(), size)
                raise
        self.steps.append(step)

    def keep(self, text: str) -> str:
        """Store a large text by content hash; returns the hash."""
        name = hash_of(text)
        path = self.folder / "blobs" / name
        if not path.exists():
            with _disk(self.folder):
                partial = path.with_suffix(f".{os.getpid()}.part")
                partial.write_text(text, encoding="utf-8")
                partial.replace(path)
        return name

    def blob(self, name: str) -> str:
        """A stored text. Raises StoreError when it is not there."""
        with _disk(self.folder):
            return (self.folder / "blobs" / name).read_text(encoding="utf-8")


def read_steps(folder: Path) -> list[Step]:
    """The steps of a run's folder, for the report and for rebuilding; nothing is changed."""
    path = folder / "journal.jsonl"
    if not path.exists():
        raise StoreError(f"{path}: there is no journal", fix="give the id of a run that `kernelcrew report` lists")
    return _read(path)[0]


def payload_of(steps: list[Step], step: str, kind: type[T]) -> T | None:
    """The last result of a step, typed; None when it was never reached."""
    found = next((s for s in reversed(steps) if s.step == step), None)
    return kind.model_validate(found.payload) if found else None


def _read(path: Path) -> tuple[list[Step], int]:
    steps: list[Step] = []
    good = 0
    data = path.read_bytes()
    for number, line in enumerate(data.splitlines(keepends=True), 1):
        torn = not line.endswith(b"\n")
        try:
            raw = json.loads(line)
            steps.append(Step.model_validate(_upgrade(raw)))
        except (ValueError, ValidationError) as error:
            if torn or good + len(line) == len(data):
                break
            raise StoreError(
                f"{path}, line {number}: not a step of a journal ({error})",
                fix="restore the file from a copy; nothing after it can be trusted",
            ) from error
        if torn:
            steps.pop()
            break
        good += len(line)
    return steps, good


def _upgrade(raw: dict[str, object]) -> dict[str, object]:
    version = raw.get("schema_version", SCHEMA)
    while isinstance(version, int) and version < SCHEMA:
        raw = UPGRADERS[version](raw)
        version += 1
    return raw


@contextmanager
def _disk(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StoreError(
            f"{folder}: cannot be written or read ({error.strerror or error})",
            fix="free space or choose another --workdir; what was recorded stays, `kernelcrew resume` goes on from it",
        ) from error
