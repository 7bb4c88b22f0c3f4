"""The prompts: Markdown files with `{{name}}` placeholders, and the small renderer that fills them.

A placeholder without a value, and a value without a placeholder, are errors: a prompt never goes out with a hole in it.
"""

from __future__ import annotations

import hashlib
import re
from importlib import resources

from kernelcrew.agents.nouns import Role
from kernelcrew.errors import BadManifest, UnknownName

PLACEHOLDER = re.compile(r"\{\{\s*([a-z_]+)\s*\}\}")
ROLES: tuple[Role, ...] = ("profiler_reader", "proposer", "patch_writer", "skeptic")


def prompt_names() -> tuple[str, ...]:
    """Names of all prompt files, without `.md`."""
    found = (item.name for item in resources.files(__package__).iterdir())
    return tuple(sorted(name[:-3] for name in found if name.endswith(".md")))


def prompt_text(name: str) -> str:
    """A prompt file as it stands. Raises UnknownName."""
    if name not in prompt_names():
        raise UnknownName("prompt", name, prompt_names())
    return resources.files(__package__).joinpath(f"{name}.md").read_text(encoding="utf-8")


def prompt_hashes() -> dict[str, str]:
    """SHA-256 (16 hex digits) of each prompt file, for the lock."""
    return {name: hashlib.sha256(prompt_text(name).encode()).hexdigest()[:16] for name in prompt_names()}


def render(name: str, values: dict[str, str]) -> str:
    """The prompt with every placeholder filled. Raises BadManifest when names and values do not match one to one."""
    return fill(prompt_text(name), values, f"agents/prompts/{name}.md")


def fill(text: str, values: dict[str, str], where: str) -> str:
    """`text` with `{{name}}` replaced; values are put in as they are and never searched for placeholders themselves."""
    wanted = set(PLACEHOLDER.findall(text))
    missing, unused = sorted(wanted - set(values)), sorted(set(values) - wanted)
    if missing:
        raise BadManifest(
            where, f"no value for {', '.join(missing)}", fix=f"give a value, or take {{{{{missing[0]}}}}} out"
        )
    if unused:
        raise BadManifest(
            where, f"no placeholder for {', '.join(unused)}", fix=f"write {{{{{unused[0]}}}}} where it belongs"
        )
    return PLACEHOLDER.sub(lambda match: values[match.group(1)], text)
