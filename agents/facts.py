"""The parts of the evidence, built from the nouns of the other rooms. Pure functions; nothing is measured here."""

from __future__ import annotations

import difflib

from kernelcrew.agents.evidence import (
    LoopSpan,
    MachineFacts,
    OperatorFacts,
    RecipeNote,
    ShapeCeiling,
    ShapesOfClass,
    SourceFacts,
    VerificationNote,
)
from kernelcrew.agents.nouns import KnobChoice, RiskNote
from kernelcrew.kernels.cparse import parse_c
from kernelcrew.kernels.nouns import Candidate, NotApplicable, Operator, ShapeClass
from kernelcrew.kernels.recipes import RECIPES, Recipe
from kernelcrew.platforms.nouns import Machine
from kernelcrew.tools.nouns import Profile, Timing, Verification

C_TYPES = {"float32": "float", "float64": "double", "int32": "int"}
DIFF_LINES = 240
"""Lines of a diff that are shown; a template is longer than a reviewer needs twice."""


def operator_facts(operator: Operator, backend: str) -> OperatorFacts:
    """What the roles need to know of an operator."""
    built = operator.backends[backend]
    shapes = tuple(
        ShapesOfClass(
            shape_class=c,
            timed=tuple(s.key for s in operator.timed() if s.shape_class == c),
            held_out=tuple(s.key for s in operator.held_out() if s.shape_class == c),
        )
        for c in operator.classes()
    )
    return OperatorFacts(
        name=operator.name,
        summary=operator.summary,
        backend=backend,
        axes=tuple(a.name for a in operator.axes),
        signature=signature(operator, backend),
        contract=operator.contract,
        align_bytes=min((t.align_bytes for t in operator.tensors), default=4),
        shapes=shapes,
        distributions=tuple(d.name for d in operator.distributions),
        flops=operator.cost.flops,
        bytes=operator.cost.bytes,
        base_flags=built.base_flags,
        contract_flags=built.contract_flags,
        extra_flags=built.extra_flags,
    )


def signature(operator: Operator, backend: str) -> str:
    """The entry's prototype, with each tensor's extents behind it: `void f(const float *x, int n); x[n]`."""
    built = operator.backends[backend]
    tensors = {t.name: t for t in operator.tensors}
    parameters = []
    for name in built.args:
        tensor = tensors.get(name)
        if tensor is None:
            parameters.append(f"int {name}")
        else:
            parameters.append(f"{'const ' if tensor.role == 'in' else ''}{C_TYPES[tensor.dtype]} *{name}")
    extents = ", ".join(f"{t.name}[{']['.join(t.dims)}]" for t in operator.tensors)
    return f"void {built.entry}({', '.join(parameters)}); {extents}"


def machine_facts(machine: Machine) -> MachineFacts:
    """This machine in a few figures; where a level has several peaks, its first and smallest footprint stands."""
    p, tool = machine.platform, machine.toolchain
    return MachineFacts(
        id=p.id,
        readable=p.readable,
        vector_bytes=p.vector_bytes,
        features=p.features,
        caches=p.caches,
        peaks={f"{peak.name} {peak.level}": round(peak.value, 3) for peak in reversed(p.peaks)},
        compiler=f"{tool.name} {tool.version}, -march=native is {tool.target}",
    )


def source_facts(candidate: Candidate) -> SourceFacts:
    """The unconditional variant of a candidate, as a patch edits it."""
    variant = candidate.variants[-1]
    parsed = parse_c(variant.source.text)
    lines = variant.source.text.splitlines()
    loops = tuple(
        LoopSpan(
            function=loop.function,
            first=loop.span.line_first,
            last=loop.span.line_last,
            depth=loop.depth,
            innermost=loop.innermost,
            head=lines[loop.span.line_first - 1].strip(),
        )
        for loop in parsed.loops
    )
    return SourceFacts(
        identity=candidate.identity,
        text=variant.source.text,
        flags=variant.plan.flags,
        defines=variant.plan.defines,
        knobs={k.name: variant.plan.defines.get(k.name, k.value) for k in parsed.knobs},
        loops=loops,
        rules=tuple(v.when for v in candidate.variants if v.when),
    )


def numbered(text: str) -> str:
    """The text with line numbers from 1."""
    return "\n".join(f"{number:3} {line}" for number, line in enumerate(text.splitlines(), 1))


def recipe_notes(operator: Operator, candidate: Candidate) -> tuple[RecipeNote, ...]:
    """The catalogue without what is written for other operators, each recipe tried on the kernel as it stands."""
    mine = [r for r in RECIPES.values() if not r.operators or operator.name in r.operators]
    return tuple(_note(recipe, operator, candidate) for recipe in mine)


def verification_note(verification: Verification) -> VerificationNote:
    """Correctness in a few figures: the case that used most of its limit stands for the rest."""
    worst = max(verification.cases, key=lambda c: c.worst / c.limit if c.limit else 0.0, default=None)
    return VerificationNote(
        status=verification.status,
        cases=verification.cases_run or len(verification.cases),
        bias=verification.bias,
        bias_slope=verification.bias_slope,
        nearest=round(worst.worst / worst.limit, 4) if worst is not None and worst.limit else 0.0,
        nearest_case=f"{worst.shape} {worst.distribution}" if worst is not None else "",
        deterministic=verification.deterministic,
        seeds=verification.seeds_run or len({c.seed for c in verification.cases}),
    )


def ceilings(profile: Profile) -> tuple[ShapeCeiling, ...]:
    """How near its peak each shape of the profiled kernel runs."""
    return tuple(
        ShapeCeiling(shape=s.shape, shape_class=s.shape_class, share=round(s.share, 4), level=s.level)
        for s in profile.shapes
    )


def slim(timing: Timing | None) -> Timing | None:
    """A timing without its raw blocks: they stay in the journal."""
    if timing is None:
        return None
    return timing.model_copy(
        update={"shapes": tuple(s.model_copy(update={"blocks": ()}) for s in timing.shapes), "samples": ""}
    )


def class_ratios(timing: Timing | None) -> dict[ShapeClass, float]:
    """Ratio by class."""
    return {c.shape_class: round(c.ratio, 4) for c in timing.classes} if timing else {}


def diff_of(old: Candidate, new: Candidate) -> str:
    """Unified diff of the unconditional variants, with what changed in the plan."""
    before, after = old.variants[-1], new.variants[-1]
    lines = list(
        difflib.unified_diff(
            before.source.text.splitlines(), after.source.text.splitlines(), "before", "after", lineterm=""
        )
    )
    if len(lines) > DIFF_LINES:
        lines = [*lines[:DIFF_LINES], f"[{len(lines) - DIFF_LINES} more lines]"]
    flags = [f"+ flag {f}" for f in after.plan.flags if f not in before.plan.flags]
    knobs = [f"+ -D{n}={v}" for n, v in after.plan.defines.items() if before.plan.defines.get(n) != v]
    rules = [
        f"+ variant when {v.when}" for v in new.variants if v.when and v.when not in {o.when for o in old.variants}
    ]
    return "\n".join([*lines, *flags, *knobs, *rules])


def _note(recipe: Recipe, operator: Operator, candidate: Candidate) -> RecipeNote:
    variant = candidate.variants[-1]
    first = {k.name: k.value for k in recipe.knobs}
    tried = recipe.apply(variant.source, variant.plan, operator, first)
    return RecipeNote(
        name=recipe.name,
        label=recipe.label,
        mechanism=recipe.mechanism,
        requires=recipe.requires,
        needs=recipe.needs,
        allowed=recipe.allowed,
        knobs=tuple(KnobChoice(name=k.name, value=k.value, window=list(k.window)) for k in recipe.knobs),
        risks=tuple(RiskNote(shape_class=r.shape_class, level=r.level, why=r.why) for r in recipe.risks),
        not_here=tried.because if isinstance(tried, NotApplicable) else "",
    )
