"""Operators of a user's own in repositories of their own, and what a run must leave as it was."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from math import prod
from pathlib import Path
from textwrap import dedent

import flow_kit as kit
import pytest

from kernelcrew.kernels.expr import parse
from kernelcrew.kernels.nouns import Variant
from kernelcrew.runs.starting import begin_operator

OURS = ("objects/", "refs/kernelcrew/", "refs/heads/kernelcrew/", "logs/refs/heads/kernelcrew/")
SHAPES = """
shapes = [
  { axes = { rows = 64, n = 256 }, shape_class = "main" },
  { axes = { rows = 512, n = 8 }, shape_class = "short" },
  { axes = { rows = 5, n = 0 }, shape_class = "short", role = "edge" },
  { axes = { rows = 7, n = 9 }, shape_class = "short", role = "edge" },
]
"""


def call_us(variant: Variant, axes: Mapping[str, int]) -> float:
    """The true time of one call in us: the elements, times the factors of the marks in the source."""
    ns = 50.0 + 0.8 * prod(axes.values())
    for mark in kit.MARK.finditer(variant.source.text):
        if parse(mark["rule"]).value(axes):
            ns *= float(mark["factor"])
    return ns / 1000


def simulate(patch: pytest.MonkeyPatch) -> None:
    """The simulated clock, for kernels of any kind."""
    kit.simulate(patch)
    patch.setattr(kit, "call_us", call_us)


def begin(here: Path, name: str = "my_op", shapes: str = SHAPES) -> Path:
    """What `kernelcrew init` writes, with few and small shapes."""
    folder = begin_operator(name, here).folder
    manifest = folder / "operator.toml"
    head, _, rest = manifest.read_text().partition("shapes = [")
    manifest.write_text(head + shapes.lstrip() + rest.partition("\n]\n")[2])
    return folder


def commit(top: Path, words: str = "operator") -> str:
    """Everything in a folder committed; a repository begun where there is none."""
    if not (top / ".git").exists():
        kit.git(top, "init", "-q", "-b", "trunk")
    kit.git(top, "add", "-A")
    kit.git(top, "commit", "-q", "-m", words)
    return kit.git(top, "rev-parse", "HEAD").strip()


def snapshot(top: Path) -> dict[str, str]:
    """Digest of every file of a user's repository, git's own files included: all but new objects and refs of ours."""
    ours = tuple(f".git/{name}" for name in OURS)
    found = {}
    for path in sorted(top.rglob("*")):
        name = str(path.relative_to(top))
        if path.is_file() and not name.startswith(ours) and ".kernelcrew" not in path.parts:
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def tally(here: Path) -> Path:
    """Several inputs and outputs, int32 among them, one axis, one class, nothing held out, no edge, no rival."""
    folder = here / "tally"
    folder.mkdir(parents=True)
    (folder / "operator.toml").write_text(dedent("""\
        name = "tally"
        version = 1
        summary = "Each count as a weighted float, and the sum of the counts"
        timing_distribution = "uniform"
        axes = [ { name = "n" } ]
        tensors = [
          { name = "count", role = "in", dtype = "int32", dims = ["n"] },
          { name = "weight", role = "in", dims = ["n"] },
          { name = "y", role = "out", dims = ["n"] },
          { name = "total", role = "out", dtype = "int32", dims = ["1"] },
        ]
        shapes = [ { axes = { n = 4096 }, shape_class = "main" } ]
        distributions = [ { name = "uniform", kind = "uniform", high = 5.0 } ]
        [contract]
        [cost]
        flops = "2 * n"
        bytes = "12 * n + 4"
        [backends.c]
        entry = "tally"
        args = ["count", "weight", "y", "total", "n"]
        source = "tally.c"
        base_flags = ["-O2"]
        [[tolerances]]
        error = "2"
        bias = "1"
        deviation = "1"
        reason = "one rounding of the product"
        """))
    (folder / "reference.py").write_text(dedent("""\
        import numpy as np

        def reference(inputs, axes):
            y = inputs["count"].astype(np.float64) * inputs["weight"]
            total = inputs["count"].sum(dtype=np.int64).reshape(1)
            return {"y": (y, np.abs(y)), "total": (total, np.zeros(1))}
        """))
    (folder / "tally.c").write_text(dedent("""\
        void tally(const int *count, const float *weight, float *y, int *total, int n)
        {
            int sum = 0;
            for (int i = 0; i < n; i++) {
                sum += count[i];
                y[i] = count[i] * weight[i];
            }
            total[0] = sum;
        }
        """))
    return folder
