"""What clients without a server have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Literal

from autogen_core import CancellationToken
from autogen_core.models import ChatCompletionClient, CreateResult, LLMMessage, ModelFamily, ModelInfo, RequestUsage
from autogen_core.tools import Tool, ToolSchema
from pydantic import BaseModel

from kernelcrew.memory.tokens import count

WINDOW_TOKENS = 1_000_000
"""There is no context window; what asks for the rest of one gets a large figure."""


class OfflineClient(ChatCompletionClient):
    """A client whose replies are computed here: a subclass says what `reply` is."""

    family = ModelFamily.UNKNOWN

    def __init__(self) -> None:
        self._usage = RequestUsage(prompt_tokens=0, completion_tokens=0)

    @abstractmethod
    def reply(self, messages: Sequence[LLMMessage], tools: Sequence[Tool | ToolSchema]) -> CreateResult:
        """The reply to these messages."""

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
        """The computed reply, with its tokens counted."""
        result = self.reply(messages, [] if tool_choice == "none" else tools)
        self._usage = RequestUsage(
            prompt_tokens=self._usage.prompt_tokens + result.usage.prompt_tokens,
            completion_tokens=self._usage.completion_tokens + result.usage.completion_tokens,
        )
        return result

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
        """The whole reply as one chunk."""
        yield await self.create(messages, tools=tools, tool_choice=tool_choice, json_output=json_output)

    async def close(self) -> None:
        """Nothing is open."""

    def actual_usage(self) -> RequestUsage:
        return self._usage

    def total_usage(self) -> RequestUsage:
        return self._usage

    def count_tokens(self, messages: Sequence[LLMMessage], *, tools: Sequence[Tool | ToolSchema] = []) -> int:
        return sum(count(text_of(message)) for message in messages)

    def remaining_tokens(self, messages: Sequence[LLMMessage], *, tools: Sequence[Tool | ToolSchema] = []) -> int:
        return WINDOW_TOKENS - self.count_tokens(messages, tools=tools)

    @property
    def capabilities(self) -> Any:
        return self.model_info

    @property
    def model_info(self) -> ModelInfo:
        return ModelInfo(
            vision=False,
            function_calling=True,
            json_output=True,
            family=self.family,
            structured_output=True,
            multiple_system_messages=True,
        )


def text_of(message: LLMMessage) -> str:
    """What a message says, tool calls and results included."""
    if isinstance(message.content, str):
        return message.content
    return "\n".join(
        item if isinstance(item, str) else str(getattr(item, "content", None) or item) for item in message.content
    )
