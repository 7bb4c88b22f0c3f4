"""What a schema cannot say of an answer: that it names what exists and that its parts fit together.

Each check gives lines for the model that answered; none means that the answer can be worked with. Nothing here judges
whether an answer is a good one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from functools import partial

from kernelcrew.agents.evidence import ProposerEvidence, ReaderEvidence, SkepticEvidence, WriterEvidence
from kernelcrew.agents.nouns import (
    BottleneckSummary,
    ChangeIdea,
    EditText,
    PatchAnswer,
    ProposalIdea,
    ProposalSet,
    Question,
    Review,
    Role,
    TestRequest,
)
from kernelcrew.record import Record

ANSWERS: dict[Role, tuple[type[Record], str]] = {
    "profiler_reader": (BottleneckSummary, "bottlenecks"),
    "proposer": (ProposalSet, "proposals"),
    "patch_writer": (PatchAnswer, "patch"),
    "skeptic": (Review, "review"),
}
"""By role: the answer's type, and its field in `Answer`."""

MACRO = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
SHORTEST_WHY = 30
"""Characters under which a reason cannot hold a mechanism and a figure."""
MOST_ELEMENTS = 1 << 24
"""Largest shape that a skeptic may ask for, by the product of its axes."""


def problems_of(answer: Record, question: Question) -> list[str]:
    """What is wrong with an answer to this question beyond its schema; empty when nothing is."""
    if isinstance(answer, BottleneckSummary):
        return _of_summary(answer, ReaderEvidence.model_validate_json(question.evidence))
    if isinstance(answer, ProposalSet):
        return _of_proposals(answer, ProposerEvidence.model_validate_json(question.evidence))
    if isinstance(answer, PatchAnswer):
        return _of_patch(answer, WriterEvidence.model_validate_json(question.evidence))
    if isinstance(answer, Review):
        return _of_review(answer, SkepticEvidence.model_validate_json(question.evidence))
    raise TypeError(f"no role answers with {type(answer).__name__}")


def _of_summary(answer: BottleneckSummary, evidence: ReaderEvidence) -> list[str]:
    found = [f"bottlenecks: {id_} stands there twice" for id_ in _twice(b.id for b in answer.bottlenecks)]
    named = {b.shape_class for b in answer.bottlenecks}
    profiled = dict.fromkeys(s.shape_class for s in evidence.profile.shapes)
    found += [f"bottlenecks: class {c} has shapes in the profile and no bottleneck" for c in profiled if c not in named]
    lines = evidence.source.text.count("\n") + 1
    for b in answer.bottlenecks:
        if not 0 <= b.line_first <= b.line_last <= lines:
            found.append(f"{b.id}: lines {b.line_first} to {b.line_last} are not in the source, which has {lines}")
        if not b.cited:
            found.append(f"{b.id}: cites no figure")
    return found


def _of_proposals(answer: ProposalSet, evidence: ProposerEvidence) -> list[str]:
    if not answer.proposals and not answer.note.strip():
        return ["note: say why there is nothing to propose"]
    known = {b.id for b in evidence.bottlenecks.bottlenecks}
    recipes = {r.name for r in evidence.recipes} | {"free"}
    return [
        line for n, p in enumerate(answer.proposals, 1) for line in _of_proposal(p, f"proposal {n}", known, recipes)
    ]


def _of_proposal(proposal: ProposalIdea, where: str, bottlenecks: set[str], recipes: set[str]) -> list[str]:
    ids = [c.id for c in proposal.changes]
    found = [] if ids else [f"{where}: has no change"]
    found += [f"{where}: two changes are called {id_}" for id_ in _twice(ids)]
    found += [f"{where}: there is no bottleneck {b}" for b in proposal.bottlenecks if b not in bottlenecks]
    for index, change in enumerate(proposal.changes):
        found += [f"{where}, {line}" for line in _of_change(change, ids[:index], ids, recipes)]
    return found


def _of_change(change: ChangeIdea, before: Sequence[str], ids: Sequence[str], recipes: set[str]) -> list[str]:
    where = f"change {change.id}"
    found = []
    if change.mechanism not in recipes:
        found.append(f"{where}: mechanism '{change.mechanism}' is no recipe. Known: {', '.join(sorted(recipes))}")
    for needed in change.requires:
        if needed not in ids:
            found.append(f"{where}: requires '{needed}', which is not a change of this proposal")
        elif needed not in before:
            found.append(f"{where}: requires '{needed}', which must stand before it")
    for knob in change.knobs:
        if not MACRO.match(knob.name):
            found.append(f"{where}: '{knob.name}' is no macro name")
        if knob.value not in knob.window:
            found.append(f"{where}: the window of {knob.name} does not hold its first value {knob.value}")
    if not (change.gain > 0 and change.figure_factor > 0):
        found.append(f"{where}: gain and figure_factor are ratios above 0")
    if len(change.why.strip()) < SHORTEST_WHY:
        found.append(f"{where}: why must name the mechanism and the figures it rests on")
    return found


def _of_patch(answer: PatchAnswer, evidence: WriterEvidence) -> list[str]:
    changes = {c.id for c in evidence.proposal.changes}
    op = evidence.operator
    flags = {*op.base_flags, *op.contract_flags, *op.extra_flags}
    recipes = {r.name for r in evidence.recipes}
    found = [] if answer.edits else ["edits: there is none"]
    found += [f"edits: change {id_} is written twice" for id_ in _twice(e.change for e in answer.edits)]
    for edit in answer.edits:
        found += _of_edit(edit, changes, flags, recipes)
    return found


def _of_edit(edit: EditText, changes: set[str], flags: set[str], recipes: set[str]) -> list[str]:
    where = f"edit {edit.change}"
    found = []
    if edit.change not in changes:
        found.append(f"{where}: the proposal's changes are {', '.join(sorted(changes))}")
    if edit.recipe and edit.recipe not in recipes:
        found.append(f"{where}: there is no recipe '{edit.recipe}'. Known: {', '.join(sorted(recipes))}")
    if not (edit.recipe or edit.blocks or edit.add_flags or edit.knobs):
        found.append(f"{where}: changes nothing")
    if any(not b.search for b in edit.blocks):
        found.append(f"{where}: a block's search is empty")
    found += [f"{where}: flag {f} is not one of {', '.join(sorted(flags))}" for f in edit.add_flags if f not in flags]
    return found


def _of_review(answer: Review, evidence: SkepticEvidence) -> list[str]:
    found = []
    if answer.verdict == "object" and not answer.objections:
        found.append("objections: an objection needs its figure")
    if answer.verdict == "more_tests" and not answer.tests:
        found.append("tests: say which tests are wanted")
    if answer.verdict == "more_tests" and evidence.tests_done:
        found.append("verdict: the tests were done; decide now")
    check = partial(_of_test, axes=set(evidence.operator.axes), distributions=set(evidence.operator.distributions))
    return found + [line for n, test in enumerate(answer.tests, 1) for line in check(test, f"test {n}")]


def _of_test(test: TestRequest, where: str, *, axes: set[str], distributions: set[str]) -> list[str]:
    found = []
    if test.distribution and test.distribution not in distributions:
        found.append(
            f"{where}: there is no distribution '{test.distribution}'. Known: {', '.join(sorted(distributions))}"
        )
    if test.kind == "distribution" and not test.distribution:
        found.append(f"{where}: name the distribution")
    if test.kind == "shape":
        given = [a.name for a in test.axes]
        if sorted(given) != sorted(axes):
            found.append(f"{where}: a shape gives a value to each of {', '.join(sorted(axes))}")
        size = 1
        for axis in test.axes:
            size *= max(axis.value, 1)
        if any(a.value < 0 for a in test.axes) or size > MOST_ELEMENTS:
            found.append(f"{where}: axes from 0 up, with a product of at most {MOST_ELEMENTS}")
    return found


def _twice(names: Iterable[str]) -> list[str]:
    seen: set[str] = set()
    double: list[str] = []
    for name in names:
        if name in seen and name not in double:
            double.append(name)
        seen.add(name)
    return double
