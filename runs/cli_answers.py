"""What the command line answers: a verdict, what is remembered, the runs there are, a run that ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from kernelcrew.runs.cli_show import emit, note, out, run_json, table
from kernelcrew.runs.nouns import RunRecord
from kernelcrew.tools.nouns import Timing, Verdict

if TYPE_CHECKING:
    from kernelcrew.runs.asking_memory import Answered, Answers
    from kernelcrew.runs.listing import RunLine

CAPTION = "ratios come from pairs within blocks, times are medians over all calls: they need not divide to the ratio"


def verdict(found: Verdict, *, json: bool) -> None:
    """The net's verdict, with the figures by class and by shape."""
    if json:
        wanted = {"build", "verification", "timing", *(n for n in ("gate", "despite") if getattr(found, n))}
        measurements = found.model_dump(mode="json", include=wanted, exclude_none=True)
        emit({"outcome": found.outcome, "stage": found.stage, "reason": found.reason, "measurements": measurements})
        return
    out.print(f"{found.outcome} at stage {found.stage}: {found.reason}", markup=False)
    if found.despite:
        out.print(f"judged in spite of no-go {', '.join(found.despite)}; nothing is adopted by it", markup=False)
    if found.timing is not None:
        out.print(_classes(found.timing))
        out.print(_shapes(found.timing))
        out.print(CAPTION, markup=False)


def ratio_text(ratio: float, low: float, high: float) -> str:
    """`9.81x [9.60, 10.0]`, with no more digits than the interval's width supports."""
    digits = 2 if high - low < 0.5 else 1
    return f"{ratio:.{digits}f}x [{low:.{digits}f}, {high:.{digits}f}]"


def _classes(timing: Timing) -> Table:
    rows = Table(title="by class", title_justify="left")
    for column in ("class", "ratio", "answer"):
        rows.add_column(column)
    for c in timing.classes:
        rows.add_row(c.shape_class, ratio_text(c.ratio, c.low, c.high), c.answer)
    return rows


def _shapes(timing: Timing) -> Table:
    """A shape is only tested for not being slower; a class is tested for being faster."""
    rows = Table(title="by shape", title_justify="left")
    for column in ("shape", "class", "ratio", "slower?", "candidate us", "incumbent us"):
        rows.add_column(column)
    for s in timing.shapes:
        rows.add_row(
            s.shape,
            s.shape_class,
            ratio_text(s.ratio, s.low, s.high),
            s.answer,
            f"{s.candidate_us:.3g}" if s.candidate_us < 100 else f"{s.candidate_us:.0f}",
            f"{s.baseline_us:.3g}" if s.baseline_us < 100 else f"{s.baseline_us:.0f}",
        )
    return rows


def hits(found: Answers, question: str, *, json: bool) -> None:
    """Answers of the knowledge base, each with what it rests on."""
    if json:
        emit({"question": question, **found.model_dump(mode="json")})
        return
    if found.note:
        out.print(found.note, markup=False)
    for index, answer in enumerate(found.answers, 1):
        _hit(index, answer)


def _hit(index: int, answer: Answered) -> None:
    e = answer.entry
    commit = f"commit {e.commit[:12]}" if e.commit else "no commit"
    here = "" if answer.proven_here else f"  (measured on {e.platform}: unproven here)"
    out.print(Text(f"{index}. {e.mechanism}: {e.decision}{here}", style="bold"))
    out.print(f"   why       {e.why}", markup=False)
    out.print(f"   measured  {e.evidence}", markup=False)
    out.print(f"   rests on  run {e.run}, {commit}, {e.operator}, author {e.author}", markup=False)
    for other in answer.also:
        out.print(f"   also      run {other.run}: {other.decision}. {other.evidence}", markup=False)


def runs(found: list[RunLine], *, json: bool) -> None:
    """The runs of a working directory, newest first."""
    newest_first = found[::-1]
    if json:
        emit({"runs": [r.model_dump(mode="json") for r in newest_first]})
        return
    if not found:
        out.print("no runs here yet: kernelcrew run reduction")
        return
    rows = Table()
    for column in ("run", "operator", "started", "status", "outcome"):
        rows.add_column(column, overflow="fold", no_wrap=column == "run")
    for r in newest_first:
        rows.add_row(r.run, r.operator, r.started.removesuffix("+00:00").replace("T", " "), r.status, r.outcome)
    out.print(rows)


def finished(record: RunRecord, more: str, *, json: bool) -> None:
    """A run that had ended before: its table as it was."""
    note(f"run {record.run} is already finished: {record.stop_reason}{more}")
    table(record, quiet=json)
    if json:
        emit(run_json(record))
