"""`kernelcrew check`: when a run would be wasted, or could show nothing, it is said before any work is spent.

Cheap findings come from the manifest, the source and this machine alone. The expensive ones (`check_trial`) build,
verify and time the start kernel and hold trivial outputs against the limits; they are kept by contract and source.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from typing import Literal

from kernelcrew.errors import UnknownName, UserMistake
from kernelcrew.event import Listener
from kernelcrew.kernels.expr import parse
from kernelcrew.kernels.load import start_candidate
from kernelcrew.kernels.nouns import Backend, Operator, Shape
from kernelcrew.platforms.detect import detect
from kernelcrew.platforms.nouns import Machine
from kernelcrew.record import Record
from kernelcrew.runs.check_trial import Tried, tried
from kernelcrew.runs.vcs import vcs_trouble
from kernelcrew.settings import Settings
from kernelcrew.tools.policy import source_policy
from kernelcrew.tools.verify_cases import elements

BUILT_HERE = ("c",)
"""Backends that this version builds and runs."""
LEAST_WORK = 64
"""Flops plus bytes of a call below which its time is that of the call itself."""
LEAST_US = 0.05
"""A call shorter than this is a few times the cost of calling it."""
LEAST_SPREAD = 8.0
"""Largest over smallest axis product of the timed shapes: below it one cache level may hold them all."""
SOON_DAYS, LATE_DAYS = 30.0, 365.0
"""A run that pays back within the first is worth it; one that needs longer than the second is refused."""
NEEDED = ("short", "main", "long")
FOREIGN = {"include", "asm", "intrinsic", "host", "call", "builtin"}
"""Policy rules by which a start kernel shows that it leans on something outside the contract."""
MIN_REASON_WORDS = 5

Severity = Literal["refuse", "warn", "ok"]


class Finding(Record):
    """One line of the preflight."""

    name: str
    """What was looked at."""
    severity: Severity
    """refuse: no run without --anyway; warn: go on, knowing it; ok."""
    what: str
    """What was found."""
    why: str = ""
    """Why it matters; empty where all is well."""
    do: str = ""
    """What to do about it."""


def examine(
    settings: Settings, operator: Operator, backend: str, budget_min: float, listener: Listener
) -> list[Finding]:
    """All findings for one operator and backend. Raises UnknownName, UserMistake, MissingTool."""
    if backend not in operator.backends:
        raise UnknownName("backend", backend, operator.backends)
    if budget_min <= 0:
        raise UserMistake("--budget-min must be above 0", fix="for instance --budget-min 4")
    machine = detect(settings.cc)
    cheap = [
        benchmark(operator),
        version_control(operator),
        *hardware(operator, backend, machine),
        coverage(operator),
        held_out(operator),
        tolerances(operator),
    ]
    if backend not in BUILT_HERE:
        return [*cheap, pays(operator, budget_min, {})]
    found = tried(settings, operator, backend, machine, listener)
    return [*cheap, *of_trial(operator, operator.backends[backend], found), pays(operator, budget_min, found.us)]


def benchmark(operator: Operator) -> Finding:
    """Whether anything can be timed by itself."""
    why = "numbers decide: what cannot be timed automatically can be neither adopted nor guarded"
    timed = operator.timed()
    if not timed:
        return _refuse("benchmark", "no timed shape", why, "add shapes with role timed")
    small = [s.key for s in timed if _work(operator, s) < LEAST_WORK]
    if len(small) == len(timed):
        what = f"every timed shape does less than {LEAST_WORK} flops and bytes a call: {_some(small)}"
        return _refuse("benchmark", what, why, "add shapes of real size to time")
    if small:
        what = f"too small to time, the call itself costs more: {_some(small)}"
        return _warn("benchmark", what, why, "give them the role edge")
    return _ok("benchmark", f"{len(timed)} shapes are timed automatically")


def version_control(operator: Operator) -> Finding:
    """Whether what is adopted can be handed over as commits and taken back."""
    trouble = vcs_trouble(operator)
    if not trouble:
        return _ok("version control", "what is adopted becomes commits that can be taken back")
    what, _, fix = trouble.partition("\n  fix: ")
    why = "a change that cannot be rolled back, bisected or reviewed as a commit is not handed over"
    return _refuse("version control", what, why, fix or "commit the operator")


def hardware(operator: Operator, asked: str, machine: Machine) -> list[Finding]:
    """Whether it hangs on a backend, instruction set or library that is not here."""
    why = "what cannot be built, run and measured here would be tuned by guesswork"
    if asked not in BUILT_HERE:
        what = f"backend '{asked}' cannot be built or run here: only {', '.join(BUILT_HERE)}"
        return [_refuse("hardware", what, why, "run it where its toolchain and device are, or add a C backend")]
    missing = lacking(operator.backends[asked], machine)
    if missing:
        what = f"its flags ask for {', '.join(missing)}, which {machine.platform.readable} does not have"
        return [_refuse("hardware", what, why, "use -march=native, or that machine")]
    broken = [d for d in source_policy(start_candidate(operator, asked), operator) if d.kind in FOREIGN]
    if broken:
        what = "the start kernel leans on what no candidate may use: " + "; ".join(
            f"{d.at}{d.message}" for d in broken[:3]
        )
        do = "write the start kernel in plain C with the listed headers and intrinsics"
        return [_refuse("hardware", what, why, do)]
    others = [name for name in operator.backends if name not in BUILT_HERE]
    if others:
        what = f"backends {', '.join(others)} are not looked at here"
        return [_warn("hardware", what, why, "run them where they can be built")]
    return [_ok("hardware", f"backend {asked} builds and runs on {machine.platform.id}")]


def lacking(backend: Backend, machine: Machine) -> list[str]:
    """Instruction sets that the base flags name and the machine lacks, where its features are known."""
    known = set(machine.platform.features)
    named = [flag[2:].replace(".", "_") for flag in backend.base_flags if re.fullmatch(r"-m[a-z][a-z0-9.]*", flag)]
    sets = [n for n in named if re.match(r"avx|sse|fma|f16c|amx|neon|bmi", n)]
    return [n for n in sets if known and n not in known]


def coverage(operator: Operator) -> Finding:
    """Whether the timed shapes reach from short to long."""
    why = "a gain at one size may be a loss at another, and nobody would see it"
    timed = operator.timed()
    absent = [c for c in NEEDED if c not in operator.classes()]
    if absent:
        what = f"no timed shape of class {', '.join(absent)}"
        return _warn("coverage", what, why, "add timed shapes of these classes")
    sizes = [max(elements(operator, s.axes), 1) for s in timed]
    spread = max(max(sizes) / min(sizes), *_axis_spreads(timed))
    if spread < LEAST_SPREAD:
        what = f"the timed shapes differ by {spread:.1f} times in size"
        do = f"add shapes until the longest is at least {LEAST_SPREAD:.0f} times the shortest"
        return _warn("coverage", what, why, do)
    what = f"timed shapes of {len(operator.classes())} classes, {spread:,.0f} times apart"
    return _ok("coverage", what)


def held_out(operator: Operator) -> Finding:
    """Whether rules could be tested on shapes that nobody tuned for."""
    count = len(operator.held_out())
    if count:
        return _ok("held-out shapes", f"{count} shapes are held out for testing rules")
    why = "a rule that adopts a kernel for some shapes can only be believed on shapes it was not made from"
    do = 'add shapes with role = "held_out" beside each class boundary'
    return _warn("held-out shapes", "no shape is held out", why, do)


def tolerances(operator: Operator) -> Finding:
    """Whether every limit says where it comes from."""
    why = "a limit without its origin is a guess: too wide it lets a downcast pass, too tight it refuses honest kernels"
    do = "say which honest kernels were measured, and the margin"
    bare = [t.distribution for t in operator.tolerances if not t.reason.strip()]
    if bare:
        what = f"no reason for the limits of {', '.join(bare)}"
        return _refuse("tolerances", what, why, do)
    hollow = [t.distribution for t in operator.tolerances if len(t.reason.split()) < MIN_REASON_WORDS]
    if hollow:
        what = f"hardly a reason for the limits of {', '.join(hollow)}"
        return _warn("tolerances", what, why, do)
    return _ok("tolerances", f"{len(operator.tolerances)} limits, each with its reason")


def pays(operator: Operator, budget_min: float, us: dict[str, float]) -> Finding:
    """Whether it runs often enough: the run's minutes against what a kernel twice as fast would save a day."""
    why = "the run costs more than it can save"
    call_s = _mean_call_s(operator, us)
    if call_s <= 0:
        return _warn("use", "its time is unknown", why, "make the start kernel right")
    worth = budget_min * 60 / (SOON_DAYS * call_s / 2)
    if operator.calls_per_day is None:
        what = f"how often it is called is unknown: {worth:,.0f} calls a day pay {budget_min:g} minutes in a month"
        return _warn("use", what, why, "set calls_per_day in operator.toml")
    saved_s = operator.calls_per_day * call_s / 2
    days = budget_min * 60 / saved_s if saved_s > 0 else math.inf
    until = "never" if days == math.inf else f"in {days:,.1f} days"
    what = (
        f"{operator.calls_per_day:,.0f} calls a day of {call_s * 1e6:.3g} us: "
        f"twice as fast saves {saved_s:.3g} s a day, which pays {budget_min:g} minutes {until}"
    )
    if days > LATE_DAYS:
        do = f"leave it as it is: below {worth * SOON_DAYS / LATE_DAYS:,.0f} calls a day it does not pay within a year"
        return _refuse("use", what, why, do)
    if days > SOON_DAYS:
        return _warn("use", what, why, "lower --budget-min, or tune what runs more")
    return _ok("use", what)


def of_trial(operator: Operator, backend: Backend, found: Tried) -> list[Finding]:
    """Findings from what was tried: the start kernel, and trivial outputs."""
    if found.start:
        why = "nothing can be held against a kernel that is itself not right"
        do = f"mend {backend.source}, or the limits in operator.toml with their reason"
        start = _refuse("start kernel", found.start, why, do)
    else:
        start = _ok("start kernel", "it builds and passes its own verification")
    short = [key for key, us in found.us.items() if us < LEAST_US]
    if short:
        what = f"a call takes less than {LEAST_US} us: {_some(short)}"
        why = "the cost of calling hides what the kernel does"
        return [start, trivial(found), _warn("call time", what, why, "time larger ones")]
    return [start, trivial(found)]


def trivial(found: Tried) -> Finding:
    """Whether a kernel that computes nothing would be taken for a right one."""
    why = "a kernel that computes nothing would pass for a right one, and no kernel is faster"
    do = "tighten that distribution's limits, or draw it otherwise (its kind, low and high)"
    zeros = [f"{p.distribution} at {p.shape}" for p in found.passing if p.output == "zeros"]
    if zeros:
        what = f"an output of zeros passes: {_some(zeros)}"
        return _refuse("trivial outputs", what, why, do)
    everywhere = [f"{output} under {distribution}" for output, distribution in found.everywhere]
    if everywhere:
        what = f"passes on every timed shape: {_some(everywhere)}"
        return _warn("trivial outputs", what, why, do)
    what = f"zeros, ones, a copy of the first input and the mean are refused ({found.cases} cases)"
    return _ok("trivial outputs", what)


def _refuse(name: str, what: str, why: str, do: str) -> Finding:
    return Finding(name=name, severity="refuse", what=what, why=why, do=do)


def _warn(name: str, what: str, why: str, do: str) -> Finding:
    return Finding(name=name, severity="warn", what=what, why=why, do=do)


def _ok(name: str, what: str) -> Finding:
    return Finding(name=name, severity="ok", what=what)


def _mean_call_s(operator: Operator, us: dict[str, float]) -> float:
    weighted = [(s.weight, us[s.key]) for s in operator.timed() if s.key in us]
    total = sum(w for w, _ in weighted)
    return sum(w * t for w, t in weighted) / total / 1e6 if total else 0.0


def _work(operator: Operator, shape: Shape) -> float:
    return sum(float(parse(text).value(shape.axes)) for text in (operator.cost.flops, operator.cost.bytes))


def _axis_spreads(shapes: Sequence[Shape]) -> list[float]:
    names = shapes[0].axes
    return [max(max(s.axes[n], 1) for s in shapes) / min(max(s.axes[n], 1) for s in shapes) for n in names]


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    more = f" and {len(listed) - 4} more" if len(listed) > 4 else ""
    return "; ".join(listed[:4]) + more
