"""A candidate from an incumbent and a patch: the edits of a subset of changes, re-applied in order.

Nothing is ever reverted as text: leaving a change out means composing the rest again. What cannot be applied (a block
that does not match once, a recipe whose form is not there, a knob nobody reads) is a NotApplicable that says why.
"""

from __future__ import annotations

from collections.abc import Sequence

from kernelcrew.errors import CrewError
from kernelcrew.kernels.cparse import parse_c, set_knob
from kernelcrew.kernels.load import load_operator
from kernelcrew.kernels.nouns import (
    Block,
    Candidate,
    Edit,
    KernelSource,
    LaunchPlan,
    NotApplicable,
    Operator,
    Patch,
    Variant,
)
from kernelcrew.kernels.recipes import RECIPES


def compose(
    incumbent: Candidate,
    patch: Patch,
    subset: Sequence[str] | None,
    variant: int = -1,
    operator: Operator | None = None,
) -> Candidate | NotApplicable:
    """The incumbent with the patch's edits applied to one variant (the unconditional last one by default).

    `subset` names the changes to apply, None all of them; the patch's order holds. `operator` is what recipes need to
    know; left out, it is the shipped operator of the incumbent's name. The rationale is that of the recipes, until the
    caller puts in what the proposal says.
    """
    known = [edit.change for edit in patch.edits]
    wanted = known if subset is None else list(subset)
    for change in wanted:
        if change not in known:
            listed = ", ".join(known) or "none"
            return NotApplicable(change=change, because=f"the patch has no edit for it; it has {listed}")
    edits = [edit for edit in patch.edits if edit.change in wanted]
    try:
        about = operator or load_operator(incumbent.operator)
    except CrewError as error:
        return NotApplicable(change=patch.proposal, because=f"the operator is not at hand: {error.what}")
    old = incumbent.variants[variant]
    source, plan = old.source, old.plan
    for edit in edits:
        made = apply_edit(source, plan, edit, about)
        if isinstance(made, NotApplicable):
            return made
        source, plan = made
    variants = list(incumbent.variants)
    variants[variant] = Variant(source=source, plan=plan, when=old.when)
    changes = tuple(dict.fromkeys(edit.change for edit in edits))
    why = " ".join(RECIPES[edit.recipe].mechanism for edit in edits if edit.recipe) or incumbent.rationale
    return incumbent.model_copy(
        update={"variants": tuple(variants), "changes": changes, "author": patch.author, "rationale": why}
    )


def apply_edit(
    source: KernelSource, plan: LaunchPlan, edit: Edit, operator: Operator
) -> tuple[KernelSource, LaunchPlan] | NotApplicable:
    """One edit on one source and plan: recipe, then blocks, then flags and knobs; or why not."""
    if not (edit.recipe or edit.blocks or edit.add_flags or edit.knobs):
        return NotApplicable(change=edit.change, because="the edit is empty")
    before = (source, plan)
    knobs = dict(edit.knobs)
    if edit.recipe:
        recipe = RECIPES.get(edit.recipe)
        if recipe is None:
            return NotApplicable(change=edit.change, because=f"no recipe '{edit.recipe}'. Known: {', '.join(RECIPES)}")
        own = {name: knobs.pop(name) for name in list(knobs) if name in recipe.allowed}
        made = recipe.apply(source, plan, operator, own)
        if isinstance(made, NotApplicable):
            return NotApplicable(change=edit.change, because=f"recipe {recipe.name}: {made.because}")
        source, plan = made
    for number, block in enumerate(edit.blocks, 1):
        text = _replaced(source.text, block)
        if text is None:
            count = source.text.count(block.search) if block.search else 0
            found = f"occurs {count} times instead of once: {_shown(block.search)}" if block.search else "is empty"
            return NotApplicable(change=edit.change, because=f"block {number}: its search text {found}")
        source = source.model_copy(update={"text": text})
    if edit.add_flags:
        plan = plan.model_copy(update={"flags": tuple(dict.fromkeys((*plan.flags, *edit.add_flags)))})
    turned = _with_knobs(source, plan, knobs)
    if isinstance(turned, str):
        return NotApplicable(change=edit.change, because=turned)
    if turned == before:
        return NotApplicable(change=edit.change, because="it changes nothing in the source or the plan")
    return turned


def _replaced(text: str, block: Block) -> str | None:
    if not block.search or text.count(block.search) != 1:
        return None
    return text.replace(block.search, block.replace)


def _with_knobs(source: KernelSource, plan: LaunchPlan, knobs: dict[str, int]) -> tuple[KernelSource, LaunchPlan] | str:
    """Knobs set where they live: in the plan's defines if they are there, else as the source's own default."""
    for name, value in knobs.items():
        if name in plan.defines:
            plan = plan.model_copy(update={"defines": {**plan.defines, name: value}})
            continue
        text = set_knob(source.text, name, value)
        if text is None:
            known = [k.name for k in parse_c(source.text).knobs]
            return f"the source has no knob {name} (an #ifndef/#define pair); it has {', '.join(known) or 'none'}"
        source = source.model_copy(update={"text": text})
    return source, plan


def _shown(text: str) -> str:
    return repr(text if len(text) <= 80 else text[:77] + "...")
