"""What the command line prints: progress to standard error, results to standard output. The only module that prints."""

from __future__ import annotations

import json as jsonlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table
from rich.text import Text

from kernelcrew.event import Event, Listener
from kernelcrew.runs.nouns import RunRecord
from kernelcrew.runs.outcome import best_seen, kept_changes, seen_words
from kernelcrew.settings import Settings
from kernelcrew.tools.nouns import Timing

if TYPE_CHECKING:
    from kernelcrew.runs.asking_memory import Restored
    from kernelcrew.runs.crew import Crew
    from kernelcrew.runs.doctor import Finding
    from kernelcrew.runs.figures import BenchRecord, FigureTable

err = Console(stderr=True, highlight=False, soft_wrap=True)
out = Console(highlight=False, width=None if sys.stdout.isatty() else 120)


@contextmanager
def progress() -> Iterator[Listener]:
    """A listener: one line an event to standard error, with time, budget left, round, stage, candidate, message."""

    def listen(event: Event) -> None:
        if event.status == "reused":
            return
        left = f"{max(event.left_s, 0):4.0f} s left" if event.left_s else ""
        where = f"round {event.round} " if event.round else ""
        line = Text(f"{event.elapsed_s:6.1f} s  {left:>11}  ", style="dim")
        line.append(f"{where}{event.stage:<9}", style="yellow" if event.status == "warn" else "cyan")
        line.append(f" {event.candidate + ': ' if event.candidate else ''}{event.message}")
        err.print(line)

    yield listen


def play_to_end(crew: Crew, *, json: bool) -> None:
    """Play a run, write its report, print its table; close what was opened however it ends."""
    from kernelcrew.runs.report import write_report
    from kernelcrew.runs.run import play

    try:
        note(f"run {crew.start.run}  ({crew.journal.folder})")
        record = play(crew)
        write_report(crew.journal.folder)
    finally:
        crew.close()
    table(record, quiet=json)
    if json:
        emit(run_json(record))


def table(record: RunRecord, *, quiet: bool = False) -> None:
    """The readable result: what was tried, what became of it and why, ratios, where the report lies."""
    console = err if quiet else out
    tried = Table(
        title=f"{record.operator} on {record.platform}: what was tried", title_justify="left", show_lines=True
    )
    for column in ("proposal", "changes", "decision", "why"):
        tried.add_column(column, overflow="fold")
    for round_ in record.rounds:
        for one in round_.judged:
            kept = set(one.trial.candidate.changes) if one.trial.candidate else set()
            marks = [c if c in kept else f"({c})" for c in one.changes]
            tried.add_row(f"{one.proposal} {one.title}", "\n".join(marks), one.decision.action, one.decision.reason)
    console.print(tried)
    ratios = Table(title="measured ratios, by shape class (95 % intervals)", title_justify="left")
    for column in ("class", "over this run's incumbent", "over the start kernel", "start with contract flags alone"):
        ratios.add_column(column)
    seen = None if kept_changes(record.rounds) else best_seen(record.rounds)
    for name in classes_of(record):
        cells = [cell(t, name) for t in (record.final_timing, record.final_over_start, record.baseline.flags_alone)]
        if seen and record.final_timing is None:
            cells[0] = seen_words(seen, name) or "-"
        ratios.add_row(name, *cells)
    console.print(ratios)
    for round_ in record.rounds:
        for line in round_.blocked:
            console.print(f"not tried again  {line}")
        for line in round_.barred:
            console.print(f"not tried  {line}", markup=False)
    for line in held_back(record):
        console.print(f"not committed {line}", markup=False)
    for line in record.overridden:
        console.print(f"went on anyway  {line}", markup=False)
    console.print(f"started from  {record.baseline.incumbent_from}")
    if branch := branch_of(record):
        console.print(f"adopted on    {branch}", soft_wrap=True)
    console.print(f"stopped       {record.stop_reason}")
    console.print(f"report        {record.report}", soft_wrap=True)


def branch_of(record: RunRecord) -> str:
    """The branch that holds what was adopted; '' when nothing was."""
    return next((settled.branch for round_ in record.rounds for settled in round_.settled), "")


def held_back(record: RunRecord) -> list[str]:
    """What was adopted but not committed, and why: the team's level does not reach that far."""
    settled = [s for round_ in record.rounds for s in round_.settled]
    return [f"{s.proposal}: {s.refused.tool} {s.refused.because}" for s in settled if s.refused]


def classes_of(record: RunRecord) -> list[str]:
    """The operator's classes, in their order, as the baseline profile has them."""
    return list(dict.fromkeys(s.shape_class for s in record.baseline.profile.shapes))


def cell(timing: Timing | None, name: str) -> str:
    """`9.81x [9.60, 10.02]`, or a dash for what was not measured."""
    found = next((c for c in timing.classes if c.shape_class == name), None) if timing else None
    return f"{found.ratio:.2f}x [{found.low:.2f}, {found.high:.2f}]" if found else "-"


def run_json(record: RunRecord) -> dict[str, object]:
    """The object that `run --json` prints."""
    decisions = [
        {
            "proposal": one.proposal,
            "title": one.title,
            "changes": list(one.changes),
            "kept": list(one.decision.keep) if one.decision.action.startswith("adopt") else [],
            "decision": one.decision.action,
            "rule": one.decision.rule or None,
            "reason": one.decision.reason,
        }
        for round_ in record.rounds
        for one in round_.judged
    ]
    return {
        "run": record.run,
        "operator": record.operator,
        "platform": record.platform,
        "backend": record.backend,
        "status": record.status,
        "decisions": decisions,
        "speedup": by_class(record.final_timing),
        "speedup_over_start": by_class(record.final_over_start),
        "flags_alone": by_class(record.baseline.flags_alone),
        "started_from": record.baseline.incumbent_from,
        "branch": branch_of(record) or None,
        "stop_reason": record.stop_reason,
        "not_committed": held_back(record),
        "overridden": list(record.overridden),
        "report": record.report,
    }


def by_class(timing: Timing | None) -> dict[str, dict[str, float]]:
    """Ratio and interval by class; empty when it was not measured."""
    if timing is None:
        return {}
    return {
        c.shape_class: {"ratio": round(c.ratio, 4), "low": round(c.low, 4), "high": round(c.high, 4)}
        for c in timing.classes
    }


def emit(value: object) -> None:
    """One JSON object on the last line of standard output."""
    sys.stdout.write(jsonlib.dumps(value, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def note(text: str) -> None:
    """A line for a person, on standard error."""
    err.print(Text(text, style="dim"))


def complain(text: str) -> None:
    """An error for a person, on standard error."""
    err.print(Text(f"kernelcrew: {text}", style="red"))


def report(folder: Path, *, json: bool) -> None:
    """Write a run's report again and show its table, as far as the run got."""
    from kernelcrew.runs.journal import payload_of, read_steps
    from kernelcrew.runs.report import write_report

    path = write_report(folder)
    record = payload_of(read_steps(folder), "end", RunRecord)
    record = record and record.model_copy(update={"report": str(path)})  # the folder may have moved
    if json:
        emit(run_json(record) if record else {"run": folder.name, "status": "unfinished", "report": str(path)})
    elif record is None:
        out.print(f"unfinished: `kernelcrew resume {folder.name}` goes on with it\nreport        {path}", markup=False)
    else:
        table(record)


def operators(*, json: bool) -> None:
    """The shipped operators."""
    from kernelcrew.kernels.load import load_operator, shipped

    found = [load_operator(name) for name in shipped()]
    if json:
        emit(
            [
                {
                    "name": o.name,
                    "version": o.version,
                    "summary": o.summary,
                    "backends": list(o.backends),
                    "shapes": len(o.shapes),
                }
                for o in found
            ]
        )
        return
    rows = Table()
    for column in ("operator", "version", "backends", "shapes", "summary"):
        rows.add_column(column)
    for o in found:
        rows.add_row(o.name, str(o.version), ", ".join(o.backends), str(len(o.shapes)), o.summary)
    out.print(rows)


def platforms(settings: Settings, *, json: bool) -> None:
    """The known platforms; this machine is marked."""
    from kernelcrew.platforms.detect import detect
    from kernelcrew.platforms.registry import known

    here = detect(settings.cc).platform
    found = {**known(), here.id: here}
    if json:
        emit([p.model_dump(mode="json") for p in found.values()])
        return
    rows = Table()
    for column in ("platform", "what", "vector bytes", "here", "source"):
        rows.add_column(column)
    for p in found.values():
        rows.add_row(p.id, p.readable, str(p.vector_bytes), "this machine" if p.id == here.id else "", p.source)
    out.print(rows)


def doctor(found: list[Finding], *, json: bool) -> None:
    """What is here, what is missing, what that means."""
    if json:
        emit([f.model_dump(mode="json") for f in found])
        return
    rows = Table()
    for column in ("what", "state", "found", "means"):
        rows.add_column(column, overflow="fold")
    for f in found:
        rows.add_row(
            f.what, Text(f.state, style={"ok": "green", "missing": "red"}.get(f.state, "yellow")), f.found, f.means
        )
    out.print(rows)


def restored(found: Restored, *, json: bool) -> None:
    """What a rebuilt store holds."""
    if json:
        emit(found.model_dump(mode="json"))
        return
    out.print(f"rebuilt from the journals: {found.tried} tried patches, {found.rationale} reasons")


def moved(verb: str, entries: int, path: Path) -> None:
    """How many entries an export or import moved."""
    out.print(f"{entries} entries {verb}: {path}", markup=False)


def bench(found: BenchRecord, *, json: bool) -> None:
    """The figures of `make bench`."""
    if json:
        emit(found.model_dump(mode="json"))
        return
    tables(found.tables)


def tables(sections: Sequence[FigureTable]) -> None:
    """Tables of figures, one below the other."""
    for section in sections:
        rows = Table(title=section.title, title_justify="left")
        for index, column in enumerate(section.columns):
            rows.add_column(column, no_wrap=index == 0)
        for row in section.rows:
            rows.add_row(*row)
        out.print(rows, width=max(out.width, 150))
