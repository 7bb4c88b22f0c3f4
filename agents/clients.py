"""Model clients by option: `recipes`, `openai:NAME`, `replay:FOLDER`."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from autogen_core.models import ChatCompletionClient

from kernelcrew.agents.recipes_client import RecipesClient
from kernelcrew.agents.replay import ReplayClient, read_exchanges
from kernelcrew.errors import ModelError, UnknownName, UserMistake
from kernelcrew.settings import api_key

FORMS = ("recipes", "openai:NAME", "replay:FOLDER")
"""What `--model` takes."""
OPENAI_URL = "https://api.openai.com/v1"
KEY_NAME = "OPENAI_API_KEY"
NO_KEY = "no-key-needed"
"""What a server of one's own is sent when there is no key."""


class Unsupported(ModelError):
    """The server refuses a part of the request that can be done without: `what_part` is `schema` or `tools`."""

    def __init__(self, what: str, part: Literal["schema", "tools"]) -> None:
        super().__init__(what, fix="use a server and model that take JSON schemas and tools")
        self.part = part


def make_client(model: str, base_url: str | None, seed: int) -> ChatCompletionClient:
    """The client that an option names. Raises UnknownName, or UserMistake when a key is missing.

    `base_url`: any OpenAI-compatible server. `seed` governs the recipes' choices and is passed on to servers.
    """
    kind, _, name = model.partition(":")
    if model == "recipes":
        return RecipesClient(seed)
    if kind == "openai" and name:
        key = api_key(KEY_NAME)
        if not key and not base_url:
            raise UserMistake(
                f"--model {model} needs a key",
                fix=f"export {KEY_NAME}=..., or give --base-url URL for a server of your own",
            )
        from kernelcrew.agents.server_client import ServerClient

        return ServerClient(name, base_url or OPENAI_URL, key or NO_KEY, seed)
    if kind == "replay" and name:
        return ReplayClient(read_exchanges(Path(name)), name)
    fix = "for instance --model openai:NAME with the --base-url of a server of yours, or leave --model out"
    raise UnknownName("model", model, FORMS, fix=fix)
