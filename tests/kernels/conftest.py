"""What the tests of the kernels' room share."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from kernelcrew.kernels.compose import compose
from kernelcrew.kernels.load import load_operator, start_candidate
from kernelcrew.kernels.nouns import Candidate, Edit, NotApplicable, Operator, Patch

CHILD = Path(__file__).with_name("child.py")
Composer = Callable[..., Candidate | NotApplicable]
Runner = Callable[[dict[str, Candidate], Iterable[tuple[int, int]]], dict[str, Any]]


@pytest.fixture(scope="session")
def reduction() -> Operator:
    return load_operator("reduction")


@pytest.fixture(scope="session")
def start(reduction: Operator) -> Candidate:
    return start_candidate(reduction)


@pytest.fixture(scope="session")
def composed(start: Candidate, reduction: Operator) -> Composer:
    """`composed("a", "b", b={"KNOB": 2})`: the start with these recipes applied in order."""

    def make(*names: str, **knobs: dict[str, int]) -> Candidate | NotApplicable:
        edits = tuple(Edit(change=name, recipe=name, knobs=knobs.get(name, {})) for name in names)
        return compose(start, Patch(proposal="p", edits=edits, author="test"), None, operator=reduction)

    return make


@pytest.fixture
def run_kernels(tmp_path: Path) -> Runner:
    """Build candidates without a warning and run them in a child; the answer of `child.py` by name."""

    def run(candidates: dict[str, Candidate], shapes: Iterable[tuple[int, int]]) -> dict[str, Any]:
        kernels = []
        for name, candidate in candidates.items():
            variant = candidate.variants[-1]
            flags = [*variant.plan.flags, *(f"-D{k}={v}" for k, v in variant.plan.defines.items())]
            kernels.append({"name": name, "text": variant.source.text, "entry": variant.plan.entry, "flags": flags})
        asked = {"folder": str(tmp_path), "kernels": kernels, "shapes": list(shapes)}
        done = subprocess.run(
            [sys.executable, str(CHILD)], input=json.dumps(asked), capture_output=True, text=True, check=False,
            env={"PATH": os.environ["PATH"], "OPENBLAS_NUM_THREADS": "1"}, timeout=120,
        )
        assert done.returncode == 0, done.stderr
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer

    return run
