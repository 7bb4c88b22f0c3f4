"""The policy gate before the compiler: sources, launch plans and rationales, by allow-lists.

Each broken rule is a Diagnostic whose `kind` is the rule's name; its message says what to do about it. The object that
the compiler makes is judged by `kernelcrew.tools.policy_object`.
"""

from __future__ import annotations

import re

from kernelcrew.errors import UserMistake
from kernelcrew.kernels.expr import parse
from kernelcrew.kernels.kinds import VALUE_FLAGS
from kernelcrew.kernels.nouns import Backend, Candidate, LaunchPlan, Operator, Variant
from kernelcrew.tools import policy_names as names
from kernelcrew.tools.nouns import Diagnostic
from kernelcrew.tools.policy_c import judge
from kernelcrew.tools.policy_tokens import first_comment
from kernelcrew.tools.rationale import judge_rationale
from kernelcrew.tools.scratch import scratch_trouble

MAX_VARIANTS = 3
MAX_DEFINES = 32
MAX_THREADS = 256
RATIONALE = "rationale"
"""Kind of the diagnostics that speak of the reason alone."""
START = "start"
"""Author of an operator's own kernel, which owes no rationale."""


def source_policy(candidate: Candidate, operator: Operator) -> tuple[Diagnostic, ...]:
    """Broken rules of sources, plans, variant rules and rationale; empty when the candidate may be compiled."""
    backend = operator.backends.get(candidate.backend)
    if backend is None:
        return (_broken("backend", f"'{candidate.backend}' is none of {', '.join(sorted(operator.backends))}"),)
    found: list[Diagnostic] = []
    if candidate.operator != operator.name:
        found.append(_broken("operator", f"the candidate is for '{candidate.operator}', not '{operator.name}'"))
    found += _variants(candidate, operator)
    for number, variant in enumerate(candidate.variants, 1):
        several = f"variant {number}: " if len(candidate.variants) > 1 else ""
        broken = [*plan_policy(variant.plan, backend, operator), *_source(variant)]
        found += [d.model_copy(update={"message": several + d.message}) for d in broken]
    if candidate.author != START:
        text = candidate.rationale or (first_comment(candidate.variants[-1].source.text) if candidate.variants else "")
        found += rationale_policy(text)
    return tuple(found)


def plan_policy(plan: LaunchPlan, backend: Backend, operator: Operator) -> tuple[Diagnostic, ...]:
    """Broken rules of one launch plan."""
    found = []
    if plan.entry != backend.entry:
        found.append(_broken("entry", f"the plan calls '{plan.entry}': the contract's function is '{backend.entry}'"))
    for flag in plan.flags:
        if flag in VALUE_FLAGS:
            found.append(_broken("flag", f"{flag} changes values: {VALUE_FLAGS[flag]}; leave it out"))
        elif flag not in backend.allowed_flags:
            allowed = " ".join(sorted(backend.allowed_flags))
            found.append(_broken("flag", f"{flag} is not among the operator's flags: {allowed}"))
    found += [broken for name, value in plan.defines.items() for broken in _define(name, value, backend, operator)]
    if len(plan.defines) > MAX_DEFINES:
        found.append(_broken("define", f"{len(plan.defines)} defines: at most {MAX_DEFINES}"))
    if not 1 <= plan.threads <= MAX_THREADS:
        found.append(_broken("threads", f"{plan.threads} threads: from 1 to {MAX_THREADS}"))
    if plan.scratch_bytes is not None:
        found += _expression("scratch", plan.scratch_bytes, operator) or _scratch(plan.scratch_bytes, operator)
    return tuple(found)


def rationale_policy(text: str) -> tuple[Diagnostic, ...]:
    """Broken rules of a candidate's rationale; `option` names the rule."""
    broken = judge_rationale(text).broken
    return tuple(Diagnostic(kind=RATIONALE, line=0, message=b.message, option=b.rule) for b in broken)


def _variants(candidate: Candidate, operator: Operator) -> list[Diagnostic]:
    variants = candidate.variants
    if not 1 <= len(variants) <= MAX_VARIANTS:
        return [_broken("variants", f"{len(variants)} variants: from 1 to {MAX_VARIANTS}")]
    found = []
    if variants[-1].when is not None:
        found.append(_broken("rule", "the last variant has a rule: leave its `when` out, it serves all other shapes"))
    for number, variant in enumerate(variants[:-1], 1):
        if variant.when is None:
            found.append(_broken("rule", f"variant {number} has no rule: give it a `when`; only the last has none"))
            continue
        found += _expression("rule", variant.when, operator)
        if len(re.findall(r"\b(?:and|or)\b", variant.when)) > 1:
            found.append(_broken("rule", f"rule '{variant.when}' has more than two conditions: use two at most"))
    return found


def _source(variant: Variant) -> list[Diagnostic]:
    if variant.source.language != "c":
        return [_broken("language", f"'{variant.source.language}' cannot be built by this backend: hand in C")]
    return judge(variant.source.text, variant.plan.threads)


def _expression(rule: str, text: str, operator: Operator) -> list[Diagnostic]:
    try:
        unknown = parse(text).names - {a.name for a in operator.axes}
    except UserMistake as error:
        return [_broken(rule, str(error))]
    if unknown:
        axes = ", ".join(a.name for a in operator.axes)
        return [_broken(rule, f"'{text}' uses '{min(unknown)}': the axes are {axes}")]
    return []


def _scratch(text: str, operator: Operator) -> list[Diagnostic]:
    """The expression on every shape of the manifest; other shapes are judged when they are met."""
    for shape in operator.shapes:
        if trouble := scratch_trouble(text, shape.axes):
            return [_broken("scratch", f"{trouble} on shape {shape.key}")]
    return []


def _define(name: str, value: int, backend: Backend, operator: Operator) -> list[Diagnostic]:
    known = name in names.KEYWORDS or name in names.LIBRARY or names.is_intrinsic(name) or names.is_type(name)
    taken = {backend.entry, *(a.name for a in operator.axes), *(t.name for t in operator.tensors)}
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,63}", name) or known or name in taken:
        return [_broken("define", f"'{name}' cannot be a knob: use a plain name of your own such as BLOCK")]
    if not -(1 << 31) <= value < 1 << 31:
        return [_broken("define", f"{name}={value} does not fit in an int: choose a smaller value")]
    return []


def _broken(rule: str, message: str) -> Diagnostic:
    return Diagnostic(kind=rule, line=0, message=message)
