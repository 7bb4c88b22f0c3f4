"""Recipe: one named rewrite, as a pure function from a parsed source to a source, or to why it does not apply."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from pydantic import Field

from kernelcrew.kernels.cparse import CSource, parse_c
from kernelcrew.kernels.nouns import KernelSource, Knob, LaunchPlan, NotApplicable, Operator, Risk
from kernelcrew.record import Record


class Site(Record):
    """What a rewrite is given."""

    source: CSource
    """The source as read."""
    entry: str
    """The function that is called."""
    plan: LaunchPlan
    """How it is built."""
    operator: Operator
    """What is computed, with its contract."""
    backend: str
    """Which of the operator's backends."""
    knobs: dict[str, int]
    """A value for each knob of the recipe."""


class Rewritten(Record):
    """What a rewrite made: the new text, and flags to add."""

    text: str
    """The whole source."""
    add_flags: tuple[str, ...] = ()
    """For the plan."""


class Refusal(Record):
    """Why the rewrite does not apply."""

    because: str
    """For a person and for the next try."""


Rewrite = Callable[[Site], Rewritten | Refusal]


class Recipe(Record):
    """One rewrite of the catalogue."""

    name: str
    """What a change's `mechanism` and an edit's `recipe` say."""
    label: Literal["rewrite", "template"]
    """rewrite: edits code that it found; template: a prepared piece of kernel with parameters."""
    mechanism: str
    """What it does and why it may pay, in a sentence or two."""
    needs: str
    """What must hold of source and contract."""
    requires: tuple[str, ...] = ()
    """Recipes that must have been applied before."""
    knobs: tuple[Knob, ...] = ()
    """Its knobs: first value and the window worth trying."""
    allowed: dict[str, tuple[int, ...]] = Field(default_factory=dict)
    """For each knob, every value that the code can be written with: a wider window stays inside it."""
    constraints: tuple[str, ...] = ()
    """Expressions over knobs, also of other recipes, that the tuner keeps to: `MR * NR <= 28`."""
    risks: tuple[Risk, ...] = ()
    """What it usually risks, by shape class."""
    operators: tuple[str, ...] = ()
    """Operators it is written for; empty for any whose source fits."""
    reorders: bool = False
    """Whether it changes the order of additions."""
    rewrite: Rewrite = Field(exclude=True, repr=False)
    """The function itself."""

    def apply(
        self, source: KernelSource, plan: LaunchPlan, operator: Operator, knobs: Mapping[str, int]
    ) -> tuple[KernelSource, LaunchPlan] | NotApplicable:
        """The source and plan after this recipe, or why not. Knobs that are not given take their first value."""
        because = self._refuses(source, operator, knobs)
        if because:
            return NotApplicable(change=self.name, because=because)
        values = {k.name: knobs.get(k.name, k.value) for k in self.knobs}
        parsed = parse_c(source.text)
        if parsed.problem:
            return NotApplicable(change=self.name, because=f"the source cannot be read: {parsed.problem}")
        backend = next((name for name, b in operator.backends.items() if b.entry == plan.entry), "c")
        made = self.rewrite(
            Site(source=parsed, entry=plan.entry, plan=plan, operator=operator, backend=backend, knobs=values)
        )
        if isinstance(made, Refusal):
            return NotApplicable(change=self.name, because=made.because)
        flags = tuple(dict.fromkeys((*plan.flags, *made.add_flags)))
        return source.model_copy(update={"text": made.text}), plan.model_copy(update={"flags": flags})

    def _refuses(self, source: KernelSource, operator: Operator, knobs: Mapping[str, int]) -> str:
        if source.language != "c":
            return f"it rewrites C, and this source is {source.language}"
        if self.operators and operator.name not in self.operators:
            return f"it is written for {', '.join(self.operators)} alone, and this is {operator.name}"
        if self.reorders and operator.contract.summation != "any order":
            return f"it changes the order of additions, and the contract says '{operator.contract.summation}'"
        for name, value in knobs.items():
            if name not in self.allowed:
                return f"it has no knob {name}; its knobs are {', '.join(self.allowed) or 'none'}"
            if value not in self.allowed[name]:
                return f"{name}={value}: it can be written for {', '.join(map(str, self.allowed[name]))} alone"
        return ""
