"""`recipes`: a rule-based expert behind the interface of a chat model. It is not a language model.

It reads the evidence out of the question, looks into memory through the same workbench that a language model gets, and
answers with the same typed JSON; so the team's code runs the same with either.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence

from autogen_core import FunctionCall
from autogen_core.models import CreateResult, FunctionExecutionResultMessage, LLMMessage, RequestUsage
from autogen_core.tools import Tool, ToolSchema

from kernelcrew.agents.evidence import ProposerEvidence, ReaderEvidence, SkepticEvidence, WriterEvidence
from kernelcrew.agents.experts.proposer import Swept, propose, sweeps_wanted
from kernelcrew.agents.experts.reader import read_profile
from kernelcrew.agents.experts.skeptic import review
from kernelcrew.agents.experts.writer import write_patch
from kernelcrew.agents.nouns import Role
from kernelcrew.agents.offline import OfflineClient, text_of
from kernelcrew.agents.question import evidence_in
from kernelcrew.memory.tokens import count
from kernelcrew.record import Record

SEARCH = "search_memory"
SWEEP = "sweep_knob"
ANSWERS_WANTED = 3
SHOWN = 160
"""Characters of a found reason that the note repeats."""


class RecipesClient(OfflineClient):
    """The experts as a chat model. `seed` governs their choices."""

    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        self.seed = seed

    def reply(self, messages: Sequence[LLMMessage], tools: Sequence[Tool | ToolSchema]) -> CreateResult:
        """A search of the memory where that can help and is offered, then the answer."""
        role, evidence = evidence_in(messages)
        offered = {tool["name"] if isinstance(tool, dict) else tool.name for tool in tools}
        found = _results(messages)
        asked = sum(count(text_of(m)) for m in messages)
        calls: list[FunctionCall] = []
        if role == "proposer":
            calls = _calls(ProposerEvidence.model_validate_json(evidence), self.seed, offered, found)
        if calls:
            usage = RequestUsage(prompt_tokens=asked, completion_tokens=sum(count(c.arguments) for c in calls))
            return CreateResult(finish_reason="function_calls", content=calls, usage=usage, cached=False)
        text = answer(role, evidence, self.seed, found).model_dump_json()
        usage = RequestUsage(prompt_tokens=asked, completion_tokens=count(text))
        return CreateResult(finish_reason="stop", content=text, usage=usage, cached=False)


def answer(role: Role, evidence: str, seed: int, found: Mapping[str, Sequence[str]] | None = None) -> Record:
    """The expert's answer to one question. `found` is what the tools gave, by their names."""
    if role == "profiler_reader":
        return read_profile(ReaderEvidence.model_validate_json(evidence))
    if role == "proposer":
        told = found or {}
        hint = _hint(told[SEARCH][-1] if told.get(SEARCH) else None)
        return propose(ProposerEvidence.model_validate_json(evidence), seed, hint, _swept(told.get(SWEEP, ())))
    if role == "patch_writer":
        return write_patch(WriterEvidence.model_validate_json(evidence))
    return review(SkepticEvidence.model_validate_json(evidence))


def _calls(
    evidence: ProposerEvidence, seed: int, offered: Collection[str], found: Mapping[str, Sequence[str]]
) -> list[FunctionCall]:
    """What the proposer wants of the tools before it answers: memory first, then sweeps of the knobs it would move."""
    if SEARCH in offered and SEARCH not in found:
        return [_search(evidence)]
    if SWEEP in offered and SWEEP not in found:
        wanted = sweeps_wanted(evidence, seed).items()
        return [
            FunctionCall(id=f"sweep-{n}", name=SWEEP, arguments=json.dumps({"knob": knob, "values": values}))
            for n, (knob, values) in enumerate(wanted, 1)
        ]
    return []


def _swept(answers: Sequence[str]) -> dict[str, Swept]:
    """The best value of each knob that was swept; a refused sweep says nothing."""
    found: dict[str, Swept] = {}
    for text in answers:
        try:
            told = json.loads(text)
            rows = [(row["overall"], row["value"]) for row in told["rows"] if row["overall"] > 0]
            if rows:
                overall, value = max(rows)
                found[told["knob"]] = Swept(best=value, overall=overall, margin=told["margin"])
        except (json.JSONDecodeError, KeyError, TypeError):
            continue
    return found


def _search(evidence: ProposerEvidence) -> FunctionCall:
    kinds = " ".join(
        dict.fromkeys(f"{b.kind} {b.shape_class}" for b in evidence.bottlenecks.bottlenecks if b.kind != "near_peak")
    )
    text = f"{evidence.operator.name} {kinds}".strip()
    return FunctionCall(id="search-1", name=SEARCH, arguments=json.dumps({"text": text, "n": ANSWERS_WANTED}))


def _results(messages: Sequence[LLMMessage]) -> dict[str, list[str]]:
    """What the tool calls of this question gave, by tool."""
    found: dict[str, list[str]] = {}
    for message in messages:
        if isinstance(message, FunctionExecutionResultMessage):
            for result in message.content:
                found.setdefault(result.name, []).append(result.content)
    return found


def _hint(found: str | None) -> str:
    """One sentence on what memory gave: the nearest reason, or that there is none."""
    if found is None:
        return ""
    try:
        answers = json.loads(found).get("answers", [])
    except (json.JSONDecodeError, AttributeError):
        return ""
    if not answers:
        return "Memory holds no reason near to these bottlenecks."
    nearest = " ".join(str(answers[0]).split())
    cut = nearest if len(nearest) <= SHOWN else nearest[:SHOWN].rsplit(" ", 1)[0] + " ..."
    return f"Nearest in memory ({len(answers)} found): {cut}"
