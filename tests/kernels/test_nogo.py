"""The no-go list's matching: on what a change brings itself, within the entry's scope."""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest
from pydantic import ValidationError

from kernelcrew.kernels.load import load_operator, start_candidate
from kernelcrew.kernels.nogo import NoGo, Place, in_scope, matches, read_feature, sift, traits_of_candidate
from kernelcrew.kernels.nouns import CLASSES, Candidate, Change, Expectation, Knob, Proposal, Variant

HERE = Place(operator="reduction", platform="cpu-intel-6-207", backend="c", toolchain="gcc 12.2.0")
OPERATOR = load_operator("reduction")
START = start_candidate(OPERATOR)


def entry(*features: str, **more: Any) -> NoGo:
    given = {"id": "x", "reason": "slow", "evidence": "run a", "author": "ada", "created": "2026-01-01"}
    return NoGo.model_validate({**given, "features": features, **more})


def change(mechanism: str = "free", *knobs: Knob, **more: Any) -> Change:
    expects = Expectation(figure="time", shape_class="main", factor=0.5)
    given = {"id": mechanism, "mechanism": mechanism, "target": "reduction", "expects": expects, "knobs": knobs}
    return Change.model_validate({**given, "gain": 2.0, "why": "w", **more})


def proposal(*changes: Change) -> Proposal:
    return Proposal(id="r1p1", title="t", direction="d", bottlenecks=(), changes=changes)


def kernel(text: str, when: str | None = None, **plan: Any) -> Candidate:
    old = START.variants[-1]
    new = Variant(
        source=old.source.model_copy(update={"text": old.source.text + text}),
        plan=old.plan.model_copy(update=plan),
        when=when,
    )
    return START.model_copy(update={"variants": (new, old) if when else (new,), "author": "person"})


def forbids(one: NoGo, candidate: Candidate, *changes: Change, before: Candidate = START) -> bool:
    return matches(one, traits_of_candidate(candidate, before, OPERATOR, changes))


@pytest.mark.parametrize(
    ("scope", "inside"),
    [
        ({}, True),
        ({"operator": "red*", "platform": "h200|cpu-*", "backend": "c", "toolchain": "gcc 12*"}, True),
        ({"operator": "gemm"}, False),
        ({"platform": "h200"}, False),
        ({"backend": "triton|cuda"}, False),
        ({"toolchain": "gcc 13*"}, False),
    ],
)
def test_an_entry_speaks_of_its_scope_alone(scope: dict[str, str], inside: bool) -> None:
    assert in_scope(entry("flag:-O3", **scope), HERE) is inside


@pytest.mark.parametrize(
    ("feature", "text", "plan", "hit"),
    [
        ("code:_mm_prefetch", "void f(void) { _mm_prefetch(0, 1); }", {}, True),
        ("code:_mm_prefetch", "/* no _mm_prefetch here */", {}, False),
        ("code:_mm_prefetch", "// _mm_prefetch\n", {}, False),
        ("code:_mm_prefetch", "void f(void) { my_mm_prefetch(); }", {}, False),
        ("code:#pragma omp parallel", "#pragma   omp \\\n parallel for\n", {}, True),
        ("code:#pragma omp parallel", "#pragma omp simd\n", {}, False),
        ("code:goto out", "void f(void) { goto\n out; out: ; }", {}, True),
        ("code:float s", "", {}, False),  # the kernel has it already
        ("flag:-funroll-loops", "", {"flags": ("-funroll-loops",)}, True),
        ("flag:-funroll*", "", {"flags": ("-fno-math-errno",)}, False),
        ("knob:BLOCK=8..16", "", {"defines": {"BLOCK": 12}}, True),
        ("knob:BLOCK=8..16", "", {"defines": {"BLOCK": 17}}, False),
        ("knob:ACC=4,8", "#ifndef ACC\n#define ACC 8\n#endif\n", {}, True),
        ("knob:ACC=4,8", "#ifndef ACC\n#define ACC 2\n#endif\n", {}, False),
        ("knob:ACC", "#ifndef ACC\n#define ACC 2\n#endif\n", {}, True),
        ("recipe:prefetch", "/* prefetch: asks for lines ahead */", {}, True),
        ("recipe:prefetch", "/* unroll_loop: by four */", {}, False),
    ],
)
def test_what_a_candidate_brings_is_matched_and_what_was_there_is_not(
    feature: str, text: str, plan: dict[str, Any], hit: bool
) -> None:
    assert forbids(entry(feature), kernel(text, **plan)) is hit


def test_all_features_must_be_there() -> None:
    both = entry("code:_mm_prefetch", "flag:-funroll-loops")
    text = "void f(void) { _mm_prefetch(0, 1); }"
    assert forbids(both, kernel(text, flags=("-funroll-loops",)))
    assert not forbids(both, kernel(text))


def test_the_kernel_that_is_changed_may_have_it_but_not_get_more_of_it() -> None:
    once, twice = "void f(void) { g(); }", "void f(void) { g(); g(); }"
    assert not forbids(entry("code:g()"), kernel(once), before=kernel(once))
    assert forbids(entry("code:g()"), kernel(twice), before=kernel(once))


def test_a_class_is_spared_by_a_rule_that_leaves_it_out() -> None:
    short = entry("code:_mm_prefetch", shape_class="short")
    text = "void f(void) { _mm_prefetch(0, 1); }"
    assert forbids(short, kernel(text))
    assert not forbids(short, kernel(text, when="n > 64"))
    assert forbids(entry("code:_mm_prefetch"), kernel(text, when="n > 64"))


def test_hashes_are_one_feature_and_not_too_short() -> None:
    mine = kernel("/* a */")
    assert forbids(entry(f"hash:{mine.identity[:8]}"), mine)
    assert not forbids(entry(f"hash:{mine.identity[:7]}"), mine)
    assert forbids(entry("hash:0123456789abcdef"), mine, change(diff="0123456789abcdef"))


def test_a_forbidden_change_is_taken_out_with_what_needs_it() -> None:
    bad, on_it, free = change("prefetch"), change("blocks", requires=("prefetch",)), change("unroll_loop")
    found = sift(proposal(bad, on_it, free), [entry("recipe:prefetch")], HERE, CLASSES)
    assert found.proposal is not None and [c.id for c in found.proposal.changes] == ["unroll_loop"]
    assert [(b.change, b.entry) for b in found.barred] == [("prefetch", "x"), ("blocks", "x")]
    assert "slow" in found.barred[0].line and "run a" in found.barred[0].line
    assert "needs prefetch" in found.barred[1].line
    spared = sift(proposal(bad), [entry("recipe:prefetch", operator="gemm")], HERE, CLASSES)
    assert spared.barred == () and spared.proposal == proposal(bad)
    assert sift(proposal(bad), [entry("recipe:prefetch")], HERE, CLASSES).proposal is None


def test_single_values_leave_a_window_and_a_change_without_values_goes() -> None:
    wide = change("tile", Knob(name="BM", window=(8, 16, 32), value=16))
    found = sift(proposal(wide), [entry("knob:BM=16..64")], HERE, CLASSES)
    assert found.proposal is not None and [b.what for b in found.barred] == ["values"]
    assert found.proposal.changes[0].knobs == (Knob(name="BM", window=(8,), value=8),)
    assert sift(proposal(wide), [entry("knob:BM")], HERE, CLASSES).proposal is None
    assert sift(proposal(wide), [entry("knob:BM=64")], HERE, CLASSES).barred == ()
    assert sift(proposal(wide), [entry("knob:BM=16", "recipe:other")], HERE, CLASSES).barred == ()


def test_of_two_knobs_that_are_bad_together_neither_value_is_bad_alone() -> None:
    both = change("tile", Knob(name="BM", window=(8, 16), value=8), Knob(name="BN", window=(8, 16), value=8))
    pair = entry("knob:BM=16", "knob:BN=16")
    assert sift(proposal(both), [pair], HERE, CLASSES).barred == ()
    text = "#ifndef BM\n#define BM {}\n#endif\n#ifndef BN\n#define BN 16\n#endif\n"
    assert forbids(pair, kernel(text.format(16)), both) and not forbids(pair, kernel(text.format(8)), both)


@pytest.mark.parametrize("text", ["", "BM", "knob:", "knob:BM=a", "knob:BM=1..", "word:x", "code:"])
def test_a_feature_that_is_none_is_told_the_forms(text: str) -> None:
    with pytest.raises(ValueError, match="recipe:NAME"):
        read_feature(text)


@pytest.mark.parametrize(
    "bad", [{"features": ()}, {"reason": " "}, {"evidence": ""}, {"expires": "soon"}, {"who": "x"}]
)
def test_an_entry_without_sense_is_refused(bad: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        NoGo.model_validate({**entry("flag:-O3").model_dump(), **bad})


def test_an_entry_ends_on_its_date() -> None:
    until = entry("flag:-O3", expires="2026-06-01")
    assert not until.expired(date(2026, 5, 31)) and until.expired(date(2026, 6, 1))
    assert not entry("flag:-O3").expired(date(2999, 1, 1))
