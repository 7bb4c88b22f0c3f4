"""What a kernel is held against in `kernelcrew bench`, besides other kernels: NumPy, and a bare read of the inputs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import ExitStack
from math import exp, log
from statistics import median

from kernelcrew.kernels.expr import parse
from kernelcrew.kernels.nouns import Operator, Shape
from kernelcrew.record import Record, hash_of
from kernelcrew.settings import Settings
from kernelcrew.tools.cores import measuring_core
from kernelcrew.tools.estats import interval
from kernelcrew.tools.nouns import Build
from kernelcrew.tools.rival import Rival, has_rival
from kernelcrew.tools.sandbox import choose
from kernelcrew.tools.timing import Bench
from kernelcrew.tools.timing_blocks import Stand

PAIRS = 15
"""Rounds of batches a shape."""
SAMPLE_US = 2000.0
"""Length of a batch of NumPy calls."""
KERNEL = "kernel"


class Yardstick(Record):
    """One shape against one yardstick."""

    shape: str
    """Its key."""
    ratio: float
    """The yardstick's time over the kernel's, geometric mean over rounds."""
    low: float
    """Lower end of the 95 % interval over rounds."""
    high: float
    """Upper end."""
    kernel_us: float
    """Median call of the kernel."""
    other_us: float
    """Median call of the yardstick."""


class Yardsticks(Record):
    """Every timed shape against both."""

    numpy: tuple[Yardstick, ...]
    """NumPy's own routine, on the same pinned core; empty when the operator has no `rival.py`."""
    read: tuple[Yardstick, ...]
    """The better of the bare reads of the inputs, by the same workers over the same buffers."""
    ring_bytes: dict[str, int]
    """What a sample ran over, by shape: the footprint that a peak belongs to."""


def hold_against(settings: Settings, operator: Operator, kernel: Build, reads: Sequence[Build]) -> Yardsticks:
    """Rounds of batches on one pinned core, each in an order of its own, over rings of the same size."""
    core = measuring_core(settings)
    bench = Bench.on_this_machine(operator, settings, choose(settings), core, hash_of)
    rings = bench.ring_bytes()
    builds = {KERNEL: kernel} | {f"read{number}": build for number, build in enumerate(reads)}
    numpy: list[Yardstick] = []
    read: list[Yardstick] = []
    try:
        with ExitStack() as opened:
            stand = opened.enter_context(bench.lab.stand(builds, [KERNEL]))
            rival = opened.enter_context(Rival(operator, core)) if has_rival(operator) else None
            for shape in operator.timed():
                if rival is not None:
                    size = int(parse(operator.cost.bytes).value(shape.axes))
                    rival.prepare(shape, max(2, round(rings[shape.key] / max(1, size))))
                times = _rounds(stand, rival, shape, list(builds))
                ours = times.pop(KERNEL)
                if rival is not None:
                    numpy.append(_against(shape, ours, times.pop("numpy")))
                read.append(min((_against(shape, ours, t) for t in times.values()), key=lambda y: y.ratio))
    finally:
        bench.close()
    return Yardsticks(numpy=tuple(numpy), read=tuple(read), ring_bytes=rings)


def _rounds(stand: Stand, rival: Rival | None, shape: Shape, names: list[str]) -> dict[str, list[float]]:
    """Microseconds of one call of each contender and of NumPy, round by round."""
    calls = max(1, round(SAMPLE_US / max(rival.batch(1), 0.1))) if rival else 0
    found: dict[str, list[float]] = {name: [] for name in (*names, "numpy")}
    for index in range(PAIRS):
        if rival and index % 2:
            found["numpy"].append(rival.batch(calls) / calls)
        for sample in stand.heat(shape, random.sample(names, len(names))).samples:
            found[sample.name].append(sample.elapsed_us / sample.calls)
        if rival and not index % 2:
            found["numpy"].append(rival.batch(calls) / calls)
    if not rival:
        del found["numpy"]
    return found


def _against(shape: Shape, ours: list[float], theirs: list[float]) -> Yardstick:
    spread = interval([log(other / mine) for mine, other in zip(ours, theirs, strict=True)])
    return Yardstick(
        shape=shape.key,
        ratio=exp(spread.mean),
        low=exp(spread.low),
        high=exp(spread.high),
        kernel_us=median(ours),
        other_us=median(theirs),
    )
