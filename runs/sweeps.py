"""Sweeps that the team may order before it proposes: knob values of the standing kernel, or shapes along one axis.

They only measure. Each is journalled under its own arguments, costs the run's budget, and a run allows few of them.
"""

from __future__ import annotations

from kernelcrew.kernels.compose import compose
from kernelcrew.kernels.nouns import Candidate, Edit, NotApplicable, Patch, Shape
from kernelcrew.record import Record, hash_of
from kernelcrew.runs.crew import Crew
from kernelcrew.runs.tuning import score
from kernelcrew.tools.bus import Bus, Level, Refusal, Tool
from kernelcrew.tools.profile import shape_figures
from kernelcrew.tools.timing_rings import call_bytes
from kernelcrew.tools.workshop import BUILD, SCREEN, TIMES, BuildArgs, ScreenArgs, TimesArgs

MOST_SWEEPS = 6
"""In one run: a sweep costs about what a screen does."""
MOST_VALUES = 5
"""Values of one knob at once: what one screen holds."""
MOST_LENGTHS = 8
"""Shapes of one sweep."""
MOST_BYTES = 256 << 20
"""Bytes of one swept shape: a wish cannot exhaust the machine."""


class KnobArgs(Record):
    """Values of one knob of the standing kernel."""

    knob: str
    """A knob of the source, or a define of the plan."""
    values: list[int]
    """At most 5."""


class KnobRow(Record):
    """One value."""

    value: int
    """Of the knob."""
    overall: float
    """Geometric mean of the class ratios over the standing kernel; 0 when it could not be built or run."""
    classes: dict[str, float]
    """Ratio by class: above 1 is faster than the standing kernel."""
    why: str = ""
    """Why there is no figure."""


class KnobSweep(Record):
    """What a sweep of a knob gave, screen grade."""

    knob: str
    """The knob."""
    now: int | None
    """Its value in the standing kernel."""
    margin: float
    """Ratios nearer to 1 than this are noise."""
    rows: tuple[KnobRow, ...]
    """In the order asked."""
    refused: str = ""
    """Why nothing was measured."""


class LengthArgs(Record):
    """Shapes along one axis."""

    axis: str
    """The axis that is varied."""
    values: list[int]
    """At most 8."""
    others: str
    """The other axes, as in a shape's key: `rows=64,n=1` (the varied axis may be left out)."""


class LengthRow(Record):
    """One shape."""

    shape: str
    """Its key."""
    us: float
    """Median of one call."""
    gb_s: float
    """Bytes of the cost formula over the time."""
    share: float
    """Of the measured peak that binds."""


class LengthSweep(Record):
    """What a sweep of shapes gave, for the standing kernel."""

    rows: tuple[LengthRow, ...] = ()
    """In the order asked."""
    refused: str = ""
    """Why nothing was measured."""


SWEEP_KNOB = Tool(
    "sweep_knob",
    "Time the standing kernel with other values of one of its knobs (at most 5); nothing is kept",
    KnobArgs,
    KnobSweep,
    Level.MEASURE,
    frozenset({"proposer"}),
)
SWEEP_LENGTHS = Tool(
    "sweep_lengths",
    "Time the standing kernel over further values of one axis (at most 8), short to long",
    LengthArgs,
    LengthSweep,
    Level.MEASURE,
    frozenset({"proposer", "profiler_reader"}),
)


def register_sweeps(bus: Bus, crew: Crew) -> None:
    """Put the sweeps on the bus."""
    bus.register(SWEEP_KNOB, lambda args: sweep_knob(crew, args))
    bus.register(SWEEP_LENGTHS, lambda args: sweep_lengths(crew, args))


def sweep_knob(crew: Crew, args: KnobArgs) -> KnobSweep:
    """Build and screen the standing kernel with each value."""
    now = _value_now(crew.stands().candidate, args.knob)
    blank = KnobSweep(knob=args.knob, now=now, margin=0.0, rows=())
    if now is None:
        return blank.model_copy(update={"refused": f"the standing kernel has no knob {args.knob}"})
    if not 0 < len(args.values) <= MOST_VALUES:
        return blank.model_copy(update={"refused": f"give 1 to {MOST_VALUES} values"})
    step = f"sweep.{hash_of(crew.stands().candidate.identity, args)}"
    if crew.journal.find(step) is None and _spent(crew):
        return blank.model_copy(update={"refused": f"the {MOST_SWEEPS} sweeps of this run are done"})
    crew.say("propose", f"the proposer orders a sweep: {args.knob} in {args.values}")
    return crew.journal.do(step, KnobSweep, args, lambda: _screened(crew, args, blank))


def sweep_lengths(crew: Crew, args: LengthArgs) -> LengthSweep:
    """Time the standing kernel on each shape."""
    shapes = _shapes(crew, args)
    if isinstance(shapes, str):
        return LengthSweep(refused=shapes)
    step = f"sweep.{hash_of(crew.stands().candidate.identity, args)}"
    if crew.journal.find(step) is None and _spent(crew):
        return LengthSweep(refused=f"the {MOST_SWEEPS} sweeps of this run are done")
    crew.say("read", f"the team orders a sweep: {args.axis} in {args.values}")
    return crew.journal.do(step, LengthSweep, args, lambda: _timed(crew, shapes))


def _spent(crew: Crew) -> bool:
    return sum(1 for s in crew.journal.steps if s.step.startswith("sweep.")) >= MOST_SWEEPS


def _value_now(candidate: Candidate, knob: str) -> int | None:
    from kernelcrew.kernels.cparse import parse_c

    last = candidate.variants[-1]
    if knob in last.plan.defines:
        return last.plan.defines[knob]
    found = parse_c(last.source.text).knob(knob)
    return found.value if found else None


def _screened(crew: Crew, args: KnobArgs, blank: KnobSweep) -> KnobSweep:
    standing = crew.stands()
    rows: dict[int, KnobRow] = {}
    made: list[tuple[int, Candidate]] = []
    for value in dict.fromkeys(args.values):
        rows[value] = KnobRow(value=value, overall=0.0, classes={}, why="not measured")
        edit = Edit(change="sweep", knobs={args.knob: value})
        patch = Patch(proposal="sweep", edits=(edit,), author="team")
        candidate = compose(standing.candidate, patch, None, operator=crew.operator)
        if isinstance(candidate, NotApplicable):
            rows[value] = rows[value].model_copy(update={"why": candidate.because})
        else:
            made.append((value, candidate.model_copy(update={"author": "start"})))
    builds = crew.bus.need(BUILD, BuildArgs(candidates=tuple(c for _, c in made))).builds
    good = [(v, b) for (v, _), b in zip(made, builds, strict=True) if b.status == "ok"]
    answer = crew.bus.use(SCREEN, ScreenArgs(candidates=tuple(b for _, b in good), baseline=standing.build))
    if isinstance(answer, Refusal):
        return blank.model_copy(update={"refused": answer.because})
    for (value, _), timing in zip(good, answer.timings, strict=True):
        classes = {c.shape_class: round(c.ratio, 4) for c in timing.classes}
        rows[value] = KnobRow(value=value, overall=round(score(timing), 4), classes=classes, why=timing.reason)
    margin = max((t.margin for t in answer.timings), default=0.0)
    return blank.model_copy(update={"margin": round(margin, 4), "rows": tuple(rows[v] for v in rows)})


def _shapes(crew: Crew, args: LengthArgs) -> tuple[Shape, ...] | str:
    names = [a.name for a in crew.operator.axes]
    if args.axis not in names:
        return f"no axis '{args.axis}': the axes are {', '.join(names)}"
    if not 0 < len(args.values) <= MOST_LENGTHS or min(args.values) < 1:
        return f"give 1 to {MOST_LENGTHS} values of at least 1"
    try:
        given = {k: int(v) for k, _, v in (p.partition("=") for p in args.others.split(",") if p.strip())}
    except ValueError:
        return f"'{args.others}' is no shape: write it as {crew.operator.timed()[0].key}"
    if missing := [n for n in names if n != args.axis and given.get(n, 0) < 1]:
        return f"'others' must give {', '.join(missing)}"
    shapes = []
    for value in dict.fromkeys(args.values):
        axes = {n: value if n == args.axis else given[n] for n in names}
        shape = Shape(axes=axes, shape_class="main")
        if call_bytes(crew.operator, shape) > MOST_BYTES:
            return f"{shape.key} needs more than {MOST_BYTES >> 20} MB"
        shapes.append(shape)
    return tuple(shapes)


def _timed(crew: Crew, shapes: tuple[Shape, ...]) -> LengthSweep:
    answer = crew.bus.use(TIMES, TimesArgs(build=crew.stands().build, shapes=shapes))
    if isinstance(answer, Refusal):
        return LengthSweep(refused=answer.because)
    rows = []
    for shape in shapes:
        us = answer.us.get(shape.key, 0.0)
        ring = answer.ring_bytes.get(shape.key)
        figures = shape_figures(crew.operator, shape, us, crew.machine.platform, ring)
        rows.append(LengthRow(shape=shape.key, us=us, gb_s=round(figures.gb_s, 3), share=round(figures.share, 4)))
    return LengthSweep(rows=tuple(rows))
