"""How a question is put into one message, and how it is read back out of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import cast, get_args

from autogen_core.models import LLMMessage, UserMessage

from kernelcrew.agents.nouns import Question, Role
from kernelcrew.agents.prompts import render
from kernelcrew.errors import HarnessError

FENCE = re.compile(r"^```evidence ([a-z_]+)\n(.*?)\n```$", re.MULTILINE | re.DOTALL)
NOTHING = "Nothing yet."
"""What an empty memory says."""


def compose(question: Question) -> str:
    """The question as one message: task, what memory says, evidence in a fence that names the role."""
    return render(
        "question",
        {
            "round": str(question.round),
            "task": question.task,
            "prefix": question.prefix.strip() or NOTHING,
            "role": question.role,
            "evidence": question.evidence,
        },
    )


def evidence_in(messages: Sequence[LLMMessage]) -> tuple[Role, str]:
    """Role and evidence of the newest question among the messages. Raises HarnessError when there is none."""
    for message in reversed(messages):
        if isinstance(message, UserMessage) and isinstance(message.content, str):
            found = list(FENCE.finditer(message.content))
            if found and found[-1].group(1) in get_args(Role):
                return cast(Role, found[-1].group(1)), found[-1].group(2)
    raise HarnessError(
        "a question went out without its evidence", fix="compose it with kernelcrew.agents.question.compose"
    )


def role_of(messages: Sequence[LLMMessage]) -> Role:
    """Who is asked."""
    return evidence_in(messages)[0]
