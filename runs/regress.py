"""`kernelcrew regress`: guards the adopted kernels of this platform in a user's own automatic tests.

Each is built anew, verified in full, and screened against the start kernel and its recorded ratio. It fails when it is
wrong, or when a class is slower than recorded by more than the noise margin in every one of three screens. A host that
is too noisy to say decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal
from xml.etree import ElementTree

from kernelcrew.errors import StoreError, UserMistake
from kernelcrew.event import Listener
from kernelcrew.kernels.load import load_operator, start_candidate
from kernelcrew.kernels.nouns import Candidate, Operator
from kernelcrew.platforms.detect import detect
from kernelcrew.record import Record
from kernelcrew.runs.crew import Clock, Lab
from kernelcrew.runs.deeds import read_conduct
from kernelcrew.runs.incumbent import Incumbent, find_incumbent
from kernelcrew.runs.journal import payload_of
from kernelcrew.runs.nouns import RunRecord, Start
from kernelcrew.runs.session import open_lab
from kernelcrew.runs.trying import REPORT_BLOCKS
from kernelcrew.settings import Settings
from kernelcrew.tools.nouns import AlphaPlan, Build, Timing
from kernelcrew.tools.workshop import BUILD, SCREEN, VERIFY, BuildArgs, ScreenArgs, VerifyArgs

SCREENS = 3
"""A class must be slower in every one of them."""
Outcome = Literal["passed", "failed", "inconclusive"]


class Recorded(Record):
    """What the record says of an adopted kernel, by class: ratio over the start, and its 95 % interval."""

    run: str
    """The run that adopted it; empty when no journal tells."""
    ratios: dict[str, tuple[float, float, float]]
    """Class to ratio, low, high."""
    start: Candidate | None = None
    """The start kernel those ratios are over: the user's source may have become the adopted kernel since."""


class ClassRow(Record):
    """One class of one adopted kernel."""

    shape_class: str
    """Which."""
    recorded: str
    """Ratio over the start and interval as recorded."""
    least: float
    """Below this in every screen it fails: the interval's lower end, less the noise margin."""
    measured: tuple[float, ...]
    """Ratio over the start in each screen that the host let stand."""


class Guarded(Record):
    """One adopted kernel and how it stands."""

    operator: str
    """Name."""
    platform: str
    """Id."""
    backend: str
    """c."""
    commit: str
    """The incumbent's commit."""
    outcome: Outcome
    """passed, failed or inconclusive."""
    stage: str
    """policy, build, safety, correctness or timing: how far it got."""
    reason: str
    """With the figures."""
    run: str = ""
    """The run that adopted it."""
    rows: tuple[ClassRow, ...] = ()
    """By class."""
    screens: int = 0
    """Screens that were run."""


class Regression(Record):
    """All adopted kernels of this platform."""

    platform: str
    """Id."""
    guarded: tuple[Guarded, ...]
    """One an incumbent."""

    @property
    def failed(self) -> bool:
        return any(g.outcome == "failed" for g in self.guarded)


def regress(settings: Settings, operator: str, listener: Listener) -> Regression:
    """Every incumbent of this platform, or those of one operator. Raises UnknownName."""
    here = detect(settings.cc).platform.id
    wanted = load_operator(operator) if operator else None
    found = []
    for path, backend in _places(settings, here, wanted):
        try:
            one = guard(settings, load_operator(path), backend, listener)
        except UserMistake as error:
            gone = {"operator": path, "platform": here, "backend": backend, "commit": "", "stage": "policy"}
            one = Guarded.model_validate({**gone, "outcome": "inconclusive", "reason": error.what})
        found += [one] if one is not None else []
    return Regression(platform=here, guarded=tuple(found))


def guard(settings: Settings, operator: Operator, backend: str, listener: Listener) -> Guarded | None:
    """One operator's incumbent; None when there is none that holds."""
    alpha = AlphaPlan(confirmations=1, classes=len(operator.classes()))
    lab = open_lab(settings, operator, backend, Clock(budget_s=3600.0), alpha, listener)
    try:
        found = find_incumbent(lab, start_candidate(operator, backend), backend)
        if found.candidate is None:
            return None if found.source == "start" else _moved_on(lab, backend, found)
        recorded = recorded_ratios(settings, operator.name, lab.machine.platform.id, found.commit)
        return lab.journal.do("regress", Guarded, found.commit, lambda: _guard(lab, backend, found, recorded))
    finally:
        lab.close()


def recorded_ratios(settings: Settings, operator: str, platform: str, commit: str) -> Recorded:
    """What the run that made a commit measured of it over the start; empty when no journal tells."""
    for path in sorted((settings.home / "runs").glob("*/journal.jsonl"), reverse=True):
        end = payload_of(read_conduct(path), "end", RunRecord)
        if end is None or (end.operator, end.platform) != (operator, platform):
            continue
        settled = [s for r in end.rounds for s in r.settled if s.commits and s.commits[-1] == commit]
        if not settled or settled[-1].candidate is None:
            continue
        timing = end.final_over_start if end.final.identity == settled[-1].candidate.identity else None
        classes = timing.classes if timing else ()
        ratios = {c.shape_class: (c.ratio, c.low, c.high) for c in classes}
        return Recorded(run=end.run, ratios=ratios, start=end.baseline.start)
    return Recorded(run="", ratios={})


def weigh(timings: Sequence[Timing], recorded: Recorded) -> tuple[Outcome | None, str, tuple[ClassRow, ...]]:
    """Pure: outcome, reason and rows after some screens; None for an outcome that asks for another screen."""
    bad = next((t for t in timings if t.status == "invalid"), None)
    if bad is not None:
        return "failed", f"timed outputs: {bad.reason}", ()
    quiet = [t for t in timings if t.status != "noisy"]
    rows = tuple(_row(name, quiet, recorded) for name in dict.fromkeys(c.shape_class for t in quiet for c in t.classes))
    slow = [row for row in rows if all(ratio < row.least for ratio in row.measured)]
    if quiet and not slow:
        return "passed", "; ".join(_told(row) for row in rows), rows
    if len(timings) < SCREENS:
        return None, "", rows
    if len(quiet) < SCREENS:
        noisy = next(t for t in timings if t.status == "noisy")
        return "inconclusive", f"{len(timings) - len(quiet)} of {len(timings)} screens were noise: {noisy.reason}", rows
    return "failed", f"slower than recorded in each of {SCREENS} screens: {'; '.join(_told(r) for r in slow)}", rows


def junit(found: Regression) -> str:
    """The same as JUnit XML: a failed kernel is a failure, an inconclusive one is skipped with its reason."""
    counts = {"failures": "failed", "skipped": "inconclusive"}
    numbers = {k: str(sum(g.outcome == v for g in found.guarded)) for k, v in counts.items()}
    total = {"name": "kernelcrew regress", "tests": str(len(found.guarded)), "errors": "0"}
    suite = ElementTree.Element("testsuite", {**total, **numbers})
    for one in found.guarded:
        where = f"{one.operator}.{one.platform}.{one.backend}"
        case = ElementTree.SubElement(suite, "testcase", {"classname": where, "name": f"adopted {one.commit[:12]}"})
        if one.outcome == "failed":
            ElementTree.SubElement(case, "failure", {"type": one.stage, "message": one.reason})
        elif one.outcome == "inconclusive":
            ElementTree.SubElement(case, "skipped", {"message": one.reason})
        ElementTree.SubElement(case, "system-out").text = "\n".join(_told(row) for row in one.rows) or one.reason
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(suite, encoding="unicode") + "\n"


def write_junit(found: Regression, path: Path) -> None:
    """Write the XML. Raises StoreError."""
    try:
        path.write_text(junit(found), encoding="utf-8")
    except OSError as error:
        fix = "name a file in a folder that is there and writable"
        raise StoreError(f"{path}: cannot be written ({error.strerror})", fix=fix) from error


def _moved_on(lab: Lab, backend: str, found: Incumbent) -> Guarded:
    return Guarded(
        operator=lab.operator.name, platform=lab.machine.platform.id, backend=backend, commit=found.commit,
        outcome="inconclusive", stage="policy", reason=f"nothing adopted is in use: {found.source}",
    )  # fmt: skip


def _guard(lab: Lab, backend: str, found: Incumbent, recorded: Recorded) -> Guarded:
    kept, start = found.candidate, recorded.start or start_candidate(lab.operator, backend)
    assert kept is not None
    one = Guarded(
        operator=lab.operator.name, platform=lab.machine.platform.id, backend=backend, commit=found.commit,
        outcome="failed", stage="build", reason="", run=recorded.run,
    )  # fmt: skip
    if kept.identity == start.identity:
        words = "the source is the adopted kernel itself, and no journal here tells what it was measured against"
        return one.model_copy(update={"outcome": "inconclusive", "stage": "timing", "reason": words})
    lab.say("baseline", f"{lab.operator.name}: build the adopted {found.commit[:12]} and the start kernel")
    builds = lab.bus.need(BUILD, BuildArgs(candidates=(kept, start))).builds
    if broken := next((b for b in builds if b.status != "ok"), None):
        words = "; ".join(f"{d.at}{d.message}" for d in broken.diagnostics if d.kind != "note")
        return one.model_copy(update={"stage": broken.stage, "reason": words[:500] or "it does not build"})
    lab.say("trial", f"{lab.operator.name}: verify over all shapes, distributions and fresh seeds")
    checked = lab.bus.need(VERIFY, VerifyArgs(build=builds[0]))
    if checked.status != "ok":
        stage = "safety" if checked.status == "unsafe" else "correctness"
        return one.model_copy(update={"stage": stage, "reason": checked.reason})
    return one.model_copy(update={"stage": "timing", **_screened(lab, builds[0], builds[1], recorded)})


def _screened(lab: Lab, kept: Build, start: Build, recorded: Recorded) -> dict[str, object]:
    timings: list[Timing] = []
    outcome: Outcome | None = None
    while outcome is None:
        lab.say("confirm", f"{lab.operator.name}: screen {len(timings) + 1} of at most {SCREENS}")
        args = ScreenArgs(candidates=(kept,), baseline=start, blocks=REPORT_BLOCKS)
        timings += lab.bus.need(SCREEN, args).timings
        outcome, reason, rows = weigh(timings, recorded)
    return {"outcome": outcome, "reason": reason, "rows": rows, "screens": len(timings)}


def _row(name: str, quiet: Sequence[Timing], recorded: Recorded) -> ClassRow:
    found = [c for t in quiet for c in t.classes if c.shape_class == name]
    margin = max(t.margin for t in quiet)
    known = recorded.ratios.get(name)
    text = f"{known[0]:.2f}x [{known[1]:.2f}, {known[2]:.2f}]" if known else "not slower than the start"
    least = (known[1] if known else 1.0) / (1.0 + margin)
    return ClassRow(shape_class=name, recorded=text, least=least, measured=tuple(c.ratio for c in found))


def _told(row: ClassRow) -> str:
    measured = ", ".join(f"{ratio:.2f}x" for ratio in row.measured)
    return f"{row.shape_class} {measured} (recorded {row.recorded}, at least {row.least:.2f}x)"


def _places(settings: Settings, platform: str, wanted: Operator | None) -> Iterator[tuple[str, str]]:
    """Operator by name or path, and backend, of every run on this platform; the wanted one in any case."""
    found: dict[tuple[str, str], None] = {}
    for path in sorted((settings.home / "runs").glob("*/journal.jsonl")):
        start = payload_of(read_conduct(path)[:1], "start", Start)
        if start is None or start.platform != platform or (wanted and start.operator != wanted.name):
            continue
        found[start.operator_path if wanted is None else str(wanted.folder), start.backend] = None
    if wanted is not None and not found:
        found = {(str(wanted.folder), backend): None for backend in wanted.backends}
    yield from found
