"""What counting by hardware and by simulator share: which shapes are counted, and the trusted driver that calls them.

The driver (`csrc/count.c`) loads a candidate, so it runs only inside the sandbox, with limits; this process never does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path

from kernelcrew import proc
from kernelcrew.errors import HarnessError, MissingTool
from kernelcrew.kernels.expr import parse
from kernelcrew.kernels.nouns import CLASSES, Candidate, LaunchPlan, Operator, Shape, Tensor
from kernelcrew.platforms.nouns import Machine
from kernelcrew.record import Record
from kernelcrew.settings import child_environment
from kernelcrew.tools.nouns import Build
from kernelcrew.tools.sandbox import Sandbox

SOURCE = Path(__file__).parent / "csrc" / "count.c"
KEPT = 4
C_TYPES = {"float32": ("float", 4, "f"), "float64": ("double", 8, "d"), "int32": ("int", 4, "i")}


class Subject(Record):
    """What is counted, and where the work is done."""

    operator: Operator
    """Whose contract the call follows."""
    candidate: Candidate
    """Source and plan."""
    build: Build
    """Its object."""
    machine: Machine
    """For its compiler and instruction sets."""
    sandbox: Sandbox
    """That the driver runs in."""
    folder: Path
    """An empty folder for the driver and its output."""


class Place(Record):
    """One shape that is counted, perhaps on smaller axes."""

    shape: Shape
    """The timed shape."""
    axes: dict[str, int]
    """What the driver calls with."""
    factor: float
    """Flops plus bytes of a call of the shape over those of a call with these axes."""

    @property
    def key(self) -> str:
        return ",".join(f"{name}={value}" for name, value in self.axes.items())


class Traced(Record):
    """One variant, built to be counted."""

    driver: Path
    """The trusted program that loads and calls it."""
    source: Path
    """Its source, in a folder of its own that the sandbox may write to."""
    object: Path
    """The shared object with debug information."""
    plan: LaunchPlan
    """Entry and scratch."""


class Dump(Record):
    """The instructions of one call."""

    total: int
    """All of them."""
    lines: dict[int, int]
    """Those on lines of the candidate's source."""


class Attempt(Record):
    """One variant counted, or why not."""

    way: str = ""
    """callgrind or single steps."""
    places: tuple[Place, ...] = ()
    """What was called; single steps use smaller axes."""
    dumps: tuple[Dump, ...] = ()
    """One a place."""
    reason: str = ""
    """Why there are none, or why no better way was taken."""
    try_steps: bool = False
    """Whether single steps may succeed where this did not."""


class Count(Record):
    """One counted shape."""

    shape: str
    """The shape's key."""
    instructions: float
    """A call of the shape, scaled where it was counted on smaller axes."""
    cycles: float | None = None
    """Likewise, where a counter gave them."""
    counted_on: str
    """Axes and build that were counted."""


class Counting(Record):
    """What a way of counting found, or why it could not."""

    counts: tuple[Count, ...] = ()
    """One a place; empty when it failed."""
    hot_lines: tuple[tuple[int, float], ...] = ()
    """Source line of the first variant and its share of instructions, largest first."""
    reason: str = ""
    """Why there is no count."""


def elements(operator: Operator, tensor: Tensor, axes: Mapping[str, int]) -> int:
    """Elements of one tensor."""
    return prod(int(parse(dim).value(axes)) for dim in tensor.dims) if tensor.dims else 1


def place_of(operator: Operator, shape: Shape, most_elements: int) -> Place:
    """The shape on axes that are small enough for its tensors to hold `most_elements`."""
    axes = _shrink(operator, shape.axes, most_elements)
    whole, part = _work(operator, shape.axes), _work(operator, axes)
    return Place(shape=shape, axes=axes, factor=whole / part if part > 0 else 1.0)


def places(operator: Operator, most_elements: int) -> tuple[Place, ...]:
    """The heaviest timed shape of each class (the first of equals), shrunk where it must be."""
    chosen = []
    for shape_class in CLASSES:
        members = [shape for shape in operator.timed() if shape.shape_class == shape_class]
        if members:
            chosen.append(place_of(operator, max(members, key=lambda s: s.weight), most_elements))
    return tuple(chosen)


def _work(operator: Operator, axes: Mapping[str, int]) -> float:
    """Flops and bytes together: instructions follow the former where there is reuse, the latter where there is none."""
    return float(parse(operator.cost.flops).value(axes)) + float(parse(operator.cost.bytes).value(axes))


def _shrink(operator: Operator, axes: Mapping[str, int], most_elements: int) -> dict[str, int]:
    """Halve outer axes before inner ones, whose length decides a loop's cost; none below KEPT while others can go."""
    small = dict(axes)
    least = {axis.name: max(axis.minimum, 1) for axis in operator.axes}
    while sum(elements(operator, t, small) for t in operator.tensors) > most_elements:
        by_kept = [a.name for a in operator.axes if small[a.name] // 2 >= max(KEPT, least[a.name])]
        name = by_kept[0] if by_kept else max(small, key=lambda n: small[n])
        if small[name] // 2 < least[name]:
            break
        small[name] //= 2
    return small


def shim(operator: Operator, backend: str, with_scratch: bool) -> str:
    """The C text of `shim.h`: the type of the entry and the call, in the order of the backend's arguments."""
    args = operator.backends[backend].args
    tensors = {t.name: t for t in operator.tensors}
    kinds, types, values, axes = "", [], [], 0
    for name in args:
        if name in tensors:
            c_type, _, letter = C_TYPES[tensors[name].dtype]
            types.append(f"{'const ' if tensors[name].role == 'in' else ''}{c_type} *")
            values.append(f"t[{len(kinds)}]")
            kinds += letter
        else:
            types.append("int")
            values.append(f"a[{axes}]")
            axes += 1
    if with_scratch:
        types.append("void *")
        values.append("scratch")
    return (
        f"#define TENSORS {len(kinds)}\n#define AXES {axes}\n#define ELEMENTS \"{kinds}\"\n"
        f"typedef void (*entry_type)({', '.join(types)});\n"
        "static inline void enter(entry_type entry, void *const *t, const int *a, void *scratch)\n"
        f"{{\n    (void)t; (void)a; (void)scratch;\n    entry({', '.join(values)});\n}}\n"
    )


def words(operator: Operator, backend: str, chosen: Sequence[Place], scratch_bytes: str | None) -> list[str]:
    """The driver's arguments: for each place tensor bytes, axes and scratch bytes."""
    tensors = {t.name: t for t in operator.tensors}
    args = operator.backends[backend].args
    line = []
    for place in chosen:
        for tensor in (tensors[a] for a in args if a in tensors):
            line.append(str(elements(operator, tensor, place.axes) * C_TYPES[tensor.dtype][1]))
        line += [str(place.axes[a]) for a in args if a not in tensors]
        line.append(str(int(parse(scratch_bytes).value(place.axes)) if scratch_bytes else 0))
    return line


def build_driver(subject: Subject, with_scratch: bool) -> Path:
    """Compile the driver into the subject's folder. Raises MissingTool or HarnessError: it is our own code."""
    folder, cc = subject.folder, subject.machine.toolchain.path
    program = folder / ("count_scratch" if with_scratch else "count")
    (folder / "shim.h").write_text(shim(subject.operator, subject.candidate.backend, with_scratch), encoding="utf-8")
    argv = [cc, "-O2", "-I", str(folder), str(SOURCE), "-o", str(program), "-ldl"]
    built = proc.run(argv, env=child_environment(), limits=proc.Limits(time_s=30.0))
    if built.status == "missing":
        raise MissingTool(f"the C compiler '{cc}' is not here", fix="apt-get install gcc libc6-dev")
    if not built.ok:
        what = f"{SOURCE.name} does not compile: {built.err.strip()[:600]}"
        raise HarnessError(what, fix="report this with the operator's manifest")
    return program


def why_not(done: proc.ProcResult) -> str:
    """How the driver ended, in a line."""
    last = next((line for line in reversed(done.err.splitlines()) if line.strip()), "")
    return f"{done.status}, exit status {done.code}{': ' if last else ''}{last.strip()[:200]}"
