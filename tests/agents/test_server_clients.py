"""The team over the wire: a scripted server, the real OpenAI client, bad answers, refusals, a server that is down."""

from __future__ import annotations

import asyncio
import json
import socket
from typing import Any

import agent_evidence as kit
import pytest
from scripted_server import Line, Server, calls, fails, says, serve

from kernelcrew.agents import clients, server_client
from kernelcrew.agents.clients import make_client
from kernelcrew.agents.nouns import Answer, Question
from kernelcrew.agents.recipes_client import answer
from kernelcrew.agents.team import REPAIRS, Team
from kernelcrew.errors import ModelError, UnknownName, UserMistake

KEY = "sk-secret-of-this-test"
pytestmark = pytest.mark.filterwarnings("ignore:Resolved model mismatch")


class Tools:
    """A view with one tool that keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []

    def specs(self) -> list[dict[str, Any]]:
        schema = {"type": "object", "properties": {"text": {"type": "string"}, "n": {"type": "integer"}}}
        return [{"name": "search_memory", "description": "Search the reasons kept", "schema": schema}]

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        self.asked.append((name, arguments))
        if arguments.get("text") == "break":
            raise ModelError("the store is gone")
        return '{"answers": ["adopt: vector accumulators hide the latency"]}'


@pytest.fixture(autouse=True)
def key_and_no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(clients.KEY_NAME, KEY)
    monkeypatch.setattr(server_client, "RETRIES", 0)


READER = Question(role="profiler_reader", task="Read it.", prefix="", evidence=kit.reader_evidence().model_dump_json())
GOOD = answer("profiler_reader", READER.evidence, 0).model_dump_json()


def ask(server: Server, question: Question = READER, tools: Tools | None = None) -> tuple[Answer, list[str], Team]:
    kept: list[str] = []

    def keep(text: str) -> str:
        kept.append(text)
        return f"hash{len(kept)}"

    async def whole() -> tuple[Answer, Team]:
        team = Team("openai:test-model", server.url, 7, keep, lambda role: tools or Tools())
        try:
            return await team.ask(question), team
        finally:
            await team.close()

    found, team = asyncio.run(whole())
    return found, kept, team


def test_a_good_answer_comes_typed_with_its_cost_and_its_record() -> None:
    with serve([says(GOOD)]) as server:
        found, kept, _ = ask(server)
    assert found.status == "ok" and found.bottlenecks is not None
    assert found.bottlenecks.model_dump_json() == GOOD
    assert (found.usage.prompt_tokens, found.usage.completion_tokens, found.usage.calls) == (100, 10, 1)
    assert found.usage.money_usd is None and found.exchanges == ["hash1"]
    assert json.loads(kept[0])["reply"] == GOOD
    sent = server.requests[0]
    schema = sent["response_format"]["json_schema"]
    assert schema["strict"] is True and schema["schema"]["additionalProperties"] is False
    assert sent["seed"] == 7 and sent["tools"][0]["function"]["name"] == "search_memory"
    assert (
        "profiler-reader" in sent["messages"][0]["content"]
        and "```evidence profiler_reader" in sent["messages"][1]["content"]
    )


def test_the_key_is_sent_and_kept_nowhere() -> None:
    with serve([fails(401, f"Incorrect API key provided: {KEY}")]) as server, pytest.raises(ModelError) as caught:
        ask(server)
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"
    assert KEY not in str(caught.value) and "***" in str(caught.value)
    with serve([says(GOOD)]) as server:
        _, kept, _ = ask(server)
    assert KEY not in "".join(kept)


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        ("I think the loop is slow.", "Invalid JSON"),
        ('{"bottlenecks": []}', "grade: Field required"),
        (GOOD.replace('"latency"', '"tired"'), "Input should be"),
        ('{"bottlenecks": [], "grade": "remarks", "text": "x"}', "class main has shapes"),
    ],
)
def test_a_bad_answer_goes_back_with_what_is_wrong_and_the_next_one_counts(bad: str, told: str) -> None:
    with serve([says(bad), says(GOOD)]) as server:
        found, kept, _ = ask(server)
    assert found.status == "ok" and found.usage.calls == 2 and found.usage.prompt_tokens == 200
    assert len(kept) == 2
    back = server.requests[1]["messages"]
    assert back[-2]["role"] == "assistant" and told in back[-1]["content"]


def test_prose_and_fences_around_the_json_do_no_harm() -> None:
    with serve([says(f"Here you are:\n```json\n{GOOD}\n```\nGood luck {{!}}")]) as server:
        found, _, _ = ask(server)
    assert found.status == "ok" and found.usage.calls == 1


def test_an_always_bad_model_ends_in_a_status_after_bounded_repairs() -> None:
    with serve([says("no")]) as server:
        found, kept, _ = ask(server)
    assert found.status == "bad_form" and found.bottlenecks is None and "Invalid JSON" in found.problem
    assert len(server.requests) == REPAIRS + 1 == len(kept) == found.usage.calls


def test_a_tool_call_runs_through_the_view_and_its_answer_goes_back() -> None:
    tools = Tools()
    with serve([calls("search_memory", {"text": "latency", "n": 2}), says(GOOD)]) as server:
        found, kept, _ = ask(server, tools=tools)
    assert found.status == "ok" and tools.asked == [("search_memory", {"text": "latency", "n": 2})]
    last = server.requests[1]["messages"][-1]
    assert last["role"] == "tool" and "vector accumulators" in last["content"]
    assert json.loads(kept[0])["reply"][0]["name"] == "search_memory"


def test_endless_tool_calls_are_bounded() -> None:
    with serve([calls("search_memory", {"text": "again", "n": 1})]) as server:
        found, _, _ = ask(server)
    assert found.status == "bad_form"
    assert len(server.requests) <= (REPAIRS + 1) * 6


def test_unknown_tools_and_refusals_are_told_to_the_model() -> None:
    with serve([calls("rm", {}), says(GOOD)]) as server:
        found, _, _ = ask(server)
    assert found.status == "ok" and "not found" in server.requests[1]["messages"][-1]["content"]


def test_a_tool_that_stops_the_command_stops_it() -> None:
    with (
        serve([calls("search_memory", {"text": "break"}), says(GOOD)]) as server,
        pytest.raises(ModelError, match="store is gone"),
    ):
        ask(server)


SCHEMA_REFUSED = fails(
    400, "Invalid parameter: 'response_format' of type 'json_schema' is not supported with this model"
)
TOOLS_REFUSED = fails(400, "registry/test-model does not support tools")


def test_a_server_without_schemas_gets_the_schema_in_the_prompt() -> None:
    with serve([SCHEMA_REFUSED, says(GOOD)]) as server:
        found, kept, team = ask(server)
    assert found.status == "ok" and not team.takes_schema and team.takes_tools
    assert "response_format" not in server.requests[1]
    assert '"share_of_peak"' in server.requests[1]["messages"][0]["content"]
    assert '"share_of_peak"' not in server.requests[0]["messages"][0]["content"]
    assert json.loads(kept[0])["error"] and found.usage.calls == 2


def test_a_server_without_tools_is_asked_without_them() -> None:
    with serve([TOOLS_REFUSED, says(GOOD)]) as server:
        found, _, team = ask(server)
    assert found.status == "ok" and team.takes_schema and not team.takes_tools
    assert "tools" not in server.requests[1]
    assert "There are no tools" in server.requests[1]["messages"][0]["content"]


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (fails(500, "CUDA out of memory"), "out of memory"),
        (fails(404, "model 'test-model' not found"), "--base-url"),
        (lambda request: (200, "<html>hello</html>"), "chat completion"),
        (lambda request: (200, {"hello": "world"}), "chat completion"),
        (lambda request: (200, {"choices": []}), "chat completion"),
    ],
)
def test_a_server_that_fails_is_a_model_error_with_a_fix(line: Line, told: str) -> None:
    with serve([line]) as server, pytest.raises(ModelError) as caught:
        ask(server)
    assert told in str(caught.value) and caught.value.fix


def test_a_server_that_is_down_is_a_model_error_with_a_fix() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}/v1"
    with pytest.raises(ModelError) as caught:
        ask(Server(url=url))
    assert url in str(caught.value) and "start the server" in caught.value.fix


def test_known_forms_are_listed_for_an_unknown_one() -> None:
    for name in ("gpt-4o", "openai:", "anthropic:x", "replay:", ""):
        with pytest.raises(UnknownName) as caught:
            make_client(name, None, 0)
        assert caught.value.known == sorted(clients.FORMS)


def test_a_missing_key_is_the_users_to_give_unless_the_server_is_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(clients.KEY_NAME)
    with pytest.raises(UserMistake, match=clients.KEY_NAME):
        make_client("openai:gpt-4o-mini", None, 0)
    with serve([says(GOOD)]) as server:
        found, _, _ = ask(server)
    assert found.status == "ok" and server.headers[0]["authorization"] == f"Bearer {clients.NO_KEY}"
