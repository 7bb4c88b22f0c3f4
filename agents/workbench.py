"""A role's view of the tool bus as AutoGen's workbench."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Protocol

from autogen_core import CancellationToken
from autogen_core.tools import ParametersSchema, TextResultContent, ToolResult, ToolSchema, Workbench

from kernelcrew.agents.schema import argument_schema

REFUSED = '{"refused"'
"""How the bus begins an answer to a call it did not carry out."""


class ToolView(Protocol):
    """What a workbench needs of the bus: `kernelcrew.tools.bus.RoleView` is one."""

    def specs(self) -> list[dict[str, Any]]:
        """`name`, `description` and `schema` (JSON schema of the arguments) of each tool."""

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """The tool's answer as JSON text; a refusal is an answer."""


class NoTools:
    """A view without tools."""

    def specs(self) -> list[dict[str, Any]]:
        return []

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        return f'{REFUSED}: {{"tool": "{name}", "because": "no tools here"}}}}'


class BusWorkbench(Workbench):
    """Offers a view's tools to one agent.

    AutoGen waits for ever when a workbench raises, so an exception of a tool is kept in `failure` and told to the model
    as an error; whoever asked the agent raises it afterwards.
    """

    component_type = "workbench"

    def __init__(self, view: ToolView) -> None:
        self.view = view
        self.failure: BaseException | None = None

    async def list_tools(self) -> list[ToolSchema]:
        """The tools as AutoGen names them."""
        return [_schema(spec) for spec in self.view.specs()]

    async def call_tool(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        cancellation_token: CancellationToken | None = None,
        call_id: str | None = None,
    ) -> ToolResult:
        """Call one tool. Never raises, but for a cancel."""
        task = asyncio.ensure_future(self._answer(name, dict(arguments or {})))
        await asyncio.wait({task})
        error = task.exception()
        if error is not None:
            self.failure = self.failure or error
            return _result(name, f"the tool failed: {type(error).__name__}", is_error=True)
        text = task.result()
        return _result(name, text, is_error=text.startswith(REFUSED))

    async def _answer(self, name: str, arguments: dict[str, Any]) -> str:
        return self.view.call(name, arguments)

    async def start(self) -> None:
        """Nothing to start: the bus lives as long as the run."""

    async def stop(self) -> None:
        """Nothing to stop."""

    async def reset(self) -> None:
        """Forget a failure."""
        self.failure = None

    async def save_state(self) -> Mapping[str, Any]:
        """A view has no state of its own."""
        return {}

    async def load_state(self, state: Mapping[str, Any]) -> None:
        """A view has no state of its own."""


def _schema(spec: dict[str, Any]) -> ToolSchema:
    schema = argument_schema(spec["schema"])
    parameters = ParametersSchema(
        type="object",
        properties=schema.get("properties", {}),
        required=schema.get("required", []),
        additionalProperties=False,
    )
    return ToolSchema(name=spec["name"], description=spec["description"], parameters=parameters)


def _result(name: str, text: str, *, is_error: bool) -> ToolResult:
    return ToolResult(name=name, result=[TextResultContent(content=text)], is_error=is_error)
