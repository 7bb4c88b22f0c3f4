"""What the tests of policy, builder and verifier share: one small operator, kernels of it, this machine's tools."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path

from kernelcrew.kernels.load import load_operator, start_candidate
from kernelcrew.kernels.nouns import Candidate, KernelSource, LaunchPlan, Operator, Shape, Variant
from kernelcrew.platforms.detect import detect
from kernelcrew.platforms.nouns import Machine
from kernelcrew.settings import Settings
from kernelcrew.tools.sandbox import Sandbox, choose
from kernelcrew.tools.verify import WorkerFactory
from kernelcrew.tools.worker import Worker

WHY = "/* Four independent accumulators hide the latency of the addition chain, which bounds long rows. */\n"
HEAD = "void reduction(const float *x, float *y, int rows, int n)\n{\n"


def settings(folder: Path) -> Settings:
    return Settings(workdir=folder, cc="gcc", sandbox="auto", core=None, embedder="lexical")


@cache
def machine() -> Machine:
    return detect("gcc")


@cache
def operator() -> Operator:
    """The shipped reduction with few and small shapes."""
    sizes = [(0, 0), (5, 0), (1, 1), (9, 7), (33, 65), (300, 128)]
    shapes = [Shape(axes={"rows": r, "n": n}, shape_class="tail", role="edge") for r, n in sizes]
    shapes.append(Shape(axes={"rows": 64, "n": 4096}, shape_class="main"))
    shapes.append(Shape(axes={"rows": 1, "n": 1 << 21}, shape_class="long"))
    return load_operator("reduction").model_copy(update={"shapes": tuple(shapes)})


def candidate(body: str, *, head: str = HEAD, before: str = "", why: str = WHY, **plan: object) -> Candidate:
    """A candidate from the statements of its entry; `before` stands above the function."""
    return whole(f"{why}{before}{head}{body}\n}}\n", **plan)


def whole(text: str, **plan: object) -> Candidate:
    variant = Variant(source=KernelSource(text=text), plan=LaunchPlan.model_validate({"entry": "reduction", **plan}))
    return Candidate(operator="reduction", variants=(variant,), author="person")


def sums(last: str = "s", middle: str = "s += x[(long)r * n + i];", first: str = "0.0f") -> str:
    """The plain loop with its pieces exchangeable."""
    return (
        f"    for (int r = 0; r < rows; r++) {{\n        float s = {first};\n"
        f"        for (int i = 0; i < n; i++) {middle}\n        y[r] = {last};\n    }}"
    )


def start() -> Candidate:
    return start_candidate(operator())


@cache
def sandbox() -> Sandbox:
    return choose(settings(Path(".")))


def factory(folder: Path) -> WorkerFactory:
    return partial(Worker.start, operator=operator(), settings=settings(folder), sandbox=sandbox(), core=None)
