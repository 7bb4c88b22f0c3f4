"""autogen's OpenAI client in our terms. Imported only when a server is asked: the openai package takes a second."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import openai
from autogen_core import CancellationToken
from autogen_core.models import CreateResult, LLMMessage, ModelFamily, ModelInfo
from autogen_core.tools import Tool, ToolSchema
from autogen_ext.models.openai import OpenAIChatCompletionClient
from autogen_ext.models.openai._model_info import get_info
from pydantic import BaseModel

from kernelcrew.agents.clients import KEY_NAME, Unsupported
from kernelcrew.agents.schema import strict_schema
from kernelcrew.errors import ModelError

TIMEOUT_S = 180.0
"""One request; a slow local model writes a long answer in less."""
RETRIES = 2
"""By the openai package, on lost connections, 429 and 5xx."""
SERVER_MODEL = ModelInfo(
    vision=False,
    function_calling=True,
    json_output=True,
    family=ModelFamily.UNKNOWN,
    structured_output=True,
    multiple_system_messages=False,
)
"""What is supposed of a model that autogen does not know; the first refusal corrects it (`Unsupported`)."""

warnings.filterwarnings("ignore", message="Resolved model mismatch", category=UserWarning)
warnings.filterwarnings("ignore", message="Finish reason mismatch", category=UserWarning)


class ServerClient(OpenAIChatCompletionClient):
    """autogen's OpenAI client, with schemas sent as plain JSON and failures told in our words.

    The openai package's own parsing of typed answers refuses tools that are not strict, and throws away what a badly
    formed answer said and cost; sent as `response_format`, the same schema comes back as text.
    """

    def __init__(self, name: str, base_url: str, key: str, seed: int) -> None:
        super().__init__(
            model=name,
            base_url=base_url,
            api_key=key,
            seed=seed,
            timeout=TIMEOUT_S,
            max_retries=RETRIES,
            model_info=_info(name),
            include_name_in_message=False,
        )
        self.name = name
        self.url = base_url
        self._key = key

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
        """One request. Raises ModelError; Unsupported when the server takes no schema or no tools."""
        extra = dict(extra_create_args)
        if isinstance(json_output, type):
            extra["response_format"] = _response_format(json_output)
            json_output = None
        try:
            return await super().create(
                messages,
                tools=tools,
                tool_choice=tool_choice,
                json_output=json_output,
                extra_create_args=extra,
                cancellation_token=cancellation_token,
            )
        except openai.OpenAIError as error:
            raise self._in_our_words(error, schema="response_format" in extra, tools=bool(tools)) from error
        except (AttributeError, TypeError, IndexError, ValueError) as error:
            raise ModelError(
                f"{self.url} did not answer with a chat completion ({type(error).__name__})",
                fix="give --base-url the address that the server documents, usually ending in /v1",
            ) from error

    def _in_our_words(self, error: openai.OpenAIError, *, schema: bool, tools: bool) -> ModelError:
        said = str(error).replace(self._key, "***")[:500]
        if isinstance(error, openai.APIConnectionError):
            waited = f" within {TIMEOUT_S:.0f} s" if isinstance(error, openai.APITimeoutError) else ""
            return ModelError(
                f"no answer from the model server at {self.url}{waited}", fix="start the server, or mend --base-url"
            )
        status = error.status_code if isinstance(error, openai.APIStatusError) else 0
        if status in (400, 422, 500, 501):
            if schema and ("response_format" in said or "json_schema" in said or "schema" in said.lower()):
                return Unsupported(f"{self.url} takes no JSON schema: {said}", "schema")
            if tools and "tool" in said.lower():
                return Unsupported(f"{self.url} takes no tools: {said}", "tools")
        fixes = {
            401: f"set {KEY_NAME} to a key that this server accepts",
            403: f"set {KEY_NAME} to a key that may use this model",
            404: "name a model that the server has, and end --base-url as the server documents, usually in /v1",
            429: "wait, or raise the limit at the provider",
        }
        return ModelError(
            f"the model server at {self.url} refused: {said}", fix=fixes.get(status, "look at the server's log")
        )


def _info(name: str) -> ModelInfo:
    try:
        return get_info(name)
    except (KeyError, ValueError):
        return SERVER_MODEL


def _response_format(kind: type[BaseModel]) -> dict[str, Any]:
    return {
        "type": "json_schema",
        "json_schema": {"name": kind.__name__, "strict": True, "schema": strict_schema(kind)},
    }
