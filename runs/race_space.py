"""The space of a search without a profile: every recipe that the proposer could choose, on or off, with its knobs.

A configuration is a tuple of numbers, one a switch: 0 is off, n is on with the nth choice of its knob values. Which
switches need or exclude each other is found by composing them, so that nothing is claimed that the recipes refuse.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from itertools import combinations, product
from math import prod

from kernelcrew.agents.experts import moves_generic
from kernelcrew.agents.experts.catalogue import DIRECTIONS
from kernelcrew.errors import HarnessError
from kernelcrew.kernels.compose import compose
from kernelcrew.kernels.expr import parse
from kernelcrew.kernels.load import start_candidate
from kernelcrew.kernels.nouns import Candidate, Edit, NotApplicable, Operator, Patch
from kernelcrew.kernels.recipes import RECIPES, Recipe
from kernelcrew.record import Record
from kernelcrew.runs.race_nouns import SpaceFacts

Config = tuple[int, ...]
LISTED_MOST = 100_000
"""Kernel Tuner lists a space before it searches it: 0.4 million configurations of this kind took it 1 s and 360 MB, 3.1
million 17 s and 3.3 GB, and one look for neighbours 3.5 s there. A tenth of a second a look is what it can afford."""
AUTHOR = "search"


class Switch(Record):
    """One recipe, on or off."""

    recipe: str
    """Its name."""
    choices: tuple[dict[str, int], ...]
    """Knob values when it is on, those that its own constraints allow; one empty choice for a recipe without knobs."""
    first: int
    """Place of the recipe's first values among them."""


class RecipeSpace(Record):
    """The product of all switches, less what is excluded."""

    switches: tuple[Switch, ...]
    """In the order of application."""
    requires: tuple[tuple[str, str], ...]
    """(recipe, what must be on for it)."""
    conflicts: tuple[tuple[str, str], ...]
    """Recipes that cannot both be on."""

    def allows(self, config: Sequence[int]) -> bool:
        """Whether a configuration breaks no restriction."""
        on = {s.recipe for s, chosen in zip(self.switches, config, strict=True) if chosen}
        return self._fits(on)

    def size(self) -> int:
        """Configurations allowed, counted subset by subset of the switches that restrictions speak of."""
        bound = {name for pair in (*self.requires, *self.conflicts) for name in pair}
        free = prod(1 + len(s.choices) for s in self.switches if s.recipe not in bound)
        tied = [s for s in self.switches if s.recipe in bound]
        total = 0
        for mask in product((False, True), repeat=len(tied)):
            chosen = [s for s, on in zip(tied, mask, strict=True) if on]
            if self._fits({s.recipe for s in chosen}):
                total += prod(len(s.choices) for s in chosen)
        return free * total

    def draw(self, rng: random.Random) -> Config:
        """One allowed configuration, each as likely as any other."""
        while True:
            config = tuple(rng.randint(0, len(s.choices)) for s in self.switches)
            if self.allows(config):
                return config

    def patch(self, config: Sequence[int]) -> Patch:
        """The configuration as edits in the order of application."""
        edits = [
            Edit(change=s.recipe, recipe=s.recipe, knobs=s.choices[chosen - 1])
            for s, chosen in zip(self.switches, config, strict=True)
            if chosen
        ]
        return Patch(proposal=AUTHOR, edits=tuple(edits), author=AUTHOR)

    def thinned(self, most: int) -> RecipeSpace:
        """The same switches with fewer knob values, at most `most` configurations where that is possible: the recipes
        that are usually tried last are held at their first values first."""
        switches = list(self.switches)
        for at in reversed(range(len(switches))):
            thin = self.model_copy(update={"switches": tuple(switches)})
            if thin.size() <= most:
                return thin
            one = switches[at]
            switches[at] = one.model_copy(update={"choices": (one.choices[one.first],), "first": 0})
        return self.model_copy(update={"switches": tuple(switches)})

    def facts(self, listed: RecipeSpace) -> SpaceFacts:
        """What the tables say of it."""
        pairs = zip(self.switches, listed.switches, strict=True)
        return SpaceFacts(
            recipes=tuple(s.recipe for s in self.switches),
            size=self.size(),
            listed=listed.size(),
            held=tuple(a.recipe for a, b in pairs if len(a.choices) > len(b.choices)),
        )

    def _fits(self, on: set[str]) -> bool:
        needs = all(b in on for a, b in self.requires if a in on)
        return needs and not any(a in on and b in on for a, b in self.conflicts)


def composed(operator: Operator, start: Candidate, space: RecipeSpace, config: Sequence[int]) -> Candidate:
    """The start kernel with a configuration applied. Raises HarnessError for one that is not allowed."""
    patch = space.patch(config)
    if not patch.edits:
        return start
    made = compose(start, patch, None, operator=operator)
    if isinstance(made, NotApplicable):
        raise HarnessError(f"a configuration does not compose: {made.change}: {made.because}", fix="report this")
    return made


def space_for(operator: Operator, backend: str = "c") -> RecipeSpace:
    """The space of one operator's start kernel."""
    start = start_candidate(operator, backend)
    fitting = {r.name: _needs(r) for r in _written_for(operator) if _composes(operator, start, (r.name, *_needs(r)))}
    reached = {name for d in DIRECTIONS if fitting.keys() & set(d.leads) for name in d.moves}
    names = [name for name in fitting if name in reached]
    needs = {name: [n for n in fitting[name] if n in names] for name in names}
    conflicts = [
        (a, b)
        for a, b in combinations(names, 2)
        if not _composes(operator, start, (a, b, *needs[a], *needs[b]))
    ]  # fmt: skip
    return RecipeSpace(
        switches=tuple(_switch(RECIPES[name]) for name in names),
        requires=tuple((name, needed) for name in names for needed in needs[name]),
        conflicts=tuple(conflicts),
    )


def _written_for(operator: Operator) -> list[Recipe]:
    """Recipes that may be applied to it; the generic moves are the proposer's only where no recipe names the
    operator."""
    generic = {m.mechanism for m in moves_generic.MOVES} if operator.name in moves_generic.CLAIMED else set()
    fitting = [r for r in RECIPES.values() if not r.operators or operator.name in r.operators]
    return [r for r in fitting if r.name not in generic]


def _needs(recipe: Recipe) -> tuple[str, ...]:
    """What must be applied before it, and before that."""
    found: list[str] = []
    for name in recipe.requires:
        found += [*_needs(RECIPES[name]), name]
    return tuple(dict.fromkeys(found))


def _composes(operator: Operator, start: Candidate, names: Iterable[str]) -> bool:
    wanted = set(names)
    edits = tuple(Edit(change=name, recipe=name) for name in RECIPES if name in wanted)
    return not isinstance(
        compose(start, Patch(proposal=AUTHOR, edits=edits, author=AUTHOR), None, operator=operator), NotApplicable
    )


def _switch(recipe: Recipe) -> Switch:
    names = [k.name for k in recipe.knobs]
    constraints = [parse(text) for text in recipe.constraints]
    for expr in constraints:
        if not expr.names <= set(names):
            what = f"recipe {recipe.name} has a constraint over another recipe's knob, which no space here holds"
            raise HarnessError(what, fix="report this")
    windows = [sorted(set(k.window)) for k in recipe.knobs]
    every = (dict(zip(names, values, strict=True)) for values in product(*windows))
    choices = tuple(c for c in every if all(expr.value(c) for expr in constraints))
    first = {k.name: k.value for k in recipe.knobs}
    if first not in choices:
        raise HarnessError(f"recipe {recipe.name}: its first values are outside its own windows", fix="report this")
    return Switch(recipe=recipe.name, choices=choices, first=choices.index(first))
