"""The bus: typed calls through permission, budget and ledger; refusals are values."""

from __future__ import annotations

import json

import pytest

from kernelcrew.errors import UnknownName
from kernelcrew.record import Record
from kernelcrew.tools.bus import (
    Bus,
    CallNote,
    Level,
    Refusal,
    Refused,
    Tool,
    budget_wrapper,
    ledger_wrapper,
    permission_wrapper,
)


class Args(Record):
    value: int
    """A figure."""


class Result(Record):
    value: int
    """Its double."""


DOUBLE = Tool("double", "Doubles", Args, Result, Level.MEASURE, frozenset({"runs", "proposer"}), measures=True)


def bus(level: Level = Level.MEASURE, left_s: float = 1.0) -> tuple[Bus, list[CallNote]]:
    notes: list[CallNote] = []
    made = Bus(
        wrappers=(
            ledger_wrapper(notes.append, lambda: "trial"),
            permission_wrapper(lambda caller: level),
            budget_wrapper(lambda: left_s),
        )
    )
    made.register(DOUBLE, lambda args: Result(value=2 * args.value))
    return made, notes


def test_a_call_returns_its_typed_result_and_is_noted() -> None:
    made, notes = bus()
    assert made.need(DOUBLE, Args(value=4)).value == 8
    assert [(n.tool, n.stage, n.status) for n in notes] == [("double", "trial", "ok")]


def test_too_low_a_level_a_stranger_and_a_spent_budget_are_refused_each_by_its_rule() -> None:
    low, notes = bus(level=Level.OBSERVE)
    assert _rule(low.use(DOUBLE, Args(value=1))) == "permission"
    assert notes[0].status == "refused"
    assert _rule(bus()[0].use(DOUBLE, Args(value=1), "skeptic")) == "caller"
    assert _rule(bus(left_s=0.0)[0].use(DOUBLE, Args(value=1))) == "budget"
    with pytest.raises(Refused, match="budget"):
        bus(left_s=0.0)[0].need(DOUBLE, Args(value=1))


def test_a_role_sees_only_its_tools_and_bad_arguments_come_back_as_text() -> None:
    made, _ = bus()
    assert [s["name"] for s in made.view("proposer").specs()] == ["double"]
    assert made.view("skeptic").specs() == []
    assert json.loads(made.view("proposer").call("double", {"value": 3})) == {"value": 6}
    assert json.loads(made.view("proposer").call("double", {"value": "x"}))["refused"]["rule"] == "arguments"
    assert json.loads(made.view("skeptic").call("double", {"value": 3}))["refused"]["rule"] == "caller"


def test_an_unknown_tool_names_the_known_ones() -> None:
    stranger = Tool("triple", "Triples", Args, Result, Level.OBSERVE)
    with pytest.raises(UnknownName, match="double"):
        bus()[0].need(stranger, Args(value=1))


def _rule(answer: Result | Refusal) -> str:
    assert isinstance(answer, Refusal)
    return answer.rule
