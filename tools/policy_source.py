"""The source gate by language: one door for a file whose backend is known or can be told from its name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath

from kernelcrew.errors import UnknownName, UserMistake
from kernelcrew.tools.nouns import Diagnostic
from kernelcrew.tools.policy_c import judge
from kernelcrew.tools.policy_cuda import judge_cuda
from kernelcrew.tools.policy_triton import judge_triton


def _judge_c(source: str) -> list[Diagnostic]:
    """A plan says how many threads there are; without one, OpenMP's calls are refused as for one thread."""
    return judge(source, 1)


JUDGES: dict[str, Callable[[str], list[Diagnostic]]] = {"c": _judge_c, "cuda": judge_cuda, "triton": judge_triton}
ENDINGS = {".c": "c", ".cu": "cuda", ".cuh": "cuda", ".py": "triton"}


def language_of(name: str, backend: str = "") -> str:
    """The backend that was named, else that of the file's ending. Raises UnknownName, UserMistake."""
    if backend:
        if backend not in JUDGES:
            raise UnknownName("backend", backend, tuple(JUDGES))
        return backend
    ending = PurePath(name).suffix
    if ending not in ENDINGS:
        raise UserMistake(f"{name}: its ending tells no backend", fix="name it: --backend c, cuda or triton")
    return ENDINGS[ending]


def judge_source(source: str, language: str) -> list[Diagnostic]:
    """Every broken rule of one source, by line."""
    return JUDGES[language](source)
