"""How good the no-go list is: what it blocked, and what of that would have been good.

**False-block rate.** Of the candidates whose worth is known and was good, the share that an entry forbids. Good:
adopted with confirmed blocks and not taken back, or accepted when a person judged it in spite of the entry. Bad: rolled
back, or refused when judged in spite of it. What was inconclusive counts on neither side. An entry in force keeps its
own counter-examples from being made, so they come from before it, from outside its scope, from after its expiry, and
from re-trials: with few of them the interval is wide, and it is the interval that is to be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import exp, lgamma, log
from pathlib import Path
from typing import Any

from kernelcrew.errors import CrewError
from kernelcrew.kernels.load import load_operator
from kernelcrew.kernels.nogo import NoGo, Place, Traits, in_scope, matches, traits_of_candidate
from kernelcrew.kernels.nouns import Candidate, Operator
from kernelcrew.record import Record
from kernelcrew.runs.journal import payload_of, read_steps
from kernelcrew.runs.nogo import Listed, listed
from kernelcrew.runs.nouns import Baseline, Judged, RoundRecord, Start, Step
from kernelcrew.runs.proposing import Proposed
from kernelcrew.settings import Settings
from kernelcrew.tools.nogo import NOGO
from kernelcrew.tools.nouns import Verdict

CONFIDENCE = 0.95


class Share(Record):
    """A count of a count, with its exact interval."""

    count: int
    """How many."""
    of: int
    """Of how many."""
    low: float
    """Lower end of the exact 95 % interval (Clopper and Pearson); 0 of 0 says nothing: 0 to 1."""
    high: float
    """Upper end."""


class Counted(Record):
    """One entry and what the journals of this working directory say of it."""

    listed: Listed
    """The entry and its state."""
    blocked: int
    """Changes and candidates that it took out, by guard and gate."""
    false_blocks: Share
    """Of the good candidates in its scope, those that it forbids."""
    true_blocks: Share
    """Of the bad candidates in its scope, those that it forbids."""
    good_elsewhere: int
    """Good candidates outside its scope with just its features: a hint that the scope may be too wide or is right."""


class Audit(Record):
    """The list as a whole over the recorded candidates."""

    operator: str
    """Which operator's; empty: all."""
    runs: int
    """Journals that were read."""
    skipped: tuple[str, ...]
    """Runs whose operator or journal cannot be read now."""
    false_blocks: Share
    """Of all good candidates, those that any active entry forbids."""
    true_blocks: Share
    """Of all bad ones."""
    entries: tuple[Counted, ...]
    """Each by itself, what is expired or removed as if it were in force."""


class _Known:
    """One candidate whose worth is known."""

    def __init__(self, good: bool, place: Place, traits: Traits) -> None:
        self.good = good
        self.place = place
        self.traits = traits

    def under(self, entry: NoGo) -> bool:
        return in_scope(entry, self.place) and matches(entry, self.traits)


def audit(settings: Settings, operator: str = "") -> Audit:
    """Read every journal of this working directory. `operator` is a name; empty: all."""
    known: list[_Known] = []
    blocked: dict[str, int] = {}
    skipped: list[str] = []
    read = 0
    for folder in sorted((settings.home / "runs").glob("*/")):
        try:
            steps = read_steps(folder)
            start = payload_of(steps, "start", Start)
            if start is None or operator not in ("", start.operator):
                continue
            _count_blocks(steps, blocked)
            known += _of_run(steps, start)
            read += 1
        except (CrewError, ValueError) as error:
            skipped.append(f"{folder.name}: {str(error).splitlines()[0]}")
    retried: dict[str, list[bool]] = {}
    for journal in sorted((settings.home / "judged").glob("*/journal.jsonl")):
        if operator and not journal.parent.name.startswith(f"{operator}-"):
            continue
        _of_judgement(journal, blocked, retried)
    every = listed(settings)
    active = [one.entry for one in every if one.state == "active"]
    again = [good for entry in active for good in retried.get(entry.id, [])]
    return Audit(
        operator=operator,
        runs=read,
        skipped=tuple(skipped),
        false_blocks=_share(known, active, again, good=True),
        true_blocks=_share(known, active, again, good=False),
        entries=tuple(_counted(one, known, blocked, retried.get(one.entry.id, [])) for one in every),
    )


def share(count: int, of: int) -> Share:
    """Clopper and Pearson's interval: the rates under which a tail of `count` or more extreme keeps 2.5 %."""
    tail = (1 - CONFIDENCE) / 2
    low = 0.0 if count == 0 else _rate(lambda p: 1 - _at_most(count - 1, of, p), tail)
    high = 1.0 if count == of else _rate(lambda p: -_at_most(count, of, p), -tail)
    return Share(count=count, of=of, low=low, high=high)


def _counted(one: Listed, known: Sequence[_Known], blocked: dict[str, int], again: Sequence[bool]) -> Counted:
    entry = one.entry
    here = [k for k in known if in_scope(entry, k.place)]
    elsewhere = [k for k in known if not in_scope(entry, k.place) and k.good and matches(entry, k.traits)]
    return Counted(
        listed=one,
        blocked=blocked.get(entry.id, 0),
        false_blocks=_share(here, [entry], again, good=True),
        true_blocks=_share(here, [entry], again, good=False),
        good_elsewhere=len(elsewhere),
    )


def _share(known: Sequence[_Known], entries: Sequence[NoGo], again: Sequence[bool], *, good: bool) -> Share:
    """What was judged in spite of an entry is under it by definition."""
    seen = [any(k.under(e) for e in entries) for k in known if k.good == good] + [True for g in again if g == good]
    return share(sum(seen), len(seen))


def _of_run(steps: Sequence[Step], start: Start) -> Iterator[_Known]:
    baseline = payload_of(list(steps), "baseline", Baseline)
    if baseline is None:
        return
    operator = load_operator(start.operator_path)
    tool = start.lock.machine.toolchain
    place = Place(
        operator=start.operator, platform=start.platform, backend=start.backend, toolchain=f"{tool.name} {tool.version}"
    )
    taken_back = any(s.kind == "LastWord" and s.payload.get("word") == "rejected" for s in steps)
    rounds = {s.step: RoundRecord.model_validate(s.payload) for s in steps if s.kind == "RoundRecord"}
    standing = baseline.incumbent
    for record in rounds.values():
        for judged in record.judged:
            yield from _of_judged(judged, (standing, operator, place), taken_back)
        standing = next((s.candidate for s in record.settled if s.candidate), standing)


def _of_judged(judged: Judged, where: tuple[Candidate, Operator, Place], taken_back: bool) -> Iterator[_Known]:
    candidate, action = judged.trial.candidate, judged.decision.action
    good = action in ("adopt", "adopt_when")
    if candidate is None or not (good or action == "rollback") or judged.decision.gate in (NOGO, "rationale"):
        return
    standing, operator, place = where
    changes = [c for c in judged.trial.proposal.changes if c.id in candidate.changes]
    traits = traits_of_candidate(candidate, standing, operator, changes)
    yield _Known(good and not taken_back, place, traits)


def _of_judgement(journal: Path, blocked: dict[str, int], retried: dict[str, list[bool]]) -> None:
    try:
        steps = read_steps(journal.parent)
        verdict = payload_of(steps, "judge", Verdict)
    except (CrewError, ValueError):
        return
    _count_blocks(steps, blocked)
    if verdict is not None and verdict.outcome != "inconclusive":
        for name in verdict.despite:
            retried.setdefault(name, []).append(verdict.outcome == "accept")


def _count_blocks(steps: Sequence[Step], blocked: dict[str, int]) -> None:
    """By entry: what the guard took out of proposals, and what the gate refused to build, each candidate once."""
    seen: set[tuple[str, str]] = set()
    for step in steps:
        if step.kind == "Proposed":
            for one in Proposed.model_validate(step.payload).barred:
                seen.add((one.entry, f"{step.step} {one.change}"))
        builds: list[dict[str, Any]] = step.payload.get("builds", []) if step.kind == "Builds" else []
        for build in builds:
            seen |= {(d["option"], build["identity"]) for d in build["diagnostics"] if d["kind"] == NOGO}
    for entry, _ in seen:
        blocked[entry] = blocked.get(entry, 0) + 1


def _at_most(count: int, of: int, p: float) -> float:
    """Chance of at most `count` of `of`."""
    if p <= 0:
        return 1.0
    if p >= 1:
        return float(count >= of)
    logs = (lgamma(of + 1) - lgamma(k + 1) - lgamma(of - k + 1) + k * log(p) + (of - k) * log(1 - p)
            for k in range(count + 1))  # fmt: skip
    return min(sum(exp(one) for one in logs), 1.0)


def _rate(rising: Callable[[float], float], target: float) -> float:
    """Where a rising function of the rate reaches its target."""
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if rising(middle) < target else (low, middle)
    return (low + high) / 2
