"""What the journals say of each team's conduct, and a person's overrides in `.kernelcrew/permissions.toml`."""

from __future__ import annotations

import json
import os
import pwd
import tomllib
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kernelcrew.errors import BadManifest, StoreError, UserMistake
from kernelcrew.kernels.load import shipped
from kernelcrew.runs.nouns import Step
from kernelcrew.runs.permissions import (
    Deed,
    Held,
    Hostile,
    Override,
    Rules,
    Violation,
    Where,
    held,
    level_named,
    shipped_rules,
    team_of,
)
from kernelcrew.runs.toml_text import toml_text
from kernelcrew.settings import Settings
from kernelcrew.wording import explained, field_name

FILE = "permissions.toml"
HARD = ("policy", "build", "safety", "correctness")
"""Gates that need no timing."""
LOOKED_AT = ("Start", "Builds", "Verification", "Screens", "Timing", "RoundRecord", "RunRecord")
"""Kinds of steps that say something of conduct; the others are not read."""


class Grant:
    """What a person asks for: a grant or a revocation."""

    def __init__(self, verb: str, who: str, level: str, why: str) -> None:
        self.verb = verb
        self.who = who
        self.level = level
        self.why = why


def level_here(settings: Settings, where: Where, but: str = "") -> Held:
    """A team's level as record and overrides have it now; the run `but` is left out."""
    deeds = [d for d in all_deeds(settings) if d.run != but]
    return held(where, deeds, read_overrides(settings), shipped_rules())


def all_levels(settings: Settings, platform: str) -> list[Held]:
    """Every team, operator and platform on record or spoken of; and `recipes` on what ships, here, in any case."""
    deeds, overrides = all_deeds(settings), read_overrides(settings)
    ours = shipped()
    wanted = {(d.team, d.operator, d.platform): d.shipped for d in deeds}
    for said in overrides:
        named = [said.operator] if said.operator else sorted(ours)
        for name in named:
            wanted.setdefault((said.who, name, said.platform or platform), name in ours)
    for name in ours:
        wanted.setdefault(("recipes", name, platform), True)
    return [
        held(Where(team=t, operator=o, platform=p, shipped=theirs), deeds, overrides, shipped_rules())
        for (t, o, p), theirs in sorted(wanted.items())
    ]


def all_deeds(settings: Settings) -> list[Deed]:
    """One a run that began, in the order of time."""
    found = [deed_of(read_conduct(path)) for path in (settings.home / "runs").glob("*/journal.jsonl")]
    return sorted((d for d in found if d is not None), key=lambda d: d.at)


def read_conduct(path: Path) -> list[Step]:
    """The steps of a journal that say something of conduct. A line that cannot be read ends it: it may be torn."""
    steps: list[Step] = []
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        raise StoreError(f"{path}: cannot be read ({error.strerror})", fix="mend its permissions") from error
    for line in lines:
        if not any(f'"kind":"{kind}"' in line[:600] for kind in LOOKED_AT):
            continue
        try:
            steps.append(Step.model_validate(json.loads(line)))
        except (ValueError, ValidationError):
            break
    return steps


def deed_of(steps: Sequence[Step], rules: Rules | None = None) -> Deed | None:
    """Pure: what one run's steps come to; None when it never began. What a person handed in is not the team's."""
    start = next((s.payload for s in steps if s.step == "start"), None)
    if start is None:
        return None
    rounds = [s for s in steps if s.kind == "RoundRecord"]
    given = tuple(f"{s.step}." for s in rounds if s.payload.get("given_by"))
    theirs = [s for s in steps if s.step.startswith("r") and "." in s.step and not s.step.startswith(given or ("\0",))]
    end = next((s for s in steps if s.step == "end" and s.kind == "RunRecord"), None)
    last, ours = {s.step: s for s in rounds}, shipped()
    return Deed(
        run=start["run"],
        team=team_of(start["model"]),
        operator=start["operator"],
        platform=start["platform"],
        shipped=start["operator_path"] in ours or Path(start["operator_path"]) in ours.values(),
        at=start["started"],
        finished=end is not None and end.payload.get("status") == "finished",
        passed=sum(_passed(one) for s in last.values() if not s.payload.get("given_by") for one in s.payload["judged"]),
        violations=violations(theirs, rules or shipped_rules()),
    )


def violations(steps: Sequence[Step], rules: Rules) -> tuple[Violation, ...]:
    """Pure: what the team's own builds, verifications and timings show, one a kind and step."""
    found: list[Violation] = []
    for hostile in rules.hostile:
        seen = {(step.step, what): None for step in steps for what in _shown(step, hostile)}
        if len(seen) >= hostile.at_least:
            found += [Violation(kind=hostile.kind, step=name, what=what[:200]) for name, what in seen]
    return tuple(found)


def read_overrides(settings: Settings) -> list[Override]:
    """A person's grants and revocations, in the order of the file. Raises BadManifest."""
    path = settings.home / FILE
    if not path.is_file():
        return []
    try:
        listed = tomllib.loads(path.read_text(encoding="utf-8")).get("override", [])
        found = [Override.model_validate(one) for one in listed]
        for one in found:
            level_named(one.level)
    except UserMistake as error:
        raise BadManifest(str(path), error.what, fix=error.fix or "name one of them") from error
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError, ValidationError, TypeError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else None
        what = str(error)
        if first is not None:
            what = f"field '{field_name(list(first['loc']))}': {explained(dict(first), Override)[0]}"
        raise BadManifest(str(path), what, fix="mend the entry, or remove it and grant or revoke again") from error
    return found


def override(settings: Settings, asked: Grant, operator: str = "", platform: str = "") -> Override:
    """Record a grant or revocation with author and date. Raises UserMistake, UnknownName, StoreError."""
    level = level_named(asked.level)
    if not asked.why.strip():
        raise UserMistake("--why is empty", fix="say in a sentence what the record does not show")
    if not asked.who.strip():
        raise UserMistake("WHO is empty", fix="name a team as `kernelcrew permissions` lists it, such as recipes")
    said = Override.model_validate({
        "verb": asked.verb, "who": team_of(asked.who.strip()), "level": level.name.lower(), "why": asked.why.strip(),
        "operator": operator, "platform": platform, "author": author(),
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
    })  # fmt: skip
    path = settings.home / FILE
    entries = [*read_overrides(settings), said]
    text = "# A person's word on what a team may do; `kernelcrew permissions` shows what it comes to.\n"
    text += toml_text({"override": [o.model_dump(mode="json") for o in entries]})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(f".{os.getpid()}.part")
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise StoreError(f"{path}: cannot be written ({error.strerror})", fix="choose a writable --workdir") from error
    return said


def author() -> str:
    """The login name of whoever runs this process."""
    try:
        return pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return f"user {os.getuid()}"


def _passed(judged: dict[str, Any]) -> bool:
    gates = {g["name"]: g["passed"] for g in judged["gates"]}
    return all(gates.get(name, False) for name in HARD)


def _shown(step: Step, hostile: Hostile) -> Iterator[str]:
    """What one step shows of one kind of violation."""
    if step.kind == "Builds":
        for build in step.payload["builds"]:
            if build["status"] == "refused":
                yield from (f"{d['kind']}: {d['message']}" for d in build["diagnostics"] if d["kind"] in hostile.rules)
        return
    timings = step.payload["timings"] if step.kind == "Screens" else [step.payload]
    if step.kind in ("Verification", "Screens", "Timing"):
        for one in timings:
            if any(words in one.get("reason", "") for words in hostile.words):
                yield one["reason"]
