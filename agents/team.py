"""The team: four AutoGen agents asked one question at a time. The one adapter between kernelcrew and AutoGen's agents.

Each question gets a fresh agent, so nothing of an earlier question can be in its context. Bad form goes back to the
model with what is wrong, a bounded number of times; then the answer's status says so and the round counts as failed.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable

from autogen_agentchat.agents import AssistantAgent
from autogen_agentchat.messages import StructuredMessage, TextMessage
from autogen_core import CancellationToken
from pydantic import ValidationError

from kernelcrew.agents.clients import Unsupported, make_client
from kernelcrew.agents.forms import ANSWERS, problems_of
from kernelcrew.agents.nouns import Answer, Question, Role, Usage
from kernelcrew.agents.prompts import render
from kernelcrew.agents.question import compose
from kernelcrew.agents.schema import describe, strict_schema
from kernelcrew.agents.tape import Tape
from kernelcrew.agents.workbench import BusWorkbench, NoTools, ToolView
from kernelcrew.kernels.kinds import VALUE_FLAGS
from kernelcrew.record import Record
from kernelcrew.tools.policy_names import HEADERS

REPAIRS = 2
"""Times that an answer in bad form goes back."""
TOOL_ROUNDS = 4
"""Rounds of tool calls before an answer at most."""

for _name in ("autogen_core", "autogen_agentchat"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)


class Team:
    """Asks the roles. `record` keeps an exchange's text and returns its hash; `view` gives a role's tools."""

    def __init__(
        self, model: str, base_url: str | None, seed: int, record: Callable[[str], str], view: Callable[[str], ToolView]
    ) -> None:
        self.model = model
        self.client = make_client(model, base_url, seed)
        self.record = record
        self.view = view
        self.takes_schema = bool(self.client.model_info.get("structured_output"))
        self.takes_tools = bool(self.client.model_info["function_calling"])

    async def ask(self, question: Question) -> Answer:
        """One typed answer with its cost. Raises ModelError when the server is down or refuses."""
        started = time.monotonic()
        tapes: list[Tape] = []
        while True:
            tape = Tape(self.client, question, self.model, self.record, structured=self.takes_schema)
            tapes.append(tape)
            try:
                content, problem = await self._answered(question, tape)
            except Unsupported as refusal:
                if not self._do_without(refusal.part):
                    raise
                continue
            break
        field = ANSWERS[question.role][1]
        usage = Usage(
            prompt_tokens=sum(t.usage.prompt_tokens for t in tapes),
            completion_tokens=sum(t.usage.completion_tokens for t in tapes),
            calls=sum(t.calls for t in tapes),
            seconds=round(time.monotonic() - started, 4),
            money_usd=self._price(),
        )
        exchanges = [name for t in tapes for name in t.hashes]
        if content is None:
            return Answer(role=question.role, status="bad_form", usage=usage, exchanges=exchanges, problem=problem)
        return Answer.model_validate(
            {"role": question.role, "status": "ok", field: content, "usage": usage, "exchanges": exchanges}
        )

    async def close(self) -> None:
        """Close the client's connections."""
        await self.client.close()

    async def _answered(self, question: Question, tape: Tape) -> tuple[Record | None, str]:
        bench = BusWorkbench(self.view(question.role) if self.takes_tools else NoTools())
        agent = await self._agent(question, tape, bench)
        text = compose(question)
        problem = ""
        for _ in range(REPAIRS + 1):
            content, problem = await _once(agent, text, question)
            if bench.failure is not None:
                raise bench.failure
            if content is not None:
                return content, ""
            text = render("repair", {"problem": problem})
        return None, problem

    async def _agent(self, question: Question, tape: Tape, bench: BusWorkbench) -> AssistantAgent:
        kind = ANSWERS[question.role][0]
        tools = "\n".join(f"- `{t['name']}`: {t.get('description', '')}" for t in await bench.list_tools())
        if self.takes_schema:
            form = render("structured", {"name": kind.__name__})
        else:
            form = render("schema", {"schema": _compact(kind)})
        told = render("tools", {"limit": str(TOOL_ROUNDS), "tools": tools}) if tools else "There are no tools to call."
        system = render("preamble", {"tools": told.strip(), "answer": form.strip()})
        return AssistantAgent(
            question.role,
            model_client=tape,
            workbench=bench,
            system_message=f"{system}\n{role_prompt(question.role)}",
            output_content_type=kind,
            reflect_on_tool_use=True,
            max_tool_iterations=TOOL_ROUNDS,
            model_client_stream=False,
        )

    def _do_without(self, part: str) -> bool:
        """Go on without a schema or without tools; False when that was already so."""
        had = self.takes_schema if part == "schema" else self.takes_tools
        if part == "schema":
            self.takes_schema = False
        else:
            self.takes_tools = False
        return had

    def _price(self) -> float | None:
        """Nothing is paid for computed and replayed answers; what a server charges is not known here."""
        return None if self.model.startswith("openai:") else 0.0


async def _once(agent: AssistantAgent, text: str, question: Question) -> tuple[Record | None, str]:
    """One message to the agent: its answer, or what is wrong with its form."""
    try:
        response = await agent.on_messages([TextMessage(content=text, source="kernelcrew")], CancellationToken())
    except ValidationError as error:
        return None, describe(error)
    assert isinstance(response.chat_message, StructuredMessage)
    content: Record = response.chat_message.content
    problems = problems_of(content, question)
    return (None, "\n".join(f"- {line}" for line in problems)) if problems else (content, "")


def role_prompt(role: Role) -> str:
    """The role's own part of the system message, with the policy gate's lists put in."""
    if role != "patch_writer":
        return render(role, {})
    headers = ", ".join(f"<{name}>" for name in sorted(HEADERS))
    policy = f"Headers that may be included: {headers}. Flags that change values are refused: {', '.join(VALUE_FLAGS)}."
    return render(role, {"policy": policy})


def _compact(kind: type[Record]) -> str:
    return json.dumps(strict_schema(kind), separators=(",", ":"), ensure_ascii=False)
