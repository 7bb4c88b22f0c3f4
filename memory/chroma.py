"""The only module that imports chromadb, and it is imported only when a store is opened: the import takes a second."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any, cast

import numpy as np
from chromadb import PersistentClient
from chromadb.api.client import Client
from chromadb.api.models.Collection import Collection
from chromadb.api.types import Documents, EmbeddingFunction, Embeddings
from chromadb.config import Settings as ChromaSettings
from chromadb.errors import ChromaError, NotFoundError
from chromadb.utils.embedding_functions import register_embedding_function

from kernelcrew.memory.embed import MiniLm, make

__all__ = ["ChromaError", "Client", "Collection", "find", "make_collection", "open_client"]


@register_embedding_function
class CrewEmbedding(EmbeddingFunction[Documents]):
    """How Chroma names our embedders in a collection's configuration, so that reopening one raises no warning.

    Vectors are always computed before Chroma is called; Chroma calls this only if somebody opens the store by hand.
    """

    def __init__(self, embedder: str) -> None:
        self._embedder = embedder

    def __call__(self, input: Documents) -> Embeddings:
        maker = make("minilm" if self._embedder == MiniLm.name else "lexical")
        return [np.array(vector, dtype=np.float32) for vector in maker.embed(input)]

    @staticmethod
    def name() -> str:
        return "kernelcrew"

    def get_config(self) -> dict[str, Any]:
        return {"embedder": self._embedder}

    @staticmethod
    def build_from_config(config: dict[str, Any]) -> EmbeddingFunction[Documents]:
        return CrewEmbedding(str(config["embedder"]))


_openings = itertools.count(1)


def open_client(path: Path) -> Client:
    """The embedded store under `path`, which must exist. Raises ChromaError.

    Chroma shares one engine among all clients of a process that spell the path alike, so a second opening would see the
    first one's stale index. Each opening therefore spells it in its own way.
    """
    spelling = "".join("/." if bit == "1" else "//" for bit in f"{next(_openings):b}")
    client = PersistentClient(path=f"{path}{spelling}", settings=ChromaSettings(anonymized_telemetry=False))
    return cast(Client, client)  # declared as its base class, which has no `close`


def find(client: Client, name: str) -> Collection | None:
    """The collection of that name, or None. Vectors are always handed in, so no embedding function is attached."""
    try:
        return client.get_collection(name, embedding_function=None)
    except NotFoundError:
        return None


def make_collection(client: Client, name: str, embedder: str, about: dict[str, str]) -> Collection:
    """The collection of that name, made with cosine space if it is not there. `about` is kept with it."""
    return client.get_or_create_collection(
        name,
        embedding_function=CrewEmbedding(embedder),  # type: ignore[arg-type]
        configuration={"hnsw": {"space": "cosine", "ef_search": 200}},
        metadata={**about, "embedder": embedder},
    )
