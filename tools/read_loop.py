"""A bare read of an operator's inputs as a kernel of its own: what a kernel bound by bandwidth could reach at best,
timed by the same workers over the same buffers in the same minute. It computes nothing of use and is never a candidate.
"""

from __future__ import annotations

from kernelcrew.kernels.expr import parse, to_c
from kernelcrew.kernels.load import start_candidate
from kernelcrew.kernels.nouns import Candidate, KernelSource, Operator, Tensor
from kernelcrew.record import hash_of
from kernelcrew.tools.build_lines import prototype

STREAMS = (1, 4)
"""Places read at once: one after the other, or four that keep more hardware prefetchers at work."""
LOADS = 8
"""Vector loads a step, each into an accumulator of its own, so that loads alone set the pace."""

WHY = f"Only reads, through {LOADS} vector accumulators: the GB/s that bandwidth alone allows from the same buffers."
_TEXT = """/* Reads each input once, {streams} places at a time, and keeps one sum of its words: bandwidth alone. */
#include <stddef.h>

typedef unsigned int words __attribute__((vector_size({width}), aligned(4), may_alias));

static unsigned int read_all(const void *from, size_t bytes)
{{
    const size_t step = {each} * sizeof(words), part = bytes / {streams} / step * step;
    words sum[{loads}] = {{{{0}}}};
    for (size_t at = 0; at < part; at += step)
#pragma GCC unroll {loads}
        for (int k = 0; k < {loads}; k++)
            sum[k] += ((const words *)((const char *)from + (size_t)(k / {each}) * part + at))[k % {each}];
    for (int k = 1; k < {loads}; k++)
        sum[0] += sum[k];
    unsigned int all = 0;
    for (int k = 0; k < {width} / 4; k++)
        all += sum[0][k];
    return all;
}}

{prototype}
{{
    unsigned int sum = 0;
{reads}
{writes}
}}
"""


def read_loop(operator: Operator, backend: str, vector_bytes: int, streams: int) -> Candidate:
    """The kernel that reads `operator`'s inputs once, `streams` (1, 2, 4 or 8) at a time, by vectors of `vector_bytes`.

    It has the operator's own signature and flags, and writes the first element of each output alone.
    """
    start = start_candidate(operator, backend)
    tensors = [t for t in operator.tensors if t.role != "out"]
    reads = "\n".join(f"    sum += read_all({t.name}, {_bytes(t)});" for t in tensors)
    outs = [t for t in operator.tensors if t.role != "in"]
    writes = "\n".join(f"    if ({_bytes(t)} > 0)\n        {t.name}[0] = sum;" for t in outs)
    text = _TEXT.format(
        streams=streams,
        width=vector_bytes,
        each=LOADS // streams,
        loads=LOADS,
        prototype=prototype(operator, operator.backends[backend], operator.backends[backend].entry, False),
        reads=reads,
        writes=writes,
    )
    first = start.variants[0]
    source = KernelSource(language="c", text=text, name=f"read_{hash_of(text)}.c")
    variant = first.model_copy(update={"source": source})
    return start.model_copy(update={"variants": (variant,), "author": "bench", "rationale": WHY})


def _bytes(tensor: Tensor) -> str:
    """Bytes of a dense tensor, in C over the axes."""
    width = {"float64": 8}.get(tensor.dtype, 4)
    return " * ".join([f"(size_t)({to_c(parse(text))})" for text in tensor.dims] + [str(width)])
