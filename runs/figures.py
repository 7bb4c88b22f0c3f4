"""`kernelcrew bench`: figures as ratios in one run. The incumbent against the start, the start with contract flags,
NumPy on the same pinned thread and a bare read of the inputs; then what the newest run cost by stage."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log
from pathlib import Path

from kernelcrew.errors import HarnessError
from kernelcrew.event import Listener
from kernelcrew.kernels.load import load_operator, start_candidate
from kernelcrew.kernels.nouns import Candidate, Operator
from kernelcrew.platforms.nouns import Platform
from kernelcrew.record import Record
from kernelcrew.runs.crew import Clock, Lab
from kernelcrew.runs.incumbent import find_incumbent
from kernelcrew.runs.journal import payload_of, read_steps
from kernelcrew.runs.listing import run_folder
from kernelcrew.runs.nouns import Start
from kernelcrew.runs.reading import with_contract_flags
from kernelcrew.runs.session import open_lab
from kernelcrew.runs.stages import stage_seconds, tool_seconds
from kernelcrew.runs.yardsticks import Yardstick, Yardsticks, hold_against
from kernelcrew.settings import Settings
from kernelcrew.tools.nouns import AlphaPlan, Build, Timing
from kernelcrew.tools.peaks import measure_peaks, with_peaks
from kernelcrew.tools.profile import shape_figures
from kernelcrew.tools.read_loop import STREAMS, read_loop
from kernelcrew.tools.rival import has_rival
from kernelcrew.tools.workshop import BUILD, SCREEN, BuildArgs, ScreenArgs

BLOCKS = 10
"""Blocks of each comparison of kernels."""
PRODUCTIVE = ("build", "verify", "noise", "profile", "screen", "confirm")
"""Tools whose time is building or measuring."""


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
    beside: Yardsticks
    """The kernel over NumPy and over a bare read of its inputs."""
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
        over_start, flags_over = _timed(lab, first, kernel, flags)
        (over_flags,) = _timed(lab, flags, kernel)
        numpy = "NumPy and " if has_rival(operator) else ""
        lab.say("bench", f"the kernel against {numpy}a bare read of its inputs")
        reads = [read_loop(operator, backend, machine.platform.vector_bytes, streams) for streams in STREAMS]
        beside = hold_against(settings, operator, kernel, _built(lab, *reads))
        tables = (
            _shape_table(operator, machine.platform, (over_start, flags_over, over_flags), beside),
            _class_table(operator, over_start, flags_over, over_flags, beside.numpy),
            *_cost_tables(settings, operator.name, run),
        )
        return BenchRecord(
            operator=operator.name,
            platform=lab.machine.platform.id,
            kernel=found.source,
            over_start=over_start,
            flags_over_start=flags_over,
            over_flags=over_flags,
            beside=beside,
            tables=tables,
        )
    finally:
        lab.close()


def _built(lab: Lab, *candidates: Candidate) -> tuple[Build, ...]:
    """Their builds. Raises HarnessError when one failed: all are trusted, so that the machine is at fault."""
    builds = lab.bus.need(BUILD, BuildArgs(candidates=candidates)).builds
    for build in builds:
        if build.status != "ok":
            why = "; ".join(d.message for d in build.diagnostics[:2]) or build.status
            raise HarnessError(f"a trusted kernel was not built: {why}", fix="run `kernelcrew doctor`")
    return builds


def _timed(lab: Lab, baseline: Build, *candidates: Build) -> tuple[Timing, ...]:
    """Each against the baseline. Raises HarnessError when one gave wrong outputs or the host allowed no figure: a
    table with holes would be read as if it had none."""
    found = lab.bus.need(SCREEN, ScreenArgs(candidates=candidates, baseline=baseline, blocks=BLOCKS)).timings
    for timing in found:
        if not timing.shapes:
            why = f"a trusted kernel has no figures ({timing.status}): {timing.reason}"
            raise HarnessError(why, fix="run it again on a quiet machine; `kernelcrew judge` says more of a kernel")
    return found


def _shape_table(
    operator: Operator, platform: Platform, timings: tuple[Timing, Timing, Timing], beside: Yardsticks
) -> FigureTable:
    over_start, flags_over, over_flags = ({s.shape: s for s in t.shapes} for t in timings)
    numpy, read = ({y.shape: y for y in listed} for listed in (beside.numpy, beside.read))
    rows = []
    for shape in operator.timed():
        key = shape.key
        mine = over_start[key]
        figures = shape_figures(operator, shape, mine.candidate_us, platform, beside.ring_bytes[key])
        rows.append(
            (
                key,
                shape.shape_class,
                f"{mine.candidate_us:.2f}",
                _cell(mine),
                _cell(flags_over[key]),
                _cell(over_flags[key]),
                *([_cell(numpy[key])] if numpy else []),
                f"{figures.gb_s:.1f}",
                figures.level,
                f"{100 * figures.gb_s / figures.peak_gb_s:.0f} %" if figures.peak_gb_s else "-",
                _cell(read[key]),
            )
        )
    columns = (
        "shape",
        "class",
        "us",
        "over start",
        "flags over start",
        "over flags",
        *(["over NumPy"] if numpy else []),
        "GB/s",
        "level",
        "of read peak",
        "over bare read",
    )
    title = "ratios in one run, one pinned core, screen grade, 95 % intervals"
    left_out = "" if numpy else f"; NumPy is left out: {operator.name} has no rival.py"
    return FigureTable(title=title + left_out, columns=columns, rows=tuple(rows))


def _class_table(
    operator: Operator, over: Timing, flags: Timing, over_flags: Timing, numpy: Sequence[Yardstick]
) -> FigureTable:
    beside = {r.shape: r.ratio for r in numpy}
    rows = []
    for name in operator.classes():
        cells = [_cell(c) if (c := t.of(name)) else "-" for t in (over, flags, over_flags)]
        if beside:
            ratios = [beside[s.key] for s in operator.timed() if s.shape_class == name]
            mean = exp(sum(map(log, ratios)) / len(ratios))
            cells.append(f"{mean:.2f}x (worst shape {min(ratios):.2f}x)")
        rows.append((name, *cells))
    columns = ("class", "over start", "flags over start", "over flags", *(["over NumPy"] if beside else []))
    return FigureTable(title="by class", columns=columns, rows=tuple(rows))


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
