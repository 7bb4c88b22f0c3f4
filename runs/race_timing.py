"""What Kernel Tuner times: C text that calls a kernel over every timed shape, and the arena that it runs over.

The figure is the one that our own screens climb: the geometric mean over the classes of the geometric means over their
shapes, of the time of one call. Rings, samples and flags are those of `kernelcrew.tools`: both look at the same.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kernelcrew.errors import HarnessError
from kernelcrew.kernels.expr import parse
from kernelcrew.kernels.nouns import Backend, Operator, Shape, Tensor, Variant
from kernelcrew.platforms.nouns import Toolchain
from kernelcrew.record import Record
from kernelcrew.tools import build_lines as lines
from kernelcrew.tools.arena import DTYPES
from kernelcrew.tools.data import fill_large
from kernelcrew.tools.hoststate import cache_bytes
from kernelcrew.tools.timing_blocks import SAMPLE_US
from kernelcrew.tools.timing_rings import call_bytes, slots_for

ENTRY = "time_all_shapes"
REPORTING = ("-fdiagnostics-format=json", "-fdiagnostics-plain-output", "-Wall", "-Wextra")
"""Flags of our builds that change what the compiler says, not what it makes; its remarks are left out as well."""
LINE = 64
WINDOW = 4096
"""Tensors begin at a random place within so many bytes of a fresh line, as they do in our own rings."""

HEAD = """\
#include <math.h>
#include <time.h>

{prototype};

static double now_us(void)
{{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}}
"""
SHAPE = """
/* {key} */
static const long at_{n}[{slots}][{tensors}] = {{ {table} }};
static double call_us_{n}(unsigned char *arena)
{{
    long calls = {slots};
    for (;;) {{
        double began = now_us(), spent;
        for (long c = 0; c < calls; c++) {{
            const long *at = at_{n}[c % {slots}];
            {entry}({arguments});
        }}
        spent = now_us() - began;
        if (spent >= {sample_us})
            return spent / (double)calls;
        calls = spent > {sample_us} / 16.0 ? (long)(1.2 * {sample_us} / spent * (double)calls) + 1 : 16 * calls;
    }}
}}
"""
TAIL = """
float {name}(unsigned char *arena)
{{
    double sum = 0.0;
{terms}
    return (float)exp(sum);
}}
"""


class Ring(Record):
    """Where the tensors of one shape lie in the arena."""

    shape: Shape
    """Which."""
    at: tuple[tuple[int, ...], ...]
    """By slot, the byte at which each tensor begins, in the operator's order."""


class Layout(Record):
    """All timed shapes in one arena."""

    rings: tuple[Ring, ...]
    """By shape."""
    size: int
    """Bytes of the arena."""


def layout(operator: Operator, core: int | None, rng: np.random.Generator) -> Layout:
    """Rings of as many slots as our own samples run over, each tensor at a random place of its element's size."""
    caches = cache_bytes(core)
    at = 0
    rings = []
    for shape in operator.timed():
        slots = []
        for _ in range(slots_for(shape, call_bytes(operator, shape), caches)):
            places = []
            for tensor in operator.tensors:
                size = int(np.dtype(DTYPES[tensor.dtype]).itemsize)
                at += int(rng.integers(WINDOW // size)) * size
                places.append(at)
                at += -(-(_elements(tensor, shape) * size) // LINE) * LINE
            slots.append(tuple(places))
        rings.append(Ring(shape=shape, at=tuple(slots)))
    return Layout(rings=tuple(rings), size=at + LINE)


def arena_for(operator: Operator, found: Layout, rng: np.random.Generator) -> NDArray[np.uint8]:
    """The arena with every input drawn as timed inputs are; outputs hold zeros."""
    arena = np.zeros(found.size, dtype=np.uint8)
    timed = operator.distribution(operator.timing_distribution)
    for ring in found.rings:
        for slot in ring.at:
            for tensor, at in zip(operator.tensors, slot, strict=True):
                if tensor.role != "out":
                    dtype = np.dtype(DTYPES[tensor.dtype])
                    dims = [max(0, int(parse(d).value(ring.shape.axes))) for d in tensor.dims]
                    view = arena[at : at + math.prod(dims) * dtype.itemsize].view(dtype).reshape(dims)
                    fill_large(operator.drawn(timed, tensor.name), rng, view)
    return arena


def timing_text(operator: Operator, backend: Backend, found: Layout) -> str:
    """C text of a function `float time_all_shapes(unsigned char *arena)`: microseconds of a call, one mean."""
    parts = [HEAD.format(prototype=lines.prototype(operator, backend, backend.entry, False))]
    terms = []
    weights = _weights(operator)
    for number, ring in enumerate(found.rings):
        table = ", ".join("{ " + ", ".join(map(str, slot)) + " }" for slot in ring.at)
        parts.append(
            SHAPE.format(
                key=ring.shape.key, n=number, slots=len(ring.at), tensors=len(operator.tensors), table=table,
                entry=backend.entry, arguments=_arguments(operator, backend, ring.shape), sample_us=f"{SAMPLE_US:.1f}",
            )
        )  # fmt: skip
        terms.append(f"    sum += {weights[ring.shape.key]!r} * log(call_us_{number}(arena));")
    return "".join([*parts, TAIL.format(name=ENTRY, terms="\n".join(terms))])


def flags_of(toolchain: Toolchain, backend: Backend, variant: Variant) -> list[str]:
    """The flags of our own builds that decide what the compiler makes of one variant. Raises HarnessError for a plan
    that needs scratch, which the timed function does not hand over."""
    if variant.plan.scratch_bytes:
        raise HarnessError("a plan with scratch cannot be timed by Kernel Tuner", fix="search another operator")
    line = lines.compile_line(toolchain, backend, variant, Path("."), "")
    inner = line[line.index(toolchain.path) + 1 : line.index("-c")]
    return [f for f in inner if f not in REPORTING and not f.startswith(("-fopt-info", "-fdebug-prefix-map"))]


def _weights(operator: Operator) -> dict[str, float]:
    """What each shape counts in a mean over classes of means over their shapes."""
    members: dict[str, int] = {}
    for shape in operator.timed():
        members[shape.shape_class] = members.get(shape.shape_class, 0) + 1
    return {s.key: 1 / (len(members) * members[s.shape_class]) for s in operator.timed()}


def _arguments(operator: Operator, backend: Backend, shape: Shape) -> str:
    places = {t.name: number for number, t in enumerate(operator.tensors)}
    kinds = dict(_named(lines.parameters(operator, backend, False)))
    given = [f"({kinds[n]})(arena + at[{places[n]}])" if n in places else str(shape.axes[n]) for n in backend.args]
    return ", ".join(given)


def _named(parameters: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(name, kind.strip()) for kind, name in parameters]


def _elements(tensor: Tensor, shape: Shape) -> int:
    return math.prod(max(0, int(parse(d).value(shape.axes))) for d in tensor.dims)
