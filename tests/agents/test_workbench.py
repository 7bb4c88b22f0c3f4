"""The workbench: a role's view of the bus, with the real bus behind it."""

from __future__ import annotations

import asyncio

from kernelcrew.agents.workbench import BusWorkbench, NoTools
from kernelcrew.errors import StoreError
from kernelcrew.record import Record
from kernelcrew.tools.bus import Bus, Level, Tool, permission_wrapper


class Ask(Record):
    """Arguments."""

    text: str
    """What."""


class Told(Record):
    """Result."""

    words: str
    """What was said."""


def bus(level: Level = Level.MEASURE) -> Bus:
    made = Bus(wrappers=(permission_wrapper(lambda caller: level),))
    made.register(
        Tool("look", "Look", Ask, Told, Level.OBSERVE, frozenset({"skeptic"})), lambda a: Told(words=a.text * 2)
    )
    made.register(Tool("cut", "Cut", Ask, Told, Level.COMMIT, frozenset({"skeptic"})), lambda a: Told(words="cut"))

    def gone(args: Ask) -> Told:
        raise StoreError("disk full")

    made.register(Tool("fall", "Fall", Ask, Told, Level.OBSERVE, frozenset({"skeptic"})), gone)
    return made


def call(bench: BusWorkbench, name: str, **arguments: str) -> tuple[str, bool]:
    result = asyncio.run(bench.call_tool(name, arguments))
    return result.to_text(), result.is_error


def test_a_role_sees_its_tools_with_their_arguments() -> None:
    bench = BusWorkbench(bus().view("skeptic"))
    look = asyncio.run(bench.list_tools())[0]
    assert look["name"] == "look" and look["parameters"]["properties"]["text"] == {
        "description": "What.",
        "type": "string",
    }
    assert asyncio.run(BusWorkbench(bus().view("proposer")).list_tools()) == []
    assert asyncio.run(BusWorkbench(NoTools()).list_tools()) == []


def test_calls_answer_and_refusals_are_errors_with_their_reason() -> None:
    bench = BusWorkbench(bus().view("skeptic"))
    assert call(bench, "look", text="ab") == ('{"words":"abab"}', False)
    text, is_error = call(bench, "cut", text="x")
    assert is_error and "needs commit" in text
    text, is_error = call(bench, "look", wrong="x")
    assert is_error and "arguments" in text
    assert bench.failure is None
    assert call(BusWorkbench(NoTools()), "look", text="x")[1]


def test_an_exception_is_kept_for_whoever_asked_and_does_not_hang_the_agent() -> None:
    bench = BusWorkbench(bus().view("skeptic"))
    text, is_error = call(bench, "fall", text="x")
    assert is_error and "StoreError" in text and "disk" not in text
    assert isinstance(bench.failure, StoreError)
    asyncio.run(bench.reset())
    assert bench.failure is None
