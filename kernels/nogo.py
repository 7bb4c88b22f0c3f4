"""The no-go list: what is not tried here, matched on a change's own features and never on a hash alone.

An entry has a scope (operator, shape class, platform, backend, toolchain) and features that must all be there. Pure:
who keeps the entries, and what becomes of a match, is decided in `kernelcrew.runs.nogo`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import date
from fnmatch import fnmatchcase
from functools import cache
from typing import Literal, NamedTuple

from pydantic import Field, field_validator

from kernelcrew.kernels.cparse import parse_c
from kernelcrew.kernels.expr import parse
from kernelcrew.kernels.nouns import CLASSES, Candidate, Change, KernelSource, Operator, Proposal, ShapeClass
from kernelcrew.record import Record

KINDS = ("recipe", "target", "knob", "flag", "code", "hash")
FORMS = "recipe:NAME, target:NAME, knob:NAME, knob:NAME=8,16, knob:NAME=8..32, flag:-fNAME, code:WORDS, hash:HEX"
ANY = "*"
_TOKEN = re.compile(r"\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|[A-Za-z_]\w*|\d[\w.]*|\S")
_COMMENTS = {
    "c": re.compile(r"/\*.*?(?:\*/|\Z)|//[^\n]*", re.DOTALL),
    "cuda": re.compile(r"/\*.*?(?:\*/|\Z)|//[^\n]*", re.DOTALL),
    "triton": re.compile(r"#[^\n]*"),
}
_SPLICE = re.compile(r"\\[ \t]*\r?\n")
_MARK = re.compile(r"\b([a-z][a-z0-9_]+):")


class Feature(NamedTuple):
    """One thing that a change has or has not."""

    kind: str
    name: str
    values: frozenset[int] | None = None
    """Knob values listed; None: any."""
    low: int | None = None
    """Or a range, both ends in it."""
    high: int | None = None

    def takes(self, value: int) -> bool:
        """Whether a knob's value is meant."""
        if self.low is not None and self.high is not None:
            return self.low <= value <= self.high
        return self.values is None or value in self.values


class NoGo(Record):
    """One entry of the list."""

    id: str
    """Unique: a short slug."""
    operator: str = ANY
    """Name pattern; several stand apart by `|`."""
    shape_class: str = ANY
    """Classes that a matching variant serves: main, short, long, tail, or `*`."""
    platform: str = ANY
    """Pattern of platform ids."""
    backend: str = ANY
    """c, cuda, triton."""
    toolchain: str = ANY
    """Pattern of name and version: `gcc 12.*`."""
    features: tuple[str, ...]
    """All must match. recipe:, target:, knob:, flag:, code: (a run of tokens that the change adds) or hash:."""
    reason: str
    """What went wrong."""
    evidence: str
    """Run id, commit, URL or file that shows it."""
    author: str
    """Who entered it."""
    created: str
    """ISO date."""
    expires: str = ""
    """ISO date from which it blocks no more; empty: never."""
    retrial: bool = True
    """Whether a person may judge what it blocks all the same, which adopts nothing; false where trying does harm."""

    @field_validator("features")
    @classmethod
    def _features(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        if not given:
            raise ValueError("an entry without features would block everything")
        for text in given:
            read_feature(text)
        return given

    @field_validator("reason", "evidence", "id")
    @classmethod
    def _said(cls, given: str) -> str:
        if not given.strip():
            raise ValueError("it is empty")
        return given

    @field_validator("created", "expires")
    @classmethod
    def _date(cls, given: str) -> str:
        if given:
            date.fromisoformat(given[:10])
        return given

    def expired(self, today: date) -> bool:
        """Whether it blocks no more."""
        return bool(self.expires) and date.fromisoformat(self.expires[:10]) <= today

    @property
    def line(self) -> str:
        """For a prompt and for the record."""
        return f"no-go {self.id}: {' and '.join(self.features)}: {self.reason} ({self.evidence})"


class Place(Record):
    """Where something is to be tried."""

    operator: str
    """Its name."""
    platform: str
    """Platform id."""
    backend: str
    """Backend."""
    toolchain: str
    """Name and version: `gcc 12.2.0`."""


class Traits(Record):
    """What a change itself brings: not what the kernel that it works on has already."""

    recipes: frozenset[str] = frozenset()
    """Mechanisms, and recipes whose mark the change adds to the source."""
    targets: frozenset[str] = frozenset()
    """What it works on."""
    knobs: dict[str, frozenset[int]] = Field(default_factory=dict)
    """Knobs that it has or sets, each with its values."""
    flags: frozenset[str] = frozenset()
    """Compiler flags that it adds."""
    hashes: frozenset[str] = frozenset()
    """Of the code, or of the edit."""
    code: tuple[str, ...] = ()
    """Its sources as tokens; none while no code is written."""
    before: tuple[str, ...] = ()
    """The same of the kernel that it works on."""
    classes: frozenset[ShapeClass] = frozenset(CLASSES)
    """Classes that the changed code serves."""


class Barred(Record):
    """A change or candidate that an entry forbids."""

    change: str
    """The change's id; empty for a whole candidate."""
    entry: str
    """The entry's id."""
    reason: str
    """Its reason."""
    evidence: str
    """Its evidence."""
    what: Literal["change", "values", "candidate"] = "change"
    """Whether the change is out, or some values of its knobs."""

    @property
    def line(self) -> str:
        """With the reference."""
        some = "some values of " if self.what == "values" else ""
        return f"{some}{self.change or 'the candidate'}: no-go {self.entry}: {self.reason} ({self.evidence})"


class Sifted(Record):
    """A proposal after the list."""

    proposal: Proposal | None
    """What may be tried; None when nothing is left."""
    barred: tuple[Barred, ...] = ()
    """What was taken out."""


@cache
def read_feature(text: str) -> Feature:
    """`knob:BM=96..160` and the like. Raises ValueError, which says the forms there are."""
    kind, colon, rest = text.partition(":")
    rest = rest.strip()
    if not colon or kind not in KINDS or not rest:
        raise ValueError(f"'{text}' is no feature; the forms are {FORMS}")
    if kind != "knob":
        return Feature(kind, rest)
    name, equals, listed = rest.partition("=")
    if not equals:
        return Feature(kind, name)
    spread = re.fullmatch(r"\s*(-?\d+)\s*\.\.\s*(-?\d+)\s*", listed)
    if spread:
        return Feature(kind, name.strip(), None, int(spread[1]), int(spread[2]))
    try:
        values = frozenset(int(part) for part in listed.split(","))
    except ValueError as error:
        raise ValueError(f"'{text}': '{listed}' is no list or range of whole numbers; {FORMS}") from error
    return Feature(kind, name.strip(), values)


def in_scope(entry: NoGo, place: Place) -> bool:
    """Whether the entry speaks of this operator, platform, backend and toolchain."""
    pairs = (
        (entry.operator, place.operator), (entry.platform, place.platform),
        (entry.backend, place.backend), (entry.toolchain, place.toolchain),
    )  # fmt: skip
    return all(_within(pattern, value) for pattern, value in pairs)


def matches(entry: NoGo, traits: Traits) -> bool:
    """Whether all features are there, on a shape class that the entry speaks of. The scope's rest is `in_scope`."""
    on = any(_within(entry.shape_class, c) for c in traits.classes) or entry.shape_class == ANY
    return on and all(_has(read_feature(text), traits) for text in entry.features)


def first_match(entries: Iterable[NoGo], traits: Traits, place: Place) -> NoGo | None:
    """The first entry that forbids it here."""
    return next((e for e in entries if in_scope(e, place) and matches(e, traits)), None)


def traits_of_change(change: Change, classes: Iterable[ShapeClass]) -> Traits:
    """What is known of a change before its code is written; its first knob values alone."""
    return Traits(
        recipes=frozenset((change.mechanism,)),
        targets=frozenset((change.target,)),
        knobs={k.name: frozenset((k.value,)) for k in change.knobs},
        hashes=frozenset((change.diff,) if change.diff else ()),
        classes=frozenset(classes),
    )


def traits_of_candidate(
    candidate: Candidate, before: Candidate, operator: Operator, changes: Sequence[Change] = ()
) -> Traits:
    """What a candidate brings over the kernel it works on, and what its changes say of themselves."""
    had = {tuple(sorted(_knobs(v.source, v.plan.defines).items())) for v in before.variants}
    old = [_knobs(v.source, v.plan.defines) for v in before.variants]
    sources = [v.source for v in before.variants]
    named = {k.name for c in changes for k in c.knobs}
    knobs: dict[str, set[int]] = {}
    flags: set[str] = set()
    marks: set[str] = set()
    kept_flags = {flag for v in before.variants for flag in v.plan.flags}
    for variant in candidate.variants:
        values = _knobs(variant.source, variant.plan.defines)
        for name, value in values.items():
            if name in named or (tuple(sorted(values.items())) not in had and all(o.get(name) != value for o in old)):
                knobs.setdefault(name, set()).add(value)
        flags |= set(variant.plan.flags) - kept_flags
        marks |= _marks(variant.source) - {m for s in sources for m in _marks(s)}
    return Traits(
        recipes=frozenset({c.mechanism for c in changes} | marks),
        targets=frozenset(c.target for c in changes),
        knobs={name: frozenset(found) for name, found in knobs.items()},
        flags=frozenset(flags),
        hashes=frozenset({candidate.identity, *(c.diff for c in changes if c.diff)}),
        code=tuple(_tokens(v.source) for v in candidate.variants),
        before=tuple(_tokens(s) for s in sources),
        classes=served(candidate, before, operator),
    )


def served(candidate: Candidate, before: Candidate, operator: Operator) -> frozenset[ShapeClass]:
    """Classes with a timed shape whose variant is not one of the kernel that was changed."""
    same = {(v.source.text, v.plan.content_hash()) for v in before.variants}
    found: set[ShapeClass] = set()
    for shape in operator.timed():
        variant = next((v for v in candidate.variants if v.when is None or parse(v.when).value(shape.axes)), None)
        if variant is not None and (variant.source.text, variant.plan.content_hash()) not in same:
            found.add(shape.shape_class)
    return frozenset(found)


def sift(proposal: Proposal, entries: Sequence[NoGo], place: Place, classes: Sequence[ShapeClass]) -> Sifted:
    """A proposal without what the list forbids: changes with what needs them, and single values of a knob's window."""
    here = [e for e in entries if in_scope(e, place)]
    barred: dict[str, Barred] = {}
    narrowed: list[Barred] = []
    kept: list[Change] = []
    for change in proposal.changes:
        needed = next((name for name in change.requires if name in barred), None)
        if needed is not None:
            barred[change.id] = barred[needed].model_copy(
                update={"change": change.id, "reason": f"it needs {needed}: {barred[needed].reason}"}
            )
            continue
        left = change
        for entry in here:
            smaller = _narrowed(left, entry, classes)
            if smaller is None:
                barred[change.id] = _barred(change.id, entry)
                break
            if smaller != left:
                narrowed.append(_barred(change.id, entry).model_copy(update={"what": "values"}))
                left = smaller
        else:
            kept.append(left)
    both = (*barred.values(), *(n for n in narrowed if n.change not in barred))
    if not kept:
        return Sifted(proposal=None, barred=both)
    return Sifted(proposal=proposal.model_copy(update={"changes": tuple(kept)}), barred=both)


def _barred(change: str, entry: NoGo) -> Barred:
    return Barred(change=change, entry=entry.id, reason=entry.reason, evidence=entry.evidence)


def _narrowed(change: Change, entry: NoGo, classes: Sequence[ShapeClass]) -> Change | None:
    """The change without the values that an entry forbids; None when nothing of it is left.

    Only where one knob decides: of two knobs that are bad together, neither value is bad alone, and the gate before
    the build looks at each configuration.
    """
    features = [read_feature(text) for text in entry.features]
    knobs = [f for f in features if f.kind == "knob" and any(k.name == f.name for k in change.knobs)]
    if len(knobs) != 1:
        return None if matches(entry, traits_of_change(change, classes)) else change
    owner = next(k for k in change.knobs if k.name == knobs[0].name)
    bad = frozenset(v for v in (owner.value, *owner.window) if knobs[0].takes(v))
    others = traits_of_change(change, classes)
    if not bad or not matches(entry, others.model_copy(update={"knobs": {**others.knobs, owner.name: bad}})):
        return change
    window = tuple(v for v in owner.window if v not in bad)
    good = window if owner.value in bad else (owner.value,)
    if not good:
        return None
    smaller = owner.model_copy(update={"window": window or good, "value": good[0]})
    return change.model_copy(update={"knobs": tuple(smaller if k is owner else k for k in change.knobs)})


def _has(feature: Feature, traits: Traits) -> bool:
    if feature.kind == "recipe":
        return any(fnmatchcase(name, feature.name) for name in traits.recipes)
    if feature.kind == "target":
        return any(fnmatchcase(name, feature.name) for name in traits.targets)
    if feature.kind == "flag":
        return any(fnmatchcase(flag, feature.name) for flag in traits.flags)
    if feature.kind == "hash":
        return any(one.startswith(feature.name) for one in traits.hashes) and len(feature.name) >= 8
    if feature.kind == "knob":
        return any(feature.takes(value) for value in traits.knobs.get(feature.name, ()))
    wanted = _joined(feature.name)
    most = max((_count(text, wanted) for text in traits.before), default=0)
    return any(_count(text, wanted) > most for text in traits.code)


def _within(pattern: str, value: str) -> bool:
    return any(fnmatchcase(value.lower(), one.strip().lower()) for one in pattern.split("|"))


def _tokens(source: KernelSource) -> str:
    """The source as tokens with one blank around each, comments left out: a reason may name what the code must not."""
    return _joined(_COMMENTS[source.language].sub(" ", _SPLICE.sub("", source.text)))


def _joined(text: str) -> str:
    return " " + " ".join(word.replace(" ", "\x01") for word in _TOKEN.findall(text)) + " "


def _count(text: str, wanted: str) -> int:
    """Occurrences, neighbours that share a blank included."""
    count, at = 0, text.find(wanted)
    while at >= 0:
        count, at = count + 1, text.find(wanted, at + 1)
    return count


def _knobs(source: KernelSource, defines: dict[str, int]) -> dict[str, int]:
    own = {k.name: k.value for k in parse_c(source.text).knobs} if source.language != "triton" else {}
    return {**own, **defines}


def _marks(source: KernelSource) -> set[str]:
    """Names that stand before a colon in comments: each recipe leaves its own."""
    found = _COMMENTS[source.language].findall(source.text)
    return {name for comment in found for name in _MARK.findall(comment)}
