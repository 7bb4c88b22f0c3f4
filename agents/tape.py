"""The tape between an agent and its model client: counts tokens, records each exchange, finds the JSON in an answer.

An agent that raises on bad form loses what the answer cost and what it said; the tape has both.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, Literal

from autogen_core import CancellationToken, FunctionCall
from autogen_core.models import (
    ChatCompletionClient,
    CreateResult,
    FunctionExecutionResultMessage,
    LLMMessage,
    ModelInfo,
    RequestUsage,
)
from autogen_core.tools import Tool, ToolSchema
from pydantic import BaseModel

from kernelcrew.agents.nouns import Question
from kernelcrew.agents.schema import json_object_in
from kernelcrew.errors import ModelError
from kernelcrew.record import Record, hash_of


class Exchange(Record):
    """One request and its reply, as recorded and replayed."""

    role: str
    """Who was asked."""
    round: int
    """The round."""
    model: str
    """The model option."""
    request: str
    """Hash of the messages sent."""
    messages: list[dict[str, Any]]
    """What was sent."""
    tools: list[str]
    """Names of the tools offered."""
    form: str
    """Name of the schema asked for; empty when it stood in the prompt."""
    reply: str | list[dict[str, str]] | None
    """Text, or tool calls (`id`, `name`, `arguments`); None when an error came."""
    finish: str = ""
    """Why the reply ended."""
    prompt_tokens: int = 0
    """Tokens sent."""
    completion_tokens: int = 0
    """Tokens received."""
    error: str = ""
    """The error, if one came."""


class Tape(ChatCompletionClient):
    """Stands before the client of one question."""

    def __init__(
        self,
        inner: ChatCompletionClient,
        question: Question,
        model: str,
        record: Callable[[str], str],
        *,
        structured: bool,
    ) -> None:
        self.inner = inner
        self.question = question
        self.model = model
        self.record = record
        self.structured = structured
        self.hashes: list[str] = []
        self.calls = 0
        self.usage = RequestUsage(prompt_tokens=0, completion_tokens=0)

    async def create(
        self,
        messages: Sequence[LLMMessage],
        *,
        tools: Sequence[Tool | ToolSchema] = [],
        tool_choice: Tool | Literal["auto", "required", "none"] = "auto",
        json_output: bool | type[BaseModel] | None = None,
        extra_create_args: Mapping[str, Any] = {},
        cancellation_token: CancellationToken | None = None,
    ) -> CreateResult:
        """One request. Raises ModelError when the server is down or refuses."""
        form = json_output if self.structured else None
        self.calls += 1
        try:
            result = await self.inner.create(
                messages,
                tools=tools,
                tool_choice=tool_choice,
                json_output=form,
                extra_create_args=extra_create_args,
                cancellation_token=cancellation_token,
            )
        except ModelError as error:
            self._keep(messages, tools, form, None, error.what)
            raise
        self._keep(messages, tools, form, result, "")
        self.usage = RequestUsage(
            prompt_tokens=self.usage.prompt_tokens + result.usage.prompt_tokens,
            completion_tokens=self.usage.completion_tokens + result.usage.completion_tokens,
        )
        return result.model_copy(update={"content": _usable(result, tools)})

    async def create_stream(
        self,
        messages: Sequence[LLMMessage],
        *,
        tools: Sequence[Tool | ToolSchema] = [],
        tool_choice: Tool | Literal["auto", "required", "none"] = "auto",
        json_output: bool | type[BaseModel] | None = None,
        extra_create_args: Mapping[str, Any] = {},
        cancellation_token: CancellationToken | None = None,
    ) -> AsyncGenerator[str | CreateResult, None]:
        """The whole reply as one chunk: nobody watches words arrive."""
        yield await self.create(
            messages,
            tools=tools,
            tool_choice=tool_choice,
            json_output=json_output,
            extra_create_args=extra_create_args,
            cancellation_token=cancellation_token,
        )

    async def close(self) -> None:
        """The client outlives the question."""

    def actual_usage(self) -> RequestUsage:
        return self.usage

    def total_usage(self) -> RequestUsage:
        return self.usage

    def count_tokens(self, messages: Sequence[LLMMessage], *, tools: Sequence[Tool | ToolSchema] = []) -> int:
        return self.inner.count_tokens(messages, tools=tools)

    def remaining_tokens(self, messages: Sequence[LLMMessage], *, tools: Sequence[Tool | ToolSchema] = []) -> int:
        return self.inner.remaining_tokens(messages, tools=tools)

    @property
    def capabilities(self) -> Any:
        return self.inner.model_info

    @property
    def model_info(self) -> ModelInfo:
        return self.inner.model_info

    def _keep(
        self,
        messages: Sequence[LLMMessage],
        tools: Sequence[Tool | ToolSchema],
        form: object,
        result: CreateResult | None,
        error: str,
    ) -> None:
        sent = [m.model_dump(mode="json", exclude_none=True) for m in messages]
        exchange = Exchange(
            role=self.question.role,
            round=self.question.round,
            model=self.model,
            request=request_hash(messages),
            messages=sent,
            tools=[tool["name"] if isinstance(tool, dict) else tool.name for tool in tools],
            form=form.__name__ if isinstance(form, type) else "",
            reply=_plain(result),
            error=error,
            finish=result.finish_reason if result else "",
            prompt_tokens=result.usage.prompt_tokens if result else 0,
            completion_tokens=result.usage.completion_tokens if result else 0,
        )
        self.hashes.append(
            self.record(json.dumps(exchange.model_dump(mode="json"), ensure_ascii=False, sort_keys=True))
        )


def request_hash(messages: Sequence[LLMMessage]) -> str:
    """What a request is recognised by: its messages without the ids that servers give to tool calls."""
    plain: list[Any] = []
    for message in messages:
        if isinstance(message, FunctionExecutionResultMessage):
            plain.append([[r.name, r.content] for r in message.content])
        elif isinstance(message.content, list):
            plain.append([[c.name, c.arguments] if isinstance(c, FunctionCall) else str(c) for c in message.content])
        else:
            plain.append([message.type, message.content])
    return hash_of(plain)


def _plain(result: CreateResult | None) -> str | list[dict[str, str]] | None:
    if result is None:
        return None
    if isinstance(result.content, str):
        return result.content
    return [{"id": call.id, "name": call.name, "arguments": call.arguments} for call in result.content]


def _usable(result: CreateResult, tools: Sequence[Tool | ToolSchema]) -> Any:
    """Text cut down to its JSON object; calls of tools that were not offered become an empty (bad) answer."""
    if isinstance(result.content, str):
        return json_object_in(result.content)
    return result.content if tools else ""
