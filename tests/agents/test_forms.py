"""What a schema cannot say of an answer: names that exist, parts that fit."""

from __future__ import annotations

from typing import Any

import agent_evidence as kit
import pytest

from kernelcrew.agents.experts.proposer import propose
from kernelcrew.agents.experts.reader import read_profile
from kernelcrew.agents.experts.skeptic import review
from kernelcrew.agents.experts.writer import write_patch
from kernelcrew.agents.forms import ANSWERS, problems_of
from kernelcrew.agents.nouns import Question, Role
from kernelcrew.record import Record

PROPOSALS = propose(kit.proposer_evidence(), 0)
PROPOSAL = kit.proposal_of(PROPOSALS.proposals[0])
WRITER = kit.writer_evidence(PROPOSAL)
SKEPTIC = kit.skeptic_evidence(PROPOSAL, kit.composed(PROPOSAL, write_patch(WRITER)), kit.timing({}))
CASES: dict[Role, tuple[Record, Record]] = {
    "profiler_reader": (kit.reader_evidence(), read_profile(kit.reader_evidence())),
    "proposer": (kit.proposer_evidence(), PROPOSALS),
    "patch_writer": (WRITER, write_patch(WRITER)),
    "skeptic": (SKEPTIC, review(SKEPTIC)),
}


def problems(role: Role, *path: str | int, value: Any = None) -> list[str]:
    """Problems of a good answer with one place set to another value; none without a path."""
    evidence, answer = CASES[role]
    raw: Any = answer.model_dump(mode="json")
    at = raw
    for step in path[:-1]:
        at = at[step]
    if path:
        at[path[-1]] = value
    question = Question(role=role, task="", prefix="", evidence=evidence.model_dump_json())
    return problems_of(ANSWERS[role][0].model_validate(raw), question)


@pytest.mark.parametrize("role", list(CASES))
def test_good_answers_have_no_problem(role: Role) -> None:
    assert problems(role) == []


CHANGE = ("proposals", 0, "changes", 0)


@pytest.mark.parametrize(
    ("role", "path", "value", "told"),
    [
        ("profiler_reader", ("bottlenecks",), [], "class main has shapes"),
        ("profiler_reader", ("bottlenecks", 0, "line_last"), 999, "not in the source"),
        ("profiler_reader", ("bottlenecks", 0, "cited"), [], "cites no figure"),
        ("profiler_reader", ("bottlenecks", 0, "id"), "b2", "twice"),
        ("proposer", (*CHANGE, "mechanism"), "magic", "no recipe. Known: "),
        ("proposer", (*CHANGE, "requires"), ["nobody"], "not a change of this proposal"),
        ("proposer", (*CHANGE, "requires"), ["small_tail"], "must stand before it"),
        ("proposer", (*CHANGE, "id"), "small_tail", "two changes are called"),
        ("proposer", (*CHANGE, "gain"), 0.0, "above 0"),
        ("proposer", (*CHANGE, "why"), "It is faster.", "why must name"),
        ("proposer", (*CHANGE, "knobs"), [{"name": "A B", "value": 1, "window": [2]}], "no macro name"),
        ("proposer", (*CHANGE, "knobs"), [{"name": "A", "value": 1, "window": [2]}], "first value 1"),
        ("proposer", ("proposals", 0, "bottlenecks"), ["b77"], "no bottleneck b77"),
        ("proposer", ("proposals", 0, "changes"), [], "has no change"),
        ("patch_writer", ("edits",), [], "there is none"),
        ("patch_writer", ("edits", 0, "change"), "other", "the proposal's changes are"),
        ("patch_writer", ("edits", 0, "recipe"), "magic", "no recipe 'magic'"),
        ("patch_writer", ("edits", 0, "add_flags"), ["-Ofast"], "flag -Ofast is not one of"),
        ("patch_writer", ("edits", 0, "blocks"), [{"search": "", "replace": "x"}], "search is empty"),
        ("patch_writer", ("edits", 1, "change"), "vector_accumulators", "written twice"),
        ("patch_writer", ("edits", 1, "recipe"), "", "changes nothing"),
        ("skeptic", ("verdict",), "object", "needs its figure"),
        ("skeptic", ("tests",), [], "say which tests"),
        ("skeptic", ("tests", 0, "distribution"), "spiky", "no distribution 'spiky'"),
        ("skeptic", ("tests", 0, "axes"), [{"name": "n", "value": 3}], "each of n, rows"),
        ("skeptic", ("tests", 0, "axes", 0, "value"), 1 << 23, "product of at most"),
        ("skeptic", ("tests", 0, "kind"), "distribution", "name the distribution"),
    ],
)
def test_what_does_not_fit_is_told(role: Role, path: tuple[str | int, ...], value: Any, told: str) -> None:
    assert any(told in line for line in problems(role, *path, value=value)), problems(role, *path, value=value)


def test_no_proposal_needs_a_reason() -> None:
    question = Question(role="proposer", task="", prefix="", evidence=kit.proposer_evidence().model_dump_json())
    empty = PROPOSALS.model_copy(update={"proposals": [], "note": " "})
    assert problems_of(empty, question) == ["note: say why there is nothing to propose"]
    assert problems_of(empty.model_copy(update={"note": "All classes are near their peak."}), question) == []


def test_tests_are_asked_for_once() -> None:
    question = Question(
        role="skeptic", task="", prefix="", evidence=SKEPTIC.model_copy(update={"tests_done": True}).model_dump_json()
    )
    assert problems_of(review(SKEPTIC), question) == ["verdict: the tests were done; decide now"]
