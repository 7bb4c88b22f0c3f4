"""`kernelcrew bench`: figures as ratios in one run. The incumbent against the start, the start with contract flags, and
NumPy on the same pinned thread; then what the newest run cost by stage."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log
from pathlib import Path
from statistics import median

from kernelcrew.event import Listener
from kernelcrew.kernels.expr import parse
from kernelcrew.kernels.load import load_operator, start_candidate
from kernelcrew.kernels.nouns import Candidate, Operator, Shape
from kernelcrew.platforms.nouns import Platform
from kernelcrew.record import Record, hash_of
from kernelcrew.runs.crew import Clock, Lab
from kernelcrew.runs.incumbent import find_incumbent
from kernelcrew.runs.journal import payload_of, read_steps
from kernelcrew.runs.nouns import Start
from kernelcrew.runs.reading import with_contract_flags
from kernelcrew.runs.session import open_lab, run_folder
from kernelcrew.runs.stages import stage_seconds, tool_seconds
from kernelcrew.settings import Settings
from kernelcrew.tools.cores import measuring_core
from kernelcrew.tools.estats import interval
from kernelcrew.tools.nouns import AlphaPlan, Build, Timing
from kernelcrew.tools.peaks import measure_peaks, with_peaks
from kernelcrew.tools.profile import shape_figures
from kernelcrew.tools.rival import Rival
from kernelcrew.tools.sandbox import choose
from kernelcrew.tools.timing import Bench
from kernelcrew.tools.timing_blocks import Stand
from kernelcrew.tools.workshop import BUILD, SCREEN, BuildArgs, ScreenArgs

BLOCKS = 10
"""Blocks of each comparison of kernels."""
PAIRS = 15
"""Pairs of batches a shape against NumPy."""
SAMPLE_US = 2000.0
"""Length of a batch of the slower of the two."""
PRODUCTIVE = ("build", "verify", "noise", "profile", "screen", "confirm")
"""Tools whose time is building or measuring."""


class RivalRatio(Record):
    """One shape against NumPy."""

    shape: str
    """Its key."""
    ratio: float
    """NumPy's time over the kernel's, geometric mean over pairs."""
    low: float
    """Lower end of the 95 % interval over pairs."""
    high: float
    """Upper end."""
    kernel_us: float
    """Median call of the kernel."""
    numpy_us: float
    """Median call of NumPy."""


class FigureTable(Record):
    """One table to print."""

    title: str
    """With what it rests on."""
    columns: tuple[str, ...]
    """Heads."""
    rows: tuple[tuple[str, ...], ...]
    """Cells."""


class BenchRecord(Record):
    """All figures of one bench."""

    operator: str
    """Its operator."""
    platform: str
    """Measured on."""
    kernel: str
    """Where the measured kernel comes from."""
    over_start: Timing
    """The kernel over the start."""
    flags_over_start: Timing
    """Contract flags alone over the start."""
    over_flags: Timing
    """The kernel over the start with flags alone."""
    over_numpy: tuple[RivalRatio, ...]
    """The kernel over NumPy."""
    tables: tuple[FigureTable, ...]
    """For people."""


def bench_figures(settings: Settings, name: str, run: str, listener: Listener) -> BenchRecord:
    """Measure the incumbent of this platform (the start when nothing was adopted yet) and gather a run's cost."""
    operator = load_operator(name)
    backend = "c"
    lab = open_lab(
        settings,
        operator,
        backend,
        Clock(budget_s=600.0),
        AlphaPlan(confirmations=1, classes=len(operator.classes())),
        listener,
    )
    try:
        start = start_candidate(operator, backend)
        found = find_incumbent(lab, start, backend)
        kernel, flags, first = _built(
            lab, found.candidate or start, with_contract_flags(operator, backend, start), start
        )
        lab.say("bench", "the peaks of this machine")
        machine = with_peaks(lab.machine, measure_peaks(lab.machine, settings, again=True))
        lab.say("bench", "the kernel and the flags alone against the start")
        over_start, flags_over = lab.bus.need(
            SCREEN, ScreenArgs(candidates=(kernel, flags), baseline=first, blocks=BLOCKS)
        ).timings
        over_flags = lab.bus.need(SCREEN, ScreenArgs(candidates=(kernel,), baseline=flags, blocks=BLOCKS)).timings[0]
        lab.say("bench", "the kernel against NumPy")
        numpy = against_numpy(settings, operator, kernel)
        tables = (
            _shape_table(operator, machine.platform, (over_start, flags_over, over_flags), numpy),
            _class_table(operator, over_start, flags_over, over_flags, numpy),
            *_cost_tables(settings, operator.name, run),
        )
        return BenchRecord(
            operator=operator.name,
            platform=lab.machine.platform.id,
            kernel=found.source,
            over_start=over_start,
            flags_over_start=flags_over,
            over_flags=over_flags,
            over_numpy=numpy,
            tables=tables,
        )
    finally:
        lab.close()


def against_numpy(settings: Settings, operator: Operator, build: Build) -> tuple[RivalRatio, ...]:
    """Pairs of batches in ABBA order on one pinned core, each shape over rings of the same size."""
    core = measuring_core(settings)
    bench = Bench.on_this_machine(operator, settings, choose(settings), core, hash_of)
    rings = bench.ring_bytes()
    rows: list[RivalRatio] = []
    with bench.lab.stand({"kernel": build}, ["kernel"]) as stand, Rival(operator, core) as rival:
        for shape in operator.timed():
            slots = max(2, round(rings[shape.key] / max(1, _bytes_of(operator, shape))))
            pairs = _pairs(stand, rival, shape, slots)
            logs = [log(theirs / ours) for ours, theirs in pairs]
            spread = interval(logs)
            rows.append(
                RivalRatio(
                    shape=shape.key,
                    ratio=exp(spread.mean),
                    low=exp(spread.low),
                    high=exp(spread.high),
                    kernel_us=median(o for o, _ in pairs),
                    numpy_us=median(t for _, t in pairs),
                )
            )
    return tuple(rows)


def _kernel_us(stand: Stand, shape: Shape) -> float:
    sample = stand.heat(shape, ["kernel"]).samples[0]
    return sample.elapsed_us / sample.calls


def _pairs(stand: Stand, rival: Rival, shape: Shape, slots: int) -> list[tuple[float, float]]:
    """Wall clock of one call of kernel and rival, in turn, each going first in half of the pairs."""
    rival.prepare(shape, slots)
    calls = max(1, round(SAMPLE_US / max(rival.batch(1), 0.1)))
    found: list[tuple[float, float]] = []
    for index in range(PAIRS):
        before = _kernel_us(stand, shape) if index % 2 == 0 else None
        theirs = rival.batch(calls) / calls
        found.append((_kernel_us(stand, shape) if before is None else before, theirs))
    return found


def _built(lab: Lab, *candidates: Candidate) -> tuple[Build, ...]:
    return lab.bus.need(BUILD, BuildArgs(candidates=candidates)).builds


def _bytes_of(operator: Operator, shape: Shape) -> int:
    return int(parse(operator.cost.bytes).value(shape.axes))


def _shape_table(
    operator: Operator, platform: Platform, timings: tuple[Timing, Timing, Timing], numpy: Sequence[RivalRatio]
) -> FigureTable:
    over_start, flags_over, over_flags = ({s.shape: s for s in t.shapes} for t in timings)
    beside = {r.shape: r for r in numpy}
    rows = []
    for shape in operator.timed():
        key = shape.key
        mine = over_start[key]
        figures = shape_figures(operator, shape, mine.candidate_us, platform)
        rows.append(
            (
                key,
                shape.shape_class,
                f"{mine.candidate_us:.2f}",
                _cell(mine),
                _cell(flags_over[key]),
                _cell(over_flags[key]),
                _cell(beside[key]),
                f"{figures.gb_s:.1f}",
                figures.level,
                f"{100 * figures.share:.0f} %",
            )
        )
    columns = (
        "shape",
        "class",
        "us",
        "over start",
        "flags over start",
        "over flags",
        "over NumPy",
        "GB/s",
        "level",
        "of read peak",
    )
    return FigureTable(
        title="ratios in one run, one pinned core, screen grade, 95 % intervals", columns=columns, rows=tuple(rows)
    )


def _class_table(
    operator: Operator, over: Timing, flags: Timing, over_flags: Timing, numpy: Sequence[RivalRatio]
) -> FigureTable:
    beside = {r.shape: r.ratio for r in numpy}
    rows = []
    for name in operator.classes():
        ratios = [beside[s.key] for s in operator.timed() if s.shape_class == name]
        mean = exp(sum(map(log, ratios)) / len(ratios))
        cells = [_cell(c) if (c := t.of(name)) else "-" for t in (over, flags, over_flags)]
        rows.append((name, *cells, f"{mean:.2f}x (worst shape {min(ratios):.2f}x)"))
    return FigureTable(
        title="by class",
        columns=("class", "over start", "flags over start", "over flags", "over NumPy"),
        rows=tuple(rows),
    )


def _cost_tables(settings: Settings, operator: str, run: str) -> tuple[FigureTable, ...]:
    folder = run_folder(settings, run) if run else newest_run(settings, operator)
    if folder is None:
        return ()
    steps = read_steps(folder)
    start = payload_of(steps, "start", Start)
    seconds, tools = stage_seconds(steps), tool_seconds(steps)
    total = sum(seconds.values())
    productive = sum(spent for name, spent in tools.items() if name in PRODUCTIVE)
    rows = [(stage, f"{spent:.1f}", f"{100 * spent / total:.0f} %") for stage, spent in seconds.items()]
    rows.append(("all", f"{total:.1f}", "100 %"))
    share = 100 * (1 - productive / total) if total else 0.0
    rows.append(("neither building nor measuring", f"{total - productive:.1f}", f"{share:.1f} %"))
    title = f"cost of run {start.run if start else folder.name}, seconds by stage"
    return (FigureTable(title=title, columns=("stage", "seconds", "share"), rows=tuple(rows)),)


def newest_run(settings: Settings, operator: str) -> Path | None:
    """The folder of the newest finished run of an operator; None when there is none."""
    finished = []
    for path in (settings.home / "runs").glob("*/journal.jsonl"):
        steps = read_steps(path.parent)
        start = payload_of(steps, "start", Start)
        if start is not None and start.operator == operator and any(s.step == "end" for s in steps):
            finished.append((start.started, path.parent))
    return max(finished, default=(None, None))[1]


def _cell(found: object) -> str:
    ratio, low, high = (getattr(found, name) for name in ("ratio", "low", "high"))
    return f"{ratio:.2f}x [{low:.2f}, {high:.2f}]"
