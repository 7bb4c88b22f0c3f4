"""The store of what was tried and why: Chroma on disk, one collection a platform and kind.

An entry is written under its own id, so writing it again (a resumed run does) leaves one entry. Its whole record stands
in its metadata as JSON beside the fields that can be filtered on; the vector is always computed here, never by Chroma.

Collections of up to `exact_limit` entries are searched exactly, above that Chroma's index is asked. Both read vectors
from an index that is stale once another process has written (Chroma then misses entries, or fails to find their
vectors), so the store is opened anew whenever the count has moved. Every write of every process holds the lock file,
and whoever reads vectors shares it, so that nothing moves between the count and the reading.
"""

from __future__ import annotations

import fcntl
import itertools
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from pydantic import ValidationError

from kernelcrew.errors import StoreError
from kernelcrew.memory.embed import Embedder
from kernelcrew.memory.nouns import Hit, Rationale, TriedPatch
from kernelcrew.memory.search import Ranked, cosine, fuse
from kernelcrew.record import hash_of

if TYPE_CHECKING:
    from kernelcrew.memory.chroma import Client, Collection

Kind = Literal["tried", "rationale"]
KINDS: tuple[Kind, ...] = ("tried", "rationale")
Entry = TriedPatch | Rationale
T = TypeVar("T", TriedPatch, Rationale)
EXACT_LIMIT = 5000
"""Up to here exact search over the vectors costs milliseconds."""
WRITE_BATCH = 500
REBUILD = "kernelcrew memory rebuild"


class Memory:
    """What the team remembers, under `home/memory`. Use as a context manager, or call `close`."""

    def __init__(self, home: Path, embedder: Embedder, *, exact_limit: int = EXACT_LIMIT) -> None:
        """Open the store, making it if it is not there. Raises StoreError."""
        from kernelcrew.memory import chroma

        self.home = home
        self.path = home / "memory"
        self.embedder = embedder
        self._exact_limit = exact_limit
        self._chroma = chroma
        self._counted: dict[str, int] = {}
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _unusable(self.path, error) from error
        with self._locked():
            self._client: Client = chroma.open_client(self.path)

    def __enter__(self) -> Memory:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let the store go. Nothing is pending: each write is on disk when it returns."""
        self._client.close()

    def remember(self, tried: TriedPatch) -> None:
        """Keep one tried patch. Raises StoreError."""
        self.write([tried])

    def explain(self, rationale: Rationale) -> None:
        """Keep the reason of one decision. Raises StoreError."""
        self.write([rationale])

    def write(self, entries: Sequence[Entry], vectors: Sequence[Sequence[float]] | None = None) -> None:
        """Keep entries of any kind and platform; the last of two with the same id wins. `vectors` saves embedding.

        Raises StoreError when the disk refuses or a collection was made with another embedder.
        """
        places: dict[tuple[Kind, str], dict[str, tuple[Entry, Sequence[float]]]] = {}
        made = vectors if vectors is not None else self.embedder.embed([entry.text for entry in entries])
        for entry, vector in zip(entries, made, strict=True):
            places.setdefault((kind_of(entry), entry.platform), {})[entry.id] = (entry, vector)
        for (kind, platform), batch in places.items():
            with self._locked():
                collection = self._collection(kind, platform)
                alone = self._counted.get(collection.name) == collection.count()
                rows = list(batch.values())
                for first in range(0, len(rows), WRITE_BATCH):
                    _upsert(collection, rows[first : first + WRITE_BATCH])
                self._counted.pop(collection.name, None)
                if alone:
                    self._counted[collection.name] = collection.count()

    def tried(self, operator: str, platform: str) -> list[TriedPatch]:
        """All tried patches of one operator on one platform, oldest first."""
        with self._guarded():
            collection = self._chroma.find(self._client, _collection_name("tried", platform))
            rows = [] if collection is None else _records(collection, {"operator": operator})
        found = [self._read(TriedPatch, row) for row in rows]
        return sorted(found, key=lambda t: (t.created, t.id))

    def rationales(self, operator: str | None, platform: str) -> list[Rationale]:
        """All reasons kept for one platform, of one operator or of all, oldest first."""
        with self._guarded():
            collection = self._chroma.find(self._client, _collection_name("rationale", platform))
            rows = [] if collection is None else _records(collection, {"operator": operator} if operator else None)
        found = [self._read(Rationale, row) for row in rows]
        return sorted(found, key=lambda r: (r.created, r.id))

    def query(
        self, text: str, operator: str | None = None, *, platform: str, any_platform: bool = False, n: int = 5
    ) -> list[Hit]:
        """The `n` reasons nearest to a plain question: by vectors and by words, fused. Empty where nothing is near.

        Only this platform's entries unless `any_platform`; others then carry `proven_here = False`.
        """
        vector = self.embedder.embed([text])[0] if self.embedder.semantic and self.count("rationale") else []
        ranked: list[Ranked] = []
        with self._locked(shared=True):
            for collection in self._collections("rationale", None if any_platform else platform):
                if self.embedder.semantic:
                    self._check_embedder(collection)
                ranked += self._search(collection, vector, {"operator": operator} if operator else None, n)
        return [
            Hit(entry=entry, score=score, proven_here=entry.platform == platform, how=how)
            for entry, score, how in fuse(text, ranked, n)
        ]

    def count(self, kind: Kind, platform: str | None = None) -> int:
        """Entries of one kind, on one platform or on all."""
        with self._guarded():
            return sum(collection.count() for collection in self._collections(kind, platform))

    def counts(self) -> dict[str, int]:
        """Entries by kind over all platforms: `{"tried": 12, "rationale": 30}`."""
        return {kind: self.count(kind) for kind in KINDS}

    def platforms(self) -> dict[str, dict[str, int]]:
        """Entries by platform and kind."""
        found: dict[str, dict[str, int]] = {}
        with self._guarded():
            for kind in KINDS:
                for collection in self._collections(kind, None):
                    found.setdefault(str((collection.metadata or {})["platform"]), {})[kind] = collection.count()
        return found

    def made_with(self) -> set[str]:
        """Names of the embedders that the collections were made with."""
        with self._guarded():
            return {_embedder_name(c) for kind in KINDS for c in self._collections(kind, None)}

    def dump(self) -> Iterator[tuple[Entry, str, list[float]]]:
        """Every entry with its embedder's name and its vector. Needs no embedder, so it works before a rebuild.

        An entry that another version wrote and this one cannot read is passed over: the journals have it.
        """
        with self._guarded():
            places = [(kind, collection) for kind in KINDS for collection in self._collections(kind, None)]
        for kind, collection in places:
            for offset in itertools.count(0, WRITE_BATCH):
                with self._locked(shared=True):
                    page = self._with_vectors(collection.name, limit=WRITE_BATCH, offset=offset)
                if not page["ids"]:
                    break
                yield from _entries(kind, _embedder_name(collection), page)

    def clear(self) -> None:
        """Drop every collection: the first half of a rebuild."""
        with self._locked():
            for kind in KINDS:
                for collection in self._collections(kind, None):
                    self._client.delete_collection(collection.name)
        self._counted.clear()

    def _collections(self, kind: Kind, platform: str | None) -> list[Collection]:
        """Looked up each time: another process may have made or rebuilt one."""
        if platform is not None:
            found = self._chroma.find(self._client, _collection_name(kind, platform))
            return [] if found is None else [found]
        every = self._client.list_collections()
        return sorted((c for c in every if (c.metadata or {}).get("kind") == kind), key=lambda c: c.name)

    def _collection(self, kind: Kind, platform: str) -> Collection:
        """The collection to write to, made if it is not there."""
        name = _collection_name(kind, platform)
        found = self._chroma.find(self._client, name)
        if found is None:
            about = {"kind": kind, "platform": platform}
            return self._chroma.make_collection(self._client, name, self.embedder.name, about)
        self._check_embedder(found)
        return found

    def _check_embedder(self, collection: Collection) -> None:
        made = _embedder_name(collection)
        if made != self.embedder.name:
            raise StoreError(
                f"{self.path}: the collection {collection.name} was made with the embedder {made}, this one is "
                f"{self.embedder.name}; their vectors cannot be compared",
                fix=f"`{REBUILD}` makes the store anew with this embedder, or set KERNELCREW_EMBEDDER to the old one",
            )

    def _search(
        self, collection: Collection, vector: Sequence[float], where: dict[str, Any] | None, n: int
    ) -> list[Ranked]:
        """Every entry that may be searched by words, with its cosine where vectors count."""
        if not vector:
            return [Ranked(self._read(Rationale, row), None) for row in _records(collection, where)]
        if collection.count() <= self._exact_limit:
            got = self._with_vectors(collection.name, where=where)
            near = cosine(vector, np.asarray(got["embeddings"], dtype=np.float64))
            rows = [str(metadata["record"]) for metadata in got["metadatas"] or ()]
            return [Ranked(self._read(Rationale, row), value) for row, value in zip(rows, near, strict=True)]
        fresh = self._fresh(collection.name)
        asked = fresh.query(
            query_embeddings=[vector],
            n_results=max(50, 5 * n),
            where=where,
            include=["distances"],
        )
        near_by_id = dict(zip(asked["ids"][0], (asked["distances"] or [[]])[0], strict=True))
        entries = [self._read(Rationale, row) for row in _records(fresh, where)]
        return [Ranked(e, 1 - near_by_id[e.id] if e.id in near_by_id else None) for e in entries]

    def _read(self, kind: type[T], row: str) -> T:
        try:
            return kind.model_validate_json(row)
        except ValidationError as error:
            what = f"{self.path}: an entry was written by another version of kernelcrew: {error.errors()[0]['msg']}"
            raise StoreError(what, fix=f"`{REBUILD}` recreates the store from the journals") from error

    def _with_vectors(self, name: str, **what: Any) -> Any:
        """A `get` with metadata and vectors; the caller holds the lock."""
        return self._fresh(name).get(include=["metadatas", "embeddings"], **what)

    def _fresh(self, name: str) -> Collection:
        """The collection with an index that has every entry now on disk; the caller holds the lock."""
        collection = self._client.get_collection(name, embedding_function=None)
        count = collection.count()
        if self._counted.get(name) == count:
            return collection
        self._client.close()
        self._client = self._chroma.open_client(self.path)
        self._counted = {name: count}
        return self._client.get_collection(name, embedding_function=None)

    @contextmanager
    def _locked(self, *, shared: bool = False) -> Iterator[None]:
        """One writer at a time over all processes, or no writer; the system lets the lock go when its holder dies."""
        with self._guarded(), open(self.path / "lock", "a", encoding="utf-8") as handle:
            fcntl.flock(handle, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
            yield

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        try:
            yield
        except (self._chroma.ChromaError, OSError) as error:
            raise _unusable(self.path, error) from error


def kind_of(entry: Entry) -> Kind:
    """The kind of collection that an entry belongs to."""
    return "tried" if isinstance(entry, TriedPatch) else "rationale"


def parse(kind: str, record: dict[str, Any]) -> Entry:
    """An entry from its JSON value."""
    return TriedPatch.model_validate(record) if kind == "tried" else Rationale.model_validate(record)


def _unusable(path: Path, error: Exception) -> StoreError:
    return StoreError(
        f"{path}: the memory store cannot be read or written: {error}",
        fix=f"free or unlock the disk; if the files themselves are damaged, move {path} away and run `{REBUILD}`",
    )


def _collection_name(kind: Kind, platform: str) -> str:
    """Chroma takes 3 to 512 of letters, digits, `.`, `_`, `-`; where others were replaced, a hash keeps names apart."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", platform).strip("._-")[:80]
    same = safe == platform
    return f"{kind}-{safe}" if same else f"{kind}-{safe or 'x'}-{hash_of(platform)[:8]}"


def _embedder_name(collection: Collection) -> str:
    return str((collection.metadata or {}).get("embedder", "unknown"))


def _upsert(collection: Collection, rows: Sequence[tuple[Entry, Sequence[float]]]) -> None:
    collection.upsert(
        ids=[entry.id for entry, _ in rows],
        embeddings=[vector for _, vector in rows],
        documents=[entry.text for entry, _ in rows],
        metadatas=[_metadata(entry) for entry, _ in rows],
    )


def _metadata(entry: Entry) -> dict[str, Any]:
    """Every key is always there: an upsert merges metadata, and a key left out would keep its old value."""
    mechanisms = [f["mechanism"] for f in entry.features] if isinstance(entry, TriedPatch) else [entry.mechanism]
    return {
        "record": entry.model_dump_json(),
        "operator": entry.operator,
        "backend": entry.backend,
        "platform": entry.platform,
        "decision": entry.decision,
        "run": entry.run,
        "commit": entry.commit,
        "author": entry.author,
        "created": entry.created,
        "mechanisms": mechanisms or ["none"],
        "shape_classes": list(entry.classes) or ["none"],
    }


def _records(collection: Collection, where: dict[str, Any] | None) -> list[str]:
    got = collection.get(where=where, include=["metadatas"])
    return [str(metadata["record"]) for metadata in got["metadatas"] or ()]


def _entries(kind: Kind, embedder: str, page: Any) -> Iterator[tuple[Entry, str, list[float]]]:
    for metadata, vector in zip(page["metadatas"], page["embeddings"], strict=True):
        record = str(metadata["record"])
        try:
            entry = TriedPatch.model_validate_json(record) if kind == "tried" else Rationale.model_validate_json(record)
        except ValidationError:
            continue
        yield entry, embedder, [float(x) for x in vector]
