"""`kernelcrew lock reproduce`: a run once more, in a scratch folder of its own, held against what it came to.

Recorded exchanges are replayed where the model was a language model; the rule-based expert works afresh. Memory is
empty, and there is no incumbent unless the run started from one.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from kernelcrew.errors import UserMistake
from kernelcrew.event import Listener
from kernelcrew.kernels.load import is_shipped, kernel_file, load_operator
from kernelcrew.kernels.nouns import Operator
from kernelcrew.kernels.planfile import to_files
from kernelcrew.record import Record
from kernelcrew.runs.deeds import Grant, override
from kernelcrew.runs.journal import payload_of, read_steps
from kernelcrew.runs.lockfile import Difference, started, verify_lock
from kernelcrew.runs.nouns import Judged, RunRecord, Start, Step
from kernelcrew.runs.permissions import Held
from kernelcrew.runs.queue import Taken, enqueue
from kernelcrew.runs.report import write_report
from kernelcrew.runs.run import play
from kernelcrew.runs.session import Asked, open_run
from kernelcrew.runs.vcs import repo_for
from kernelcrew.settings import Settings
from kernelcrew.tools.nouns import ClassTiming, Timing

Outcome = Literal["same", "differs", "not comparable"]
OF_ANOTHER_THING = ("operator", "operator_hash", "reference", "baseline")
"""Differences of the lock after which nothing could be compared."""
SHARED = ("builds", "workers", "peaks")
"""Caches by content that a scratch folder may share; what was timed is never among them."""


class Row(Record):
    """One thing held against what it was."""

    what: str
    """`change ID`, or `main over start`."""
    outcome: Outcome
    """same, differs or not comparable."""
    was: str
    """Then, with the figures."""
    now: str
    """Now."""
    why: str = ""
    """Why it cannot be compared."""


class Reproduction(Record):
    """A run and its repetition."""

    run: str
    """The run."""
    again: str
    """The repetition's id."""
    folder: str
    """Where the repetition's journal and report lie."""
    outcome: Outcome
    """differs when any row does; same when all that can be compared agrees."""
    rows: tuple[Row, ...]
    """Decisions change by change, then ratios by class."""
    differences: tuple[Difference, ...]
    """What of the lock is not as it was."""


def reproduce(settings: Settings, folder: Path, budget_min: float, listener: Listener) -> Reproduction:
    """Run it again and compare. `budget_min` of 0 is the run's own. Raises UserMistake for what cannot be repeated."""
    start = started(folder)
    steps = read_steps(folder)
    end = payload_of(steps, "end", RunRecord)
    if end is None:
        raise UserMistake(f"run {start.run} is unfinished", fix=f"kernelcrew resume {start.run}, then reproduce it")
    report = verify_lock(settings, folder)
    if other := next((d for d in report.differences if d.name in OF_ANOTHER_THING), None):
        fix = "restore the operator as the run had it; `kernelcrew lock verify` lists all differences"
        raise UserMistake(f"{other.name} is not as run {start.run} had it ({other.was} -> {other.now})", fix=fix)
    scratch = _scratch(settings, start)
    operator = _operator(load_operator(start.operator_path), scratch.workdir)
    _seed(scratch, operator, end, steps)
    asked = Asked(
        operator=start.operator_path if is_shipped(operator) else str(operator.folder),
        backend=start.backend,
        model="recipes" if start.model == "recipes" else f"replay:{folder}",
        rounds=start.rounds,
        budget_min=budget_min or start.budget_min,
        seed=start.seed,
        anyway=True,
        overridden=start.overridden,
        shuffled=start.shuffled,
    )
    crew = open_run(scratch, asked, listener)
    try:
        again = play(crew)
        write_report(crew.journal.folder)
    finally:
        crew.close()
    rows = (*decision_rows(end, again), *ratio_rows(end, again))
    return Reproduction(
        run=start.run,
        again=again.run,
        folder=str(crew.journal.folder),
        outcome=overall(rows),
        rows=rows,
        differences=report.differences,
    )


def decision_rows(was: RunRecord, now: RunRecord) -> tuple[Row, ...]:
    """Pure: what became of each change, then and now. What host or budget left open compares with nothing."""
    before, after = dict(_fates(was)), dict(_fates(now))
    rows = []
    for name in dict.fromkeys((*before, *after)):
        a, b = before.get(name, ("not proposed", "")), after.get(name, ("not proposed", ""))
        open_ = next((why for fate, why in (a, b) if fate == "inconclusive"), None)
        outcome: Outcome = "not comparable" if open_ is not None else "same" if a[0] == b[0] else "differs"
        told = [f"{fate}: {why}" if why else fate for fate, why in (a, b)]
        why = "one of the two was left open" if open_ is not None else ""
        rows.append(Row(what=f"change {name}", outcome=outcome, was=told[0], now=told[1], why=why))
    return tuple(rows)


def ratio_rows(was: RunRecord, now: RunRecord) -> tuple[Row, ...]:
    """Pure: the ratios over the start kernel by class; same when the 95 % intervals meet."""
    before, after = _classes(was.final_over_start), _classes(now.final_over_start)
    rows = []
    for name in dict.fromkeys((*before, *after)):
        a, b = before.get(name), after.get(name)
        why = "" if a and b else "measured in one of the two only"
        if was.platform != now.platform:
            why = f"measured on {was.platform}, and now on {now.platform}"
        meet = a is not None and b is not None and a.low <= b.high and b.low <= a.high
        outcome: Outcome = "not comparable" if why else "same" if meet else "differs"
        rows.append(Row(what=f"{name} over start", outcome=outcome, was=_figure(a), now=_figure(b), why=why))
    return tuple(rows)


def overall(rows: tuple[Row, ...]) -> Outcome:
    """Pure: the whole from its rows."""
    outcomes = {row.outcome for row in rows}
    return "differs" if "differs" in outcomes else "same" if "same" in outcomes else "not comparable"


def _fates(record: RunRecord) -> Iterator[tuple[str, tuple[str, str]]]:
    """Change, numbered when it was tried again, to what became of it and why."""
    seen: dict[str, int] = {}
    for round_ in record.rounds:
        for one in round_.judged:
            for change in one.changes:
                seen[change] = seen.get(change, 0) + 1
                name = change if seen[change] == 1 else f"{change} ({seen[change]})"
                yield name, (_fate(one, change), one.decision.reason)


def _fate(one: Judged, change: str) -> str:
    action = one.decision.action
    if action.startswith("adopt"):
        kept = one.trial.candidate.changes if one.trial.candidate else ()
        return "adopted" if change in kept else "left out of what was adopted"
    return action


def _classes(timing: Timing | None) -> dict[str, ClassTiming]:
    return {c.shape_class: c for c in timing.classes} if timing else {}


def _figure(timing: ClassTiming | None) -> str:
    return f"{timing.ratio:.3f}x [{timing.low:.3f}, {timing.high:.3f}]" if timing else "not measured"


def _scratch(settings: Settings, start: Start) -> Settings:
    """A folder of its own under `.kernelcrew/reproduced`, with the caches that hold nothing measured of a candidate."""
    workdir = settings.home / "reproduced" / f"{start.run}-{datetime.now(UTC):%Y%m%d-%H%M%S-%f}"
    made = settings.model_copy(update={"workdir": workdir})
    cache = made.home / "cache"
    cache.mkdir(parents=True)
    for name in SHARED:
        ours = settings.home / "cache" / name
        ours.mkdir(parents=True, exist_ok=True)
        (cache / name).symlink_to(ours.resolve(), target_is_directory=True)
    return made


def _operator(operator: Operator, workdir: Path) -> Operator:
    """A shipped operator as it is; one of the user's own as a copy, so that nothing is written to their repository."""
    if is_shipped(operator):
        return operator
    kernels = [kernel_file(operator, backend) for backend in operator.backends]
    up = max(Path(name).parts.count("..") for name in kernels)
    target = workdir.joinpath("operator", *["up"] * up, operator.folder.name)
    shutil.copytree(operator.folder, target, ignore=shutil.ignore_patterns(".git", ".kernelcrew", "__pycache__"))
    for name in kernels:
        (target / name).resolve().parent.mkdir(parents=True, exist_ok=True)
        shutil.copy((operator.folder / name).resolve(), (target / name).resolve())
    return load_operator(str(target))


def _seed(scratch: Settings, operator: Operator, end: RunRecord, steps: list[Step]) -> None:
    """What the run had besides memory: its team's level, the patches that people handed in, its incumbent if any."""
    held, start = payload_of(steps, "permission", Held), payload_of(steps, "start", Start)
    if held is not None and held.level != "commit":
        team = "recipes" if start is not None and start.model == "recipes" else "replay"
        override(scratch, Grant("revoke", team, held.level, f"as run {end.run} had it"))
    for taken in (Taken.model_validate(s.payload) for s in steps if s.kind == "Taken"):
        if taken.submission is not None:
            enqueue(scratch, taken.submission)
    baseline = end.baseline
    if baseline.incumbent.identity == baseline.start.identity:
        return
    repo = repo_for(scratch, operator, end.backend, anyway=True)
    files = to_files(baseline.incumbent, repo.kernel)
    subject = f"{operator.name}: what run {end.run} started from"
    branch = f"kernelcrew/{operator.name}/{end.platform}/before"
    commits = repo.commit_changes(branch, repo.current_commit(), [(files, subject, ())])
    repo.set_incumbent(operator.name, end.platform, end.backend, commits[-1])
