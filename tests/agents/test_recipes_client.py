"""All four roles end to end through AutoGen's agents with the rule-based client, and the same answers replayed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import agent_evidence as kit
import pytest

from kernelcrew.agents.experts.proposer import propose
from kernelcrew.agents.experts.writer import write_patch
from kernelcrew.agents.nouns import Answer, Question, Role
from kernelcrew.agents.recipes_client import RecipesClient
from kernelcrew.agents.team import Team
from kernelcrew.agents.workbench import NoTools, ToolView
from kernelcrew.errors import BadManifest, HarnessError, ModelError, UserMistake
from kernelcrew.memory.tokens import count

IDEA = propose(kit.proposer_evidence(), 0).proposals[0]
PROPOSAL = kit.proposal_of(IDEA)
CANDIDATE = kit.composed(PROPOSAL, write_patch(kit.writer_evidence(PROPOSAL)))
QUESTIONS: dict[Role, Question] = {
    "profiler_reader": Question(
        role="profiler_reader", task="Read.", prefix="", evidence=kit.reader_evidence().model_dump_json()
    ),
    "proposer": Question(
        role="proposer", task="Propose.", prefix="", evidence=kit.proposer_evidence().model_dump_json()
    ),
    "patch_writer": Question(
        role="patch_writer", task="Write.", prefix="", evidence=kit.writer_evidence(PROPOSAL).model_dump_json()
    ),
    "skeptic": Question(
        role="skeptic",
        task="Doubt.",
        prefix="",
        evidence=kit.skeptic_evidence(PROPOSAL, CANDIDATE, kit.timing({})).model_dump_json(),
    ),
}


class Memory:
    """A view whose memory holds some answers."""

    def __init__(self, *answers: str) -> None:
        self.answers = answers
        self.asked: list[dict[str, Any]] = []

    def specs(self) -> list[dict[str, Any]]:
        return [{"name": "search_memory", "description": "Search", "schema": {"type": "object", "properties": {}}}]

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        self.asked.append(arguments)
        return json.dumps({"answers": self.answers})


def ask(model: str, questions: list[Question], view: ToolView | None = None) -> tuple[list[Answer], list[str]]:
    kept: list[str] = []
    name: Callable[[str], str] = lambda text: f"h{len(kept)}" if not kept.append(text) else ""  # noqa: E731 - one line

    async def whole() -> list[Answer]:
        team = Team(model, None, 0, name, lambda role: view or NoTools())
        return [await team.ask(question) for question in questions]

    return asyncio.run(whole()), kept


def test_all_four_roles_answer_typed_at_the_first_try() -> None:
    answers, kept = ask("recipes", list(QUESTIONS.values()))
    assert [a.status for a in answers] == ["ok"] * 4, [a.problem for a in answers]
    reader, proposer, writer, skeptic = answers
    assert reader.bottlenecks and proposer.proposals and writer.patch and skeptic.review
    assert [e.change for e in writer.patch.edits] == [c.id for c in PROPOSAL.changes]
    assert all(a.usage.calls == 1 and a.usage.money_usd == 0.0 for a in answers)
    assert reader.usage.completion_tokens == count(reader.bottlenecks.model_dump_json())
    assert len(kept) == 4 and json.loads(kept[1])["role"] == "proposer"


def test_the_proposer_looks_into_memory_when_it_may() -> None:
    memory = Memory("rollback: prefetch made main slower (run r-1)")
    (answer,), kept = ask("recipes", [QUESTIONS["proposer"]], memory)
    assert memory.asked == [{"text": memory.asked[0]["text"], "n": 3}]
    assert "reduction" in memory.asked[0]["text"] and "latency" in memory.asked[0]["text"]
    assert answer.proposals and "prefetch made main slower" in answer.proposals.note
    assert answer.usage.calls == 2 == len(kept)
    (answer,), _ = ask("recipes", [QUESTIONS["proposer"]], Memory())
    assert answer.proposals and "Memory holds no reason" in answer.proposals.note


def test_a_question_without_evidence_is_our_own_fault() -> None:
    with pytest.raises(HarnessError):
        RecipesClient().reply([], [])


def test_recorded_answers_are_given_again_and_run_out(tmp_path: Path) -> None:
    questions = list(QUESTIONS.values())
    first, kept = ask("recipes", questions, Memory("adopt: x"))
    record = tmp_path / "exchanges.jsonl"
    record.write_text("\n".join(kept) + "\n")
    again, _ = ask(f"replay:{record}", questions, Memory("adopt: x"))
    for one, other in zip(first, again, strict=True):
        same = {"usage": one.usage, "exchanges": one.exchanges}
        assert one == other.model_copy(update=same)
        assert one.usage.prompt_tokens == other.usage.prompt_tokens
    with pytest.raises(ModelError, match="no recorded reply is left for the skeptic"):
        ask(f"replay:{record}", [QUESTIONS["skeptic"], QUESTIONS["skeptic"]])


def test_recorded_answers_meet_new_measurements_by_role(tmp_path: Path) -> None:
    _, kept = ask("recipes", [QUESTIONS["profiler_reader"]])
    record = tmp_path / "exchanges.jsonl"
    record.write_text(kept[0])
    other = Question(
        role="profiler_reader",
        task="Read.",
        prefix="",
        evidence=kit.reader_evidence(kit.peak_profile()).model_dump_json(),
    )
    (answer,), _ = ask(f"replay:{record}", [other])
    assert answer.bottlenecks and answer.bottlenecks.bottlenecks[0].kind != "near_peak"


def test_a_runs_folder_is_replayed_in_its_order(tmp_path: Path) -> None:
    (answer,), kept = ask("recipes", [QUESTIONS["skeptic"]])
    (tmp_path / "blobs").mkdir()
    (tmp_path / "blobs" / answer.exchanges[0]).write_text(kept[0])
    steps = [{"kind": "Start", "payload": {}}, {"kind": "Answer", "payload": answer.model_dump(mode="json")}]
    (tmp_path / "journal.jsonl").write_text("".join(json.dumps(s) + "\n" for s in steps) + '{"torn')
    (again,), _ = ask(f"replay:{tmp_path}", [QUESTIONS["skeptic"]])
    assert again.review == answer.review
    (tmp_path / "blobs" / answer.exchanges[0]).write_text("not an exchange")
    with pytest.raises(BadManifest, match="not a recorded exchange"):
        ask(f"replay:{tmp_path}", [])
    with pytest.raises(UserMistake, match="neither a run's folder"):
        ask(f"replay:{tmp_path / 'nowhere'}", [])
