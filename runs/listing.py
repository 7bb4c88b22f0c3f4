"""The runs of a working directory, oldest first: which there are, how each stands and how it came out."""

from __future__ import annotations

import re
from pathlib import Path

from kernelcrew.errors import StoreError, UnknownName
from kernelcrew.record import Record
from kernelcrew.runs.journal import payload_of, read_steps
from kernelcrew.runs.nouns import RoundRecord, RunRecord, Start, Step
from kernelcrew.runs.outcome import outcome_of
from kernelcrew.settings import Settings

BEGAN = re.compile(r"-(\d{8}-\d{6})-[0-9a-f]+$")
"""The time in a run's id."""


class RunLine(Record):
    """One run."""

    run: str
    """Its id."""
    operator: str
    """Its operator; '' when it was killed before it began."""
    started: str
    """ISO time."""
    status: str
    """finished, unfinished, or unreadable."""
    outcome: str
    """What was adopted, or what to do."""


def run_folders(settings: Settings) -> list[Path]:
    """The folders of all runs, oldest first."""
    found = [path.parent for path in settings.home.glob("runs/*/journal.jsonl")]
    return sorted(found, key=lambda folder: (_began(folder.name), folder.name))


def run_folder(settings: Settings, run: str) -> Path:
    """A run's folder; `last` names the newest. Raises UnknownName with the known runs."""
    known = run_folders(settings)
    folder = known[-1] if run == "last" and known else settings.home / "runs" / run
    if not run or not (folder / "journal.jsonl").exists():
        fix = "`kernelcrew runs` tells them apart" if known else "start one: kernelcrew run reduction"
        raise UnknownName("run", run, [p.name for p in known], fix=fix)
    return folder


def list_runs(settings: Settings) -> list[RunLine]:
    """All runs, oldest first."""
    return [_line(folder) for folder in run_folders(settings)]


def _began(run: str) -> str:
    found = BEGAN.search(run)
    return found[1] if found else ""


def _line(folder: Path) -> RunLine:
    try:
        steps = read_steps(folder)
    except StoreError as error:
        return RunLine(run=folder.name, operator="", started="", status="unreadable", outcome=error.what)
    start = payload_of(steps, "start", Start)
    if start is None:
        what = "killed before it began: start it again"
        return RunLine(run=folder.name, operator="", started="", status="unfinished", outcome=what)
    status, outcome = _standing(folder.name, steps)
    return RunLine(run=folder.name, operator=start.operator, started=start.started, status=status, outcome=outcome)


def _standing(run: str, steps: list[Step]) -> tuple[str, str]:
    end = payload_of(steps, "end", RunRecord)
    if end is not None:
        return end.status, outcome_of(end.rounds)
    rounds = [RoundRecord.model_validate(s.payload) for s in steps if s.kind == "RoundRecord"]
    done = f"{len(rounds)} rounds so far" if rounds else "no round finished yet"
    return "unfinished", f"{done}: kernelcrew resume {run}"
