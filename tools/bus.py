"""The tool bus: one registry of typed tools, and a short list of small wrappers that every call passes.

A tool is a name, an argument type, a result type, the permission it needs and who may call it. A refused call is a
value (`Refusal`), never an exception; `need` turns it into one for callers that cannot go on without the answer.
The journal, the budget and the display are handed in: this room knows them only as callables.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Generic, TypeVar

from pydantic import ValidationError

from kernelcrew.errors import CrewError, UnknownName
from kernelcrew.record import Record

A = TypeVar("A", bound=Record)
R = TypeVar("R", bound=Record)


class Level(IntEnum):
    """The permission ladder; each rung holds those below it."""

    OBSERVE = 0
    MEASURE = 1
    WRITE_SCRATCH = 2
    COMMIT = 3
    MERGE = 4


class Refusal(Record):
    """A call that was not carried out."""

    tool: str
    """What was called."""
    caller: str
    """Who called."""
    rule: str
    """permission, caller, budget or arguments."""
    because: str
    """For the caller and for the record."""


class Refused(CrewError):
    """A refusal that the caller could not go on without."""


class CallNote(Record):
    """One line of the ledger."""

    tool: str
    """What was called."""
    caller: str
    """Who called."""
    stage: str
    """Stage of the run at the time."""
    seconds: float
    """Wall clock."""
    status: str
    """ok, refused, or the exception's name."""


@dataclass(frozen=True)
class Tool(Generic[A, R]):
    """A typed tool. `measures` marks the ones that own the device while they run."""

    name: str
    description: str
    arguments: type[A]
    result: type[R]
    permission: Level
    callers: frozenset[str] = frozenset({"runs"})
    measures: bool = False


@dataclass(frozen=True)
class Call:
    """One call on its way through the wrappers."""

    tool: Tool[Any, Any]
    arguments: Record
    caller: str


Next = Callable[[Call], Record]
Wrapper = Callable[[Call, Next], Record]


def permission_wrapper(
    levels: Callable[[str], Level], refused: Callable[[Refusal, Record], None] = lambda refusal, arguments: None
) -> Wrapper:
    """Refuses callers the tool does not list, and callers whose level is below the tool's; `refused` keeps the record
    of the latter, with the arguments of the call."""

    def wrap(call: Call, go_on: Next) -> Record:
        if call.caller not in call.tool.callers:
            allowed = ", ".join(sorted(call.tool.callers))
            return _refuse(call, "caller", f"only {allowed} may call it")
        level = levels(call.caller)
        if level < call.tool.permission:
            because = f"needs {call.tool.permission.name.lower()}, has {level.name.lower()}"
            refusal = _refuse(call, "permission", because)
            refused(refusal, call.arguments)
            return refusal
        return go_on(call)

    return wrap


def budget_wrapper(left_s: Callable[[], float]) -> Wrapper:
    """Refuses new measurements once the time budget is spent; reading stays possible."""

    def wrap(call: Call, go_on: Next) -> Record:
        if call.tool.measures and left_s() <= 0:
            return _refuse(call, "budget", "the time budget of this run is spent")
        return go_on(call)

    return wrap


def ledger_wrapper(note: Callable[[CallNote], None], stage: Callable[[], str]) -> Wrapper:
    """Notes every call with its time, also one that raises."""

    def wrap(call: Call, go_on: Next) -> Record:
        started = time.monotonic()
        status = "interrupted"
        try:
            answer = go_on(call)
            status = "refused" if isinstance(answer, Refusal) else "ok"
            return answer
        except CrewError as error:
            status = type(error).__name__
            raise
        finally:
            seconds = time.monotonic() - started
            note(CallNote(tool=call.tool.name, caller=call.caller, stage=stage(), seconds=seconds, status=status))

    return wrap


def device_wrapper(lock: Callable[[], Any]) -> Wrapper:
    """Measurements run one at a time on their device: `lock()` is a context manager."""

    def wrap(call: Call, go_on: Next) -> Record:
        if not call.tool.measures:
            return go_on(call)
        with lock():
            return go_on(call)

    return wrap


@dataclass
class Bus:
    """Registry and dispatcher."""

    wrappers: Sequence[Wrapper] = ()
    _tools: dict[str, tuple[Tool[Any, Any], Callable[[Any], Record]]] = field(default_factory=dict)

    def register(self, tool: Tool[A, R], work: Callable[[A], R]) -> None:
        """Put a tool on the bus. A name can be taken once."""
        if tool.name in self._tools:
            raise ValueError(f"two tools named {tool.name}")
        self._tools[tool.name] = (tool, work)

    def tools(self) -> Iterator[Tool[Any, Any]]:
        return (tool for tool, _ in self._tools.values())

    def use(self, tool: Tool[A, R], arguments: A, caller: str = "runs") -> R | Refusal:
        """Call a tool; a refusal is a value."""
        return self._through(Call(tool=tool, arguments=arguments, caller=caller))  # type: ignore[return-value]

    def need(self, tool: Tool[A, R], arguments: A, caller: str = "runs") -> R:
        """Call a tool whose answer the caller cannot go on without. Raises Refused."""
        answer = self.use(tool, arguments, caller)
        if isinstance(answer, Refusal):
            raise Refused(f"{tool.name}: {answer.because}", fix="raise --budget-min" if answer.rule == "budget" else "")
        return answer

    def view(self, role: str) -> RoleView:
        """What one role sees of the bus."""
        return RoleView(self, role)

    def _through(self, call: Call) -> Record:
        entry = self._tools.get(call.tool.name)
        if entry is None:
            raise UnknownName("tool", call.tool.name, self._tools)

        def last(inner: Call) -> Record:
            return entry[1](inner.arguments)

        chain: Next = last
        for wrapper in reversed(self.wrappers):
            chain = _link(wrapper, chain)
        return chain(call)


@dataclass(frozen=True)
class RoleView:
    """The bus as one role's workbench sees it: names, schemas, and calls that answer in text."""

    bus: Bus
    role: str

    def specs(self) -> list[dict[str, Any]]:
        """Name, description and JSON schema of each tool this role may call."""
        return [
            {"name": t.name, "description": t.description, "schema": t.arguments.model_json_schema()}
            for t in self.bus.tools()
            if self.role in t.callers
        ]

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """Call a tool by name; refusals and bad arguments come back as JSON with a `refused` field."""
        entry = next((t for t in self.bus.tools() if t.name == name and self.role in t.callers), None)
        if entry is None:
            known = [t.name for t in self.bus.tools() if self.role in t.callers]
            return _text(Refusal(tool=name, caller=self.role, rule="caller", because=f"known tools: {known}"))
        try:
            typed = entry.arguments.model_validate(arguments)
        except ValidationError as error:
            return _text(Refusal(tool=name, caller=self.role, rule="arguments", because=str(error)))
        return _text(self.bus.use(entry, typed, self.role))


@contextmanager
def no_lock() -> Iterator[None]:
    """A device lock for devices that nobody shares."""
    yield


def _link(wrapper: Wrapper, chain: Next) -> Next:
    return lambda call: wrapper(call, chain)


def _refuse(call: Call, rule: str, because: str) -> Refusal:
    return Refusal(tool=call.tool.name, caller=call.caller, rule=rule, because=because)


def _text(answer: Record) -> str:
    if isinstance(answer, Refusal):
        return '{"refused": ' + answer.model_dump_json() + "}"
    return answer.model_dump_json(exclude_none=True)
