"""Composing: edits of a subset re-applied in order from the incumbent, and conflicts that say why."""

from __future__ import annotations

import pytest

from kernelcrew.kernels.compose import compose
from kernelcrew.kernels.nouns import Block, Candidate, Edit, NotApplicable, Operator, Patch, Variant

ZERO = Block(search="float s = 0.0f;", replace="float s = 0.0f; /* start */")
NAMED = Block(search="/* start */", replace="/* the chain begins */")


def patch(*edits: Edit) -> Patch:
    return Patch(proposal="r1p1", edits=edits, author="person:K")


def text_of(made: Candidate | NotApplicable) -> str:
    assert isinstance(made, Candidate), made
    return made.variants[-1].source.text


def test_blocks_are_applied_in_the_patch_s_order_whatever_the_subset_s(start: Candidate) -> None:
    both = patch(Edit(change="a", blocks=(ZERO,)), Edit(change="b", blocks=(NAMED,)))
    made = compose(start, both, ["b", "a"])
    assert "/* the chain begins */" in text_of(made)
    assert isinstance(made, Candidate) and made.changes == ("a", "b") and made.author == "person:K"
    assert "/* start */" in text_of(compose(start, both, ["a"]))
    alone = compose(start, both, ["b"])
    assert isinstance(alone, NotApplicable) and alone.change == "b" and "occurs 0 times" in alone.because
    assert text_of(compose(start, both, [])) == text_of(start)
    assert compose(start, both, None) == made


def test_the_incumbent_stays_as_it_is(start: Candidate) -> None:
    before = start.model_dump()
    compose(start, patch(Edit(change="a", recipe="vector_accumulators")), None)
    assert start.model_dump() == before


@pytest.mark.parametrize(
    ("edit", "because"),
    [
        (Edit(change="a"), "empty"),
        (Edit(change="a", blocks=(Block(search="", replace="x"),)), "is empty"),
        (Edit(change="a", blocks=(Block(search="int", replace="long"),)), "times instead of once"),
        (Edit(change="a", blocks=(Block(search="nowhere", replace="x"),)), "occurs 0 times"),
        (Edit(change="a", blocks=(Block(search="0.0f", replace="0.0f"),)), "changes nothing"),
        (Edit(change="a", recipe="go_faster"), "no recipe 'go_faster'. Known: contract_flags"),
        (Edit(change="a", knobs={"ACC": 4}), "no knob ACC"),
        (Edit(change="a", recipe="small_tail"), "vector_accumulators first"),
        (Edit(change="a", recipe="vector_accumulators", knobs={"VEC": 3}), "VEC=3"),
        (Edit(change="a", recipe="vector_accumulators", knobs={"VEX": 4}), "no knob VEX"),
    ],
)
def test_what_cannot_be_applied_says_why(edit: Edit, because: str, start: Candidate) -> None:
    made = compose(start, patch(edit), None)
    assert isinstance(made, NotApplicable) and made.change == "a" and because in made.because


def test_an_unknown_change_and_an_unknown_operator(start: Candidate, reduction: Operator) -> None:
    made = compose(start, patch(Edit(change="a", recipe="restrict_pointers")), ["z"])
    assert isinstance(made, NotApplicable) and made.change == "z" and "it has a" in made.because
    own = start.model_copy(update={"operator": "mine"})
    lost = compose(own, patch(Edit(change="a", recipe="restrict_pointers")), None)
    assert isinstance(lost, NotApplicable) and "operator is not at hand" in lost.because
    assert "restrict" in text_of(compose(own, patch(Edit(change="a", recipe="restrict_pointers")), None, -1, reduction))


def test_flags_are_added_once(start: Candidate, reduction: Operator) -> None:
    made = compose(start, patch(Edit(change="a", recipe="contract_flags", add_flags=("-funroll-loops",))), None)
    assert isinstance(made, Candidate)
    assert made.variants[-1].plan.flags == (*reduction.backends["c"].contract_flags, "-funroll-loops")
    again = compose(made, patch(Edit(change="a", add_flags=("-funroll-loops",))), None)
    assert isinstance(again, NotApplicable) and "changes nothing" in again.because


def test_knobs_of_an_incumbent_move_where_they_live(start: Candidate) -> None:
    made = compose(start, patch(Edit(change="a", recipe="vector_accumulators")), None)
    assert isinstance(made, Candidate)
    moved = compose(made, patch(Edit(change="k", knobs={"ACC": 8})), None)
    assert "#define ACC 8" in text_of(moved)
    variant = made.variants[-1]
    plan = variant.plan.model_copy(update={"defines": {"ACC": 2}})
    given = made.model_copy(update={"variants": (variant.model_copy(update={"plan": plan}),)})
    moved = compose(given, patch(Edit(change="k", knobs={"ACC": 8})), None)
    assert isinstance(moved, Candidate) and moved.variants[-1].plan.defines == {"ACC": 8}
    assert "#define ACC 4" in text_of(moved)


def test_only_the_named_variant_changes(start: Candidate) -> None:
    plain = start.variants[-1]
    short = Variant(source=plain.source, plan=plain.plan, when="n <= 64")
    two = start.model_copy(update={"variants": (short, plain)})
    edit = patch(Edit(change="a", recipe="restrict_pointers"))
    last, first = compose(two, edit, None), compose(two, edit, None, 0)
    assert isinstance(last, Candidate) and isinstance(first, Candidate)
    assert last.variants[0] == short and "restrict" in last.variants[1].source.text
    assert first.variants[1] == plain and first.variants[0].when == "n <= 64"
