"""Making the store anew from what the journals say, and moving it as JSON lines."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kernelcrew.errors import BadManifest, StoreError
from kernelcrew.memory.nouns import Rationale, TriedPatch
from kernelcrew.memory.store import Entry, Memory, kind_of, parse
from kernelcrew.record import Record
from kernelcrew.wording import explained

_BATCH = 200
_SCHEMA = 1
_EXPORT = "a file that `kernelcrew memory export` wrote"


def rebuild(memory: Memory, tried: Iterable[TriedPatch], rationales: Iterable[Rationale]) -> dict[str, int]:
    """Make every collection anew with this store's embedder; returns the entries by kind.

    What the journals say wins; what only the store has (imported entries) is kept. A copy stands beside the store until
    the end, so that a rebuild that is killed loses nothing: the next one reads it first.
    """
    copy = memory.home / "memory-rebuild.jsonl"
    kept: dict[tuple[str, str], Row] = {}
    if copy.exists():
        kept |= {row.key: row for row in read_rows(copy)}
    kept |= {row.key: row for row in (Row(*parts) for parts in memory.dump())}
    told: list[Entry] = [*tried, *rationales]
    for entry in told:
        same = kept.get((kind_of(entry), entry.id))
        if same is None or same.entry.text != entry.text:
            kept[(kind_of(entry), entry.id)] = Row(entry, "", None)
        else:
            kept[same.key] = Row(entry, same.embedder, same.vector)
    _write_rows(copy, kept.values())
    memory.clear()
    _fill(memory, kept.values())
    copy.unlink()
    return memory.counts()


def export_jsonl(memory: Memory, path: Path) -> int:
    """Write every entry as one line of JSON, its vector included; returns how many. Raises StoreError."""
    return _write_rows(path, (Row(*parts) for parts in memory.dump()))


def import_jsonl(memory: Memory, path: Path) -> int:
    """Add the entries of an export; one that is already there is replaced. Returns how many.

    Vectors of this store's embedder are taken over, others computed. Raises BadManifest naming the line, StoreError.
    """
    return _fill(memory, read_rows(path))


class Row:
    """One line of an export."""

    def __init__(self, entry: Entry, embedder: str, vector: list[float] | None) -> None:
        self.entry = entry
        self.embedder = embedder
        self.vector = vector

    @property
    def key(self) -> tuple[str, str]:
        return kind_of(self.entry), self.entry.id

    def line(self) -> str:
        record = self.entry.model_dump(mode="json")
        value: dict[str, Any] = {"schema": _SCHEMA, "kind": kind_of(self.entry), "record": record}
        if self.vector is not None:
            value |= {"embedder": self.embedder, "vector": [round(x, 7) for x in self.vector]}
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def read_rows(path: Path) -> Iterator[Row]:
    """The rows of an export, one at a time. Raises BadManifest naming file, line and fix."""
    try:
        with path.open(encoding="utf-8") as handle:
            for number, line in enumerate(handle, 1):
                if line.strip():
                    yield _row(line, f"{path}:{number}")
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"{path}: cannot be read: {error}", fix=f"give {_EXPORT}") from error


def _row(line: str, where: str) -> Row:
    fix = f"give {_EXPORT}; a line that was cut can be deleted"
    try:
        value = json.loads(line)
        vector = value.get("vector")
        return Row(parse(value["kind"], value["record"]), value.get("embedder", ""), vector)
    except (ValueError, KeyError, AttributeError, TypeError) as error:
        what = explained(dict(error.errors()[0]), Record)[0] if isinstance(error, ValidationError) else str(error)
        raise BadManifest(where, f"is no entry of an export: {what}", fix=fix) from error


def _fill(memory: Memory, rows: Iterable[Row]) -> int:
    written = 0
    batch: list[Row] = []
    for row in rows:
        batch.append(row)
        if len(batch) == _BATCH:
            written += _write_batch(memory, batch)
            batch = []
    return written + _write_batch(memory, batch)


def _write_batch(memory: Memory, rows: list[Row]) -> int:
    ready = [row for row in rows if row.vector is not None and row.embedder == memory.embedder.name]
    rest = [row for row in rows if row not in ready]
    memory.write([row.entry for row in ready], [row.vector for row in ready if row.vector is not None])
    memory.write([row.entry for row in rest])
    return len(rows)


def _write_rows(path: Path, rows: Iterable[Row]) -> int:
    """Write beside, sync, then rename: the file is whole or not there."""
    beside = path.with_name(path.name + ".part")
    written = 0
    try:
        with beside.open("w", encoding="utf-8") as handle:
            for row in rows:
                handle.write(row.line() + "\n")
                written += 1
            handle.flush()
            os.fsync(handle.fileno())
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        fix = "free or unlock the disk, or name another file"
        raise StoreError(f"{path}: cannot be written: {error}", fix=fix) from error
    return written
