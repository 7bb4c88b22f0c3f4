"""From blocks to answers: the ratios, intervals and words of a `Timing`. Pure."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from kernelcrew.kernels.nouns import Shape, ShapeClass
from kernelcrew.record import Record
from kernelcrew.tools.estats import (
    LARGEST_LOSS,
    Interval,
    by_interval,
    class_statistic,
    deviation,
    faster_margin,
    interval,
    lag1,
    not_slower_margin,
)
from kernelcrew.tools.hoststate import HostReading, between
from kernelcrew.tools.nouns import Answer, ClassTiming, Noise, ShapeTiming
from kernelcrew.tools.timing_blocks import Block, call_times, heat_counts
from kernelcrew.tools.timing_sequence import Progress

NOISY_CLASS = 0.03
"""Spread of a class against its own copy beyond which the host decides little: a gain has to exceed 9 % to count."""
NOISY_SHAPE = 0.08
"""The same for one shape: at twice this spread a shape that is as fast as before loses one block in four."""
NOISY_DISCARDS = 1 / 3
"""Share of lost heats beyond which the host is too noisy."""
FLAGGED = 10.0
"""A gain above this is verified again with new seeds and flagged for a person."""


class NoiseTable(Record):
    """The baseline against its own copy, in full."""

    noise: Noise
    """What callers see."""
    shapes: dict[str, float]
    """Standard deviation by shape (log ratio, about 0)."""
    call_us: dict[str, float]
    """Median time of one call by shape."""
    block_s: float
    """Length of one of its blocks."""

    @property
    def gain_margin(self) -> float:
        return faster_margin(self.noise.aa_sd)

    def loss_margin(self, key: str, floor_us: float = 0.0) -> float:
        """Loss forgiven for a shape; one that was not measured gets the widest spread of all."""
        sd = self.shapes.get(key, self.noise.worst_shape_sd)
        return not_slower_margin(sd, self.call_us.get(key, math.inf), floor_us)


class Sides(Record):
    """Who is held against whom."""

    candidate: str
    """Contender's name."""
    baseline: str
    """Contender's name."""


def noise_table(blocks: Sequence[Block], shapes: Sequence[Shape], sides: Sides) -> NoiseTable:
    """Spread of the class statistic and of each shape; the largest class counts for all."""
    logs = [b.logs(sides.candidate, sides.baseline) for b in blocks]
    by_shape = {s.key: spread([row[s.key] for row in logs if s.key in row], NOISY_SHAPE) for s in shapes}
    by_class = [[class_statistic(row, keys) for row in logs] for keys in members(shapes).values()]
    aa_sd = max((spread([v for v in values if v is not None], NOISY_CLASS) for values in by_class), default=0.0)
    worst = max(by_shape.values(), default=0.0)
    lost = too_disturbed(blocks)
    quiet = aa_sd <= NOISY_CLASS and worst <= NOISY_SHAPE and not lost
    figures = f"a class differs from its own copy by {aa_sd:.2%} sd, the worst shape by {worst:.2%}"
    if lost:
        figures += f"; {lost}"
    reason = f"quiet: {figures}" if quiet else f"too noisy: {figures} (limits {NOISY_CLASS:.0%} and {NOISY_SHAPE:.0%})"
    noise = Noise(aa_sd=aa_sd, worst_shape_sd=worst, quiet=quiet, reason=reason)
    seconds = max((b.seconds for b in blocks), default=0.0)
    return NoiseTable(noise=noise, shapes=by_shape, call_us=call_times(blocks, sides.baseline), block_s=seconds)


def spread(values: Sequence[float], unknown: float) -> float:
    """`deviation` of three blocks or more; of fewer little is known, and `unknown` is taken unless they spread more."""
    return deviation(values) if len(values) >= 3 else max(deviation(values), unknown)


def members(shapes: Sequence[Shape]) -> dict[ShapeClass, list[str]]:
    """Keys of the timed shapes by class, in the order of the manifest."""
    found: dict[ShapeClass, list[str]] = {}
    for shape in shapes:
        if shape.role != "held_out":
            found.setdefault(shape.shape_class, []).append(shape.key)
    return found


class Estimates(Record):
    """Block statistics of one candidate against one baseline."""

    shapes: dict[str, tuple[float, ...]]
    """Median log ratios by shape, in the order of the blocks."""
    classes: dict[ShapeClass, tuple[float, ...]]
    """Class statistics likewise."""
    candidate_us: dict[str, float]
    """Median call times."""
    baseline_us: dict[str, float]
    """Median call times."""


def estimates(blocks: Sequence[Block], shapes: Sequence[Shape], sides: Sides) -> Estimates:
    """What the blocks say, before any judgement."""
    logs = [b.logs(sides.candidate, sides.baseline) for b in blocks]
    groups = members(shapes)
    return Estimates(
        shapes={s.key: tuple(row[s.key] for row in logs if s.key in row) for s in shapes},
        classes={
            c: tuple(v for row in logs if (v := class_statistic(row, keys)) is not None) for c, keys in groups.items()
        },
        candidate_us=call_times(blocks, sides.candidate),
        baseline_us=call_times(blocks, sides.baseline),
    )


def screen_answers(
    found: Estimates, shapes: Sequence[Shape], table: NoiseTable, floor_us: float
) -> tuple[tuple[ClassTiming, ...], tuple[ShapeTiming, ...]]:
    """Answers by the intervals alone. A shape is never called faster: only classes are."""
    rows = []
    for shape in shapes:
        span = interval(found.shapes[shape.key], table.shapes.get(shape.key, 0.0))
        answer = by_interval(span, math.inf, table.loss_margin(shape.key, floor_us))
        rows.append(shape_row(found, shape, span, answer))
    classes = []
    for name, values in found.classes.items():
        span = interval(values, table.noise.aa_sd)
        loss = not_slower_margin(table.noise.aa_sd)
        classes.append(class_row(name, span, by_interval(span, table.gain_margin, loss)))
    return tuple(classes), tuple(rows)


def confirmed_answers(
    found: Estimates, shapes: Sequence[Shape], table: NoiseTable, progress: Progress
) -> tuple[tuple[ClassTiming, ...], tuple[ShapeTiming, ...]]:
    """Answers of the sequential tests, ratios of the new blocks."""
    rows = []
    for shape in shapes:
        key = shape.key
        span = interval(found.shapes[key], table.shapes.get(key, 0.0))
        answer = _unless_lost(progress.shapes[key].answer, span)
        start = progress.shapes_start[key].answer if progress.shapes_start else answer
        rows.append(shape_row(found, shape, span, answer).model_copy(update={"answer_start": start}))
    answers = {row.shape: row.answer for row in rows}
    classes = []
    for name, values in found.classes.items():
        whole = class_row(name, interval(values, table.noise.aa_sd), progress.class_answer(name, answers))
        classes.append(whole.model_copy(update={"e_value": progress.classes[name].gain.value}))
    return tuple(classes), tuple(rows)


def _unless_lost(answer: Answer, span: Interval) -> Answer:
    """An estimate that lost over 5 % is never passed: slower when its interval says so too, else unknown."""
    if span.mean >= math.log1p(-LARGEST_LOSS):
        return answer
    return "slower" if span.high < 0 or answer == "slower" else "unknown"


def shape_row(found: Estimates, shape: Shape, span: Interval, answer: Answer) -> ShapeTiming:
    return ShapeTiming(
        shape=shape.key, shape_class=shape.shape_class, ratio=math.exp(span.mean), low=math.exp(span.low),
        high=math.exp(span.high), candidate_us=found.candidate_us.get(shape.key, 0.0),
        baseline_us=found.baseline_us.get(shape.key, 0.0), answer=answer, blocks=found.shapes[shape.key],
    )


def class_row(name: ShapeClass, span: Interval, answer: Answer) -> ClassTiming:
    return ClassTiming(
        shape_class=name, answer=answer, ratio=math.exp(span.mean), low=math.exp(span.low), high=math.exp(span.high)
    )


def above_ceiling(call_us: Mapping[str, float], ceilings: Mapping[str, float]) -> str:
    """The first shape that is faster than is physically possible, 10 % allowed; '' when none is."""
    for key, least in ceilings.items():
        time = call_us.get(key, math.inf)
        if time < 0.9 * least:
            return f"{key}: {time:.3g} us a call, the machine's own peak needs {least:.3g} us: above the roofline"
    return ""


def host_figures(
    before: HostReading, after: HostReading, blocks: Sequence[Block], found: Estimates
) -> dict[str, float]:
    """What the host did, and what a person should look at."""
    use = between(before, after)
    heats, bad, by_cpu = heat_counts(blocks)
    top = _top(found)[0]
    lags = [lag1(values) for values in found.classes.values()]
    return {
        "load1": round(use.load1, 2), "steal_share": round(use.steal_share, 4), "busy_share": round(use.busy_share, 4),
        "pairs": float(heats), "discarded": float(bad), "by_processor_time": float(by_cpu),
        "suspicious": top if top > FLAGGED else 0.0,
        "lag1": round(max(lags, default=0.0), 3),
    }


def suspicion(found: Estimates) -> str:
    """Words for a person when a gain is too large to be believed unseen; '' when none is."""
    ratio, key = _top(found)
    return f"flagged for a person: {ratio:.3g} times faster on {key}" if ratio > FLAGGED else ""


def _top(found: Estimates) -> tuple[float, str]:
    """The largest gain of a shape, and its key."""
    return max(((math.exp(_mean(v)), key) for key, v in found.shapes.items() if v), default=(1.0, ""))


def some(names: Sequence[str], most: int = 3) -> str:
    """The first of many: `a, b, c and 11 more`."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def too_disturbed(blocks: Sequence[Block]) -> str:
    """Why the host could decide nothing; '' when few heats were lost."""
    heats, bad, _ = heat_counts(blocks)
    if heats < 20 or bad / heats <= NOISY_DISCARDS:
        return ""
    return f"{bad} of {heats} pairs were disturbed and count for nothing"


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values)
