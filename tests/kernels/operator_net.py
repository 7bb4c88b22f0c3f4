"""What the tests of single operators share: one shipped operator with a few of its shapes, and the net around it."""

from __future__ import annotations

import importlib.util
from functools import partial
from pathlib import Path
from typing import Any

from kernelcrew.kernels.load import load_operator, reference_path, start_candidate
from kernelcrew.kernels.nouns import CLASSES, Candidate, KernelSource, LaunchPlan, Operator, Variant
from kernelcrew.platforms.detect import detect
from kernelcrew.settings import Settings
from kernelcrew.tools.build import Builder
from kernelcrew.tools.nouns import Verification
from kernelcrew.tools.reference import Reference
from kernelcrew.tools.sandbox import choose
from kernelcrew.tools.verify import verify
from kernelcrew.tools.worker import Worker


class Net:
    """Builder, reference and workers for one operator, in a folder of the tests'. A few shapes keep it quick."""

    def __init__(self, name: str, folder: Path, keys: tuple[str, ...]) -> None:
        whole = load_operator(name)
        shapes = tuple(s for s in whole.shapes if s.key in keys)
        assert len(shapes) == len(keys), "the manifest has other shapes now"
        self.operator = whole.model_copy(update={"shapes": shapes})
        settings = Settings(workdir=folder, cc="gcc", sandbox="auto", core=None, embedder="lexical")
        sandbox = choose(settings)
        self._builder = Builder(self.operator, settings, sandbox, detect("gcc"))
        self._reference = Reference(self.operator)
        self._factory = partial(Worker.start, operator=self.operator, settings=settings, sandbox=sandbox, core=None)

    def verdict(self, made: Candidate) -> Verification:
        build = self._builder.build(made)
        assert build.status == "ok", build.diagnostics
        return verify(self.operator, build, self._factory, self._reference)

    def start(self, *flags: str) -> Candidate:
        """The operator's own kernel, with further flags."""
        return self.candidate(start_candidate(self.operator).variants[0].source.text, *flags)

    def candidate(self, text: str, *flags: str) -> Candidate:
        variant = Variant(source=KernelSource(text=text), plan=LaunchPlan(entry=self.operator.name, flags=flags))
        return Candidate(operator=self.operator.name, variants=(variant,), author="start")

    def close(self) -> None:
        self._reference.close()


def changed(text: str, *pairs: tuple[str, str]) -> str:
    """`text` with each first string, which must occur, replaced by the second."""
    for old, new in pairs:
        assert old in text, old
        text = text.replace(old, new)
    return text


def reference_of(operator: Operator) -> Any:
    """The operator's `reference`, imported here: tests trust what ships."""
    spec = importlib.util.spec_from_file_location(f"{operator.name}_reference", reference_path(operator))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.reference


def shape_rules(operator: Operator) -> None:
    """Every class is timed and held out, and no shape serves two roles."""
    assert operator.classes() == CLASSES
    assert {s.shape_class for s in operator.held_out()} == set(CLASSES)
    assert len(operator.timed()) >= 10 and len(operator.held_out()) >= len(operator.timed())
    assert 15 <= sum(s.role == "edge" for s in operator.shapes) <= 25
    for axis in operator.axes:
        edge = {s.axes[axis.name] for s in operator.shapes if s.role == "edge"}
        assert {axis.minimum, 1} <= edge, f"no edge shape has {axis.name} = {axis.minimum} or 1"
