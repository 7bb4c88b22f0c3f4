"""What the no-go list forbids in one run: the entries that hold here, and the kernel that changes are held against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kernelcrew.kernels.nogo import NoGo, Place, Sifted, in_scope, matches, sift, traits_of_candidate
from kernelcrew.kernels.nouns import Candidate, Change, Operator, Proposal


@dataclass
class Bars:
    """Nothing is barred before a kernel stands: what is adopted already, and the start, must be measured in any case,
    and an entry speaks of what a change brings over them."""

    entries: tuple[NoGo, ...]
    place: Place
    operator: Operator
    despite: frozenset[str] = frozenset()
    standing: Candidate | None = None
    known: set[str] = field(default_factory=set)
    made_of: dict[str, tuple[Change, ...]] = field(default_factory=dict)
    set_aside: set[str] = field(default_factory=set)
    """Entries of `despite` that would have barred something."""

    @property
    def active(self) -> tuple[NoGo, ...]:
        """Those that block here."""
        return tuple(e for e in self.entries if e.id not in self.despite and in_scope(e, self.place))

    def stand(self, *candidates: Candidate) -> None:
        """These kernels are in force: the last one is what changes are held against from now on."""
        self.known |= {c.identity for c in candidates}
        self.standing = candidates[-1]

    def note(self, candidate: Candidate, changes: Sequence[Change]) -> None:
        """Which changes a candidate was made of: what they say of themselves counts beside its code."""
        self.made_of[candidate.identity] = self.made_of["+".join(candidate.changes)] = tuple(changes)

    def barred(self, candidate: Candidate) -> NoGo | None:
        """The entry that forbids this candidate."""
        here = [e for e in self.entries if in_scope(e, self.place)]
        if self.standing is None or candidate.identity in self.known or not here:
            return None
        changes = self.made_of.get(candidate.identity) or self.made_of.get("+".join(candidate.changes), ())
        traits = traits_of_candidate(candidate, self.standing, self.operator, changes)
        self.set_aside |= {e.id for e in here if e.id in self.despite and matches(e, traits)}
        return next((e for e in self.active if matches(e, traits)), None)

    def sifted(self, proposal: Proposal) -> Sifted:
        """A proposal without what is known to be forbidden before its code is written."""
        return sift(proposal, self.active, self.place, self.operator.classes())
