"""Where the no-go list is kept: what ships with kernelcrew, and the user's own in `.kernelcrew/nogo.toml`.

Only people write it, by the command line; no tool of the team's reaches it. Several processes may write at once.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime
from importlib import resources
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kernelcrew.errors import BadManifest, NotPermitted, StoreError, UnknownName, UserMistake
from kernelcrew.files import read_text
from kernelcrew.kernels.nogo import ANY, FORMS, NoGo, Place, read_feature
from kernelcrew.kernels.nouns import CLASSES, Operator
from kernelcrew.platforms.nouns import Machine
from kernelcrew.record import Record
from kernelcrew.runs.bars import Bars
from kernelcrew.runs.deeds import author
from kernelcrew.runs.locks import held_a_moment
from kernelcrew.runs.toml_text import toml_text
from kernelcrew.settings import Settings
from kernelcrew.wording import told, toml_of

FILE = "nogo.toml"
HEAD = "# What is not to be tried here. `kernelcrew nogo list` shows it with what ships.\n"
_SLUG = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_COMMIT = re.compile(r"[0-9a-f]{7,40}")


class Lifted(Record):
    """An entry that was removed, and who answers for it."""

    id: str
    """The entry's id; for one that ships, it blocks no more in this working directory."""
    why: str
    """The reason."""
    author: str
    """Who."""
    at: str
    """ISO time."""


class OwnList(Record):
    """All of the user's file."""

    entry: tuple[NoGo, ...] = ()
    """In the order of entry."""
    removed: tuple[Lifted, ...] = ()
    """What was taken out."""


class Listed(Record):
    """One entry as it stands here."""

    entry: NoGo
    """The entry."""
    ships: bool
    """Whether it comes with kernelcrew."""
    state: str
    """active, expired or removed."""


def shipped_entries() -> tuple[NoGo, ...]:
    """What comes with kernelcrew."""
    text = resources.files("kernelcrew.kernels").joinpath(FILE).read_text(encoding="utf-8")
    return read_own(text, f"kernels/{FILE}").entry


def read_own(text: str, where: str) -> OwnList:
    """A list from its text. Raises BadManifest with entry and field."""
    tables = toml_of(text, where)
    try:
        found = OwnList.model_validate(tables)
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "value_error":
            place = ".".join(str(part) for part in first["loc"])
            fix = "mend the entry"
            raise BadManifest(f"{where}, {place}", str(first["ctx"]["error"]), fix=fix) from error
        raise told(where, error, OwnList) from error
    ids = [e.id for e in found.entry]
    if twice := next((i for i in ids if ids.count(i) > 1), ""):
        raise BadManifest(where, f"two entries are called '{twice}'", fix="give one of them another id")
    return found


def own_list(settings: Settings) -> OwnList:
    """The user's file; an empty list where there is none. Raises BadManifest."""
    path = settings.home / FILE
    if not path.exists():
        return OwnList()
    return read_own(read_text(path, str(path), fix="restore it, or remove it"), str(path))


def listed(settings: Settings, today: date | None = None) -> list[Listed]:
    """Every entry, those that block no more included."""
    own, now = own_list(settings), today or datetime.now(UTC).date()
    lifted = {one.id for one in own.removed}
    both = [*((e, True) for e in shipped_entries()), *((e, False) for e in own.entry)]
    return [Listed(entry=e, ships=ships, state=_state(e, lifted if ships else set(), now)) for e, ships in both]


def active(settings: Settings) -> tuple[NoGo, ...]:
    """The entries that block."""
    return tuple(one.entry for one in listed(settings) if one.state == "active")


def may_set_aside(settings: Settings, names: Sequence[str]) -> frozenset[str]:
    """Entries that a person may judge in spite of. Raises UnknownName, and NotPermitted where an entry forbids it."""
    known = {e.id: e for e in active(settings)}
    for name in names:
        if name not in known:
            raise UnknownName("no-go entry", name, known)
        if not known[name].retrial:
            what = f"{known[name].line}: it says that trying does harm"
            raise NotPermitted(what, fix=f"if that is no longer so: kernelcrew nogo remove {name} --why TEXT")
    return frozenset(names)


def bars_for(settings: Settings, operator: Operator, backend: str, machine: Machine) -> Bars:
    """What is forbidden in one run or judgement."""
    tool = machine.toolchain
    place = Place(
        operator=operator.name, platform=machine.platform.id, backend=backend, toolchain=f"{tool.name} {tool.version}"
    )
    return Bars(entries=active(settings), place=place, operator=operator)


def add(settings: Settings, asked: dict[str, Any]) -> NoGo:
    """Enter one, in the name of whoever runs this. Raises UserMistake, StoreError.

    `asked` holds fields of NoGo; an empty id is made from the features.
    """
    try:
        features = tuple(asked["features"])
        for text in features:
            read_feature(text)
    except ValueError as error:
        raise UserMistake(f"--feature {error}", fix=f"the forms are {FORMS}") from error
    if not features:
        raise UserMistake("no --feature is given: the entry would block everything", fix=f"the forms are {FORMS}")
    shape_class = asked.get("shape_class", ANY)
    if shape_class != ANY and any(one not in CLASSES for one in shape_class.split("|")):
        raise UnknownName("shape class", shape_class, (*CLASSES, ANY))
    evidence = proven(settings, asked["evidence"])
    name = asked.get("id") or _slug(features)
    if not _SLUG.fullmatch(name):
        raise UserMistake(f"--id {name}", fix="a slug of lower-case letters, digits, '.', '-' and '_'")
    now = datetime.now(UTC)
    fields = {**asked, "id": name, "features": features, "evidence": evidence, "author": author()}
    try:
        entry = NoGo.model_validate({**fields, "created": now.date().isoformat()})
    except ValidationError as error:
        first = error.errors()[0]
        field = str(first["loc"][0]).replace("_", "-")
        what = str(first.get("ctx", {}).get("error", first["msg"]))
        raise UserMistake(f"--{field}: {what}", fix="mend it; dates are written 2027-01-31") from error
    if entry.expired(now.date()):
        raise UserMistake(f"--expires {entry.expires} is over already", fix="give a date to come, or leave it out")
    with _writing(settings) as own:
        if any(entry.id == e.id for e in (*shipped_entries(), *own.entry)):
            raise UserMistake(f"there is an entry '{entry.id}' already", fix="give another --id, or remove that one")
        _write(settings, own.model_copy(update={"entry": (*own.entry, entry)}))
    return entry


def remove(settings: Settings, name: str, why: str) -> Lifted:
    """Take one out: an own entry leaves the file, one that ships is lifted here. Raises UnknownName, UserMistake."""
    if not why.strip():
        raise UserMistake("--why is empty", fix="say what has changed since it was entered")
    with _writing(settings) as own:
        ours = {e.id for e in own.entry}
        theirs = {e.id for e in shipped_entries()} - {one.id for one in own.removed}
        if name not in ours | theirs:
            raise UnknownName("no-go entry", name, ours | theirs)
        at = datetime.now(UTC).isoformat(timespec="seconds")
        gone = Lifted(id=name, why=why.strip(), author=author(), at=at)
        left = tuple(e for e in own.entry if e.id != name)
        _write(settings, OwnList(entry=left, removed=(*own.removed, gone)))
    return gone


def proven(settings: Settings, text: str) -> str:
    """The evidence, when it is something that can be looked up. Raises UserMistake."""
    plain = text.strip()
    run = settings.home / "runs" / plain / "journal.jsonl"
    if plain and "/" not in plain and run.is_file():
        return f"run {plain}"
    if re.match(r"https?://[^\s/]+\.?[^\s]*$", plain) or _COMMIT.fullmatch(plain):
        return plain
    if plain and ((settings.workdir / plain).is_file() or Path(plain).is_file()):
        return plain
    fix = "give the id of a run here, a commit, an address that begins with http, or a file that is there"
    raise UserMistake(f"--evidence '{plain}' is nothing that can be looked up", fix=fix)


def _state(entry: NoGo, lifted: set[str], today: date) -> str:
    if entry.id in lifted:
        return "removed"
    return "expired" if entry.expired(today) else "active"


def _slug(features: Sequence[str]) -> str:
    text = "-".join(f.partition(":")[2] for f in features).lower()
    return re.sub(r"[^a-z0-9._]+", "-", text).strip("-._")[:64] or "entry"


@contextmanager
def _writing(settings: Settings) -> Iterator[OwnList]:
    """The file as it stands, with nobody else writing it."""
    with held_a_moment(settings.home / "nogo.lock"):
        yield own_list(settings)


def _write(settings: Settings, own: OwnList) -> None:
    path = settings.home / FILE
    text = HEAD + toml_text({
        "entry": [_bare(e) for e in own.entry], "removed": [one.model_dump(mode="json") for one in own.removed],
    })  # fmt: skip
    try:
        partial = path.with_suffix(f".{os.getpid()}.part")
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise StoreError(f"{path}: cannot be written ({error.strerror})", fix="choose a writable --workdir") from error


def _bare(entry: NoGo) -> dict[str, Any]:
    """Without what says nothing."""
    plain = entry.model_dump(mode="json")
    return {k: v for k, v in plain.items() if v not in (ANY, "") and not (k == "retrial" and v)}
