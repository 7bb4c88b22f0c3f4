"""The lock of a run: everything that must be equal for an odd result to be reproduced."""

from __future__ import annotations

import hashlib
from importlib import metadata, resources

from kernelcrew.agents.prompts import prompt_hashes
from kernelcrew.kernels.load import start_candidate
from kernelcrew.kernels.nouns import Operator
from kernelcrew.platforms.nouns import Machine
from kernelcrew.runs.nouns import Lock
from kernelcrew.tools.sandbox import Sandbox
from kernelcrew.version import VERSION

PACKAGES = (
    "autogen-agentchat",
    "autogen-core",
    "autogen-ext",
    "chromadb",
    "numpy",
    "onnxruntime",
    "openai",
    "pydantic",
    "tiktoken",
    "tokenizers",
)
"""Packages whose version can change an answer."""


def make_lock(operator: Operator, backend: str, machine: Machine, model: str, seed: int, sandbox: Sandbox) -> Lock:
    """The lock as things stand now."""
    return Lock(
        kernelcrew=VERSION,
        operator=operator.name,
        operator_hash=operator.contract_hash(),
        baseline=start_candidate(operator, backend).identity,
        machine=machine,
        model=model,
        prompts=prompt_hashes(),
        packages={name: _version(name) for name in PACKAGES},
        seed=seed,
        sandbox=f"{sandbox.kind}: {sandbox.detail}",
        code=code_hashes(),
    )


def code_hashes() -> dict[str, str]:
    """SHA-256 (16 digits) of each module that verifies, measures or decides."""
    found: dict[str, str] = {}
    for package in ("kernelcrew.tools", "kernelcrew.kernels", "kernelcrew.runs"):
        for item in sorted(resources.files(package).iterdir(), key=lambda i: i.name):
            if item.name.endswith(".py") and not item.name.startswith("cli"):
                found[f"{package}.{item.name[:-3]}"] = hashlib.sha256(item.read_bytes()).hexdigest()[:16]
    return found


def differences(old: Lock, new: Lock) -> list[str]:
    """What is not as it was, one line each."""
    before, after = old.model_dump(mode="json"), new.model_dump(mode="json")
    return [line for name in before for line in _differ(name, before[name], after[name])]


def _differ(name: str, a: object, b: object) -> list[str]:
    if isinstance(a, dict) and isinstance(b, dict):
        keys = sorted({*a, *b})
        return [line for key in keys for line in _differ(f"{name}.{key}", a.get(key), b.get(key))]
    return [] if a == b else [f"{name}: {a} -> {b}"]


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "not installed"
