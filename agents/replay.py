"""A client that gives recorded replies again: the model's part of a run without its model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from autogen_core import FunctionCall
from autogen_core.models import CreateResult, LLMMessage, RequestUsage
from autogen_core.tools import Tool, ToolSchema
from pydantic import ValidationError

from kernelcrew.agents.offline import OfflineClient
from kernelcrew.agents.question import role_of
from kernelcrew.agents.tape import Exchange, request_hash
from kernelcrew.errors import BadManifest, ModelError, UserMistake


class ReplayClient(OfflineClient):
    """Answers each request with the reply recorded for the same messages; where none is, with the role's next reply.

    The second rule is what lets recorded answers meet new measurements.
    """

    def __init__(self, exchanges: Sequence[Exchange], where: str) -> None:
        super().__init__()
        self.where = where
        self._left = [e for e in exchanges if e.reply is not None]

    def reply(self, messages: Sequence[LLMMessage], tools: Sequence[Tool | ToolSchema]) -> CreateResult:
        """The recorded reply. Raises ModelError when the record holds no more for this role."""
        role, wanted = role_of(messages), request_hash(messages)
        same = next((e for e in self._left if e.request == wanted), None)
        found = same or next((e for e in self._left if e.role == role), None)
        if found is None:
            raise ModelError(
                f"{self.where}: no recorded reply is left for the {role}",
                fix="replay with the same --rounds, or use a live model",
            )
        self._left.remove(found)
        calls = found.reply
        content = calls if isinstance(calls, str) else [FunctionCall(**call) for call in calls or []]
        return CreateResult(
            finish_reason="stop" if isinstance(content, str) else "function_calls",
            content=content,
            cached=True,
            usage=RequestUsage(prompt_tokens=found.prompt_tokens, completion_tokens=found.completion_tokens),
        )


def read_exchanges(path: Path) -> list[Exchange]:
    """Recorded exchanges, in order, of a run's folder or a file of one a line. Raises UserMistake or BadManifest."""
    if (path / "journal.jsonl").is_file():
        return _of_run(path)
    if not path.is_file():
        raise UserMistake(
            f"{path}: neither a run's folder nor a file of exchanges",
            fix="give replay:FOLDER, a folder under .kernelcrew/runs",
        )
    lines = path.read_text(encoding="utf-8").splitlines()
    return [_parsed(line, f"{path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]


def _of_run(folder: Path) -> list[Exchange]:
    found: list[Exchange] = []
    for line in (folder / "journal.jsonl").read_text(encoding="utf-8").splitlines():
        try:
            step = json.loads(line)
        except json.JSONDecodeError:
            break
        if step.get("kind") != "Answer":
            continue
        for name in step["payload"].get("exchanges", []):
            blob = folder / "blobs" / name
            if not blob.is_file():
                raise BadManifest(str(blob), "the recorded exchange is not there", fix="restore the run's blobs folder")
            found.append(_parsed(blob.read_text(encoding="utf-8"), str(blob)))
    return found


def _parsed(text: str, where: str) -> Exchange:
    try:
        return Exchange.model_validate_json(text)
    except ValidationError as error:
        raise BadManifest(
            where, f"not a recorded exchange ({error.errors()[0]['msg']})", fix="restore it from a copy"
        ) from error
