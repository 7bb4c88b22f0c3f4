"""The repeat guard, each refusal paired with the neighbouring case that must pass."""

from __future__ import annotations

import pytest

from kernelcrew.memory.repeat import already_in, guard, lineage_of, refuted, same_code

FREE_WHY = "Keep eight partial sums so that additions do not wait for each other."


def test_a_rolled_back_change_is_refuted_with_its_case(build):
    found = refuted(build.proposal(build.change()), build.situation(), [build.tried(build.change())])
    assert [(r.change, r.tried) for r in found] == [("a", "run1:r1p1")]
    assert "rolled back" in found[0].reason and "main 0.970" in found[0].reason


@pytest.mark.parametrize("decision", ["inconclusive", "adjust", "split"])
def test_only_a_rollback_refutes(build, decision):
    tried = build.tried(build.change(), decision=decision)
    assert refuted(build.proposal(build.change()), build.situation(), [tried]) == []


@pytest.mark.parametrize("other", [{"mechanism": "unroll"}, {"target": "loop:12"}])
def test_another_mechanism_or_target_is_another_idea(build, other):
    proposal = build.proposal(build.change(**other))
    assert refuted(proposal, build.situation(), [build.tried(build.change())]) == []


@pytest.mark.parametrize(
    ("over", "word"),
    [
        ({"circumstances": "gcc 13"}, "compiler"),
        ({"platform": "cpu-intel-6-143"}, "cpu-amd-25-17"),
        ({"operator_version": 2}, "contract"),
        ({"lineage": frozenset({"edited"})}, "did not grow from"),
    ],
)
def test_changed_circumstances_open_it_again_and_say_so(build, over, word):
    answer = guard(build.proposal(build.change()), build.situation(**over), [build.tried(build.change())])
    assert [c.id for c in answer.keep] == ["a"] and answer.refuted == ()
    assert word in answer.reopened[0].reason


def test_another_operator_or_backend_says_nothing(build):
    tried = [build.tried(build.change(), operator="gemm"), build.tried(build.change(), backend="cuda")]
    answer = guard(build.proposal(build.change()), build.situation(), tried)
    assert len(answer.keep) == 1 and answer.refuted == () and answer.reopened == ()


def test_refuted_on_the_start_stays_refuted_on_what_grew_from_it(build):
    other = build.change("b", mechanism="unroll")
    first = [
        build.tried(build.change(), id_="run1:r1p1"),
        build.tried(other, id_="run1:r1p2", decision="adopt", result="k1"),
        build.tried(build.change(mechanism="prefetch"), id_="run1:r2p1", incumbent="k1"),
    ]
    line = lineage_of("k1", first, "start")
    assert line == {"start", "k1"}
    prefetch, new = build.change("p", mechanism="prefetch"), build.change("n", mechanism="new")
    proposal = build.proposal(build.change("a"), prefetch, new)
    answer = guard(proposal, build.situation(lineage=line), first)
    assert {r.change for r in answer.refuted} == {"a", "p"} and [c.id for c in answer.keep] == ["n"]
    back = guard(proposal, build.situation(lineage=lineage_of("start", first)), first)
    assert {r.change for r in back.refuted} == {"a"}, "what was tried on k1 is open again on the start"


def test_lineage_follows_adoptions_backwards_and_ends_on_a_cycle(build):
    steps = [
        build.tried(build.change(), decision="adopt", incumbent="a", result="b"),
        build.tried(build.change(), decision="adopt", incumbent="b", result="c"),
        build.tried(build.change(), decision="adopt", incumbent="c", result="a"),
        build.tried(build.change(), decision="adopt", incumbent="x", result="y"),
    ]
    assert lineage_of("c", steps) == {"a", "b", "c"}
    assert lineage_of("", steps) == frozenset()


def test_an_adopted_change_is_already_in(build):
    tried = [build.tried(build.change(), decision="adopt", result="k1")]
    answer = guard(build.proposal(build.change()), build.situation(lineage=frozenset({"start", "k1"})), tried)
    assert answer.keep == () and answer.refuted == ()
    assert "already in" in answer.already_in[0].reason
    elsewhere = build.situation(lineage=frozenset({"start"}))
    assert already_in(build.proposal(build.change()), elsewhere, tried) == []


class TestKnobs:
    def test_the_same_value_is_refuted_and_another_is_not(self, build):
        tried = [build.tried(build.change(knobs=(build.knob("LANES", 8),)))]
        same = build.proposal(build.change(knobs=(build.knob("LANES", 8, 4, 8, 16),)))
        new = build.proposal(build.change(knobs=(build.knob("LANES", 16),)))
        assert len(refuted(same, build.situation(), tried)) == 1
        assert refuted(new, build.situation(), tried) == []

    def test_a_window_is_refuted_when_all_its_values_were_screened(self, build):
        first = build.change(knobs=(build.knob("LANES", 8, 4, 8, 16),))
        tried = [build.tried(first, tried_knobs={"LANES": (4, 8, 16)})]
        inside = build.proposal(build.change(knobs=(build.knob("LANES", 4, 4, 16),)))
        beyond = build.proposal(build.change(knobs=(build.knob("LANES", 4, 4, 32),)))
        assert len(refuted(inside, build.situation(), tried)) == 1
        assert refuted(beyond, build.situation(), tried) == []

    def test_two_tries_together_cover_a_window(self, build):
        tried = [
            build.tried(build.change(knobs=(build.knob("LANES", 4),)), id_="run1:r1p1"),
            build.tried(build.change(knobs=(build.knob("LANES", 8),)), id_="run1:r2p1"),
        ]
        proposal = build.proposal(build.change(knobs=(build.knob("LANES", 4, 4, 8),)))
        assert len(refuted(proposal, build.situation(), tried)) == 1
        proposal = build.proposal(build.change(knobs=(build.knob("LANES", 16, 4, 8, 16),)))
        assert refuted(proposal, build.situation(), tried) == []

    def test_two_knobs_must_have_been_tried_together(self, build):
        tried = [build.tried(build.change(knobs=(build.knob("LANES", 8), build.knob("AHEAD", 2))))]
        same = build.proposal(build.change(knobs=(build.knob("AHEAD", 2), build.knob("LANES", 8))))
        other = build.proposal(build.change(knobs=(build.knob("AHEAD", 4), build.knob("LANES", 8))))
        assert len(refuted(same, build.situation(), tried)) == 1
        assert refuted(other, build.situation(), tried) == []


class TestSets:
    def test_a_set_refutes_itself_and_not_its_members(self, build):
        a, b, c = build.change("a"), build.change("b", mechanism="unroll"), build.change("c", mechanism="prefetch")
        tried = [build.tried(a, b)]
        assert {r.change for r in refuted(build.proposal(b, a), build.situation(), tried)} == {"a", "b"}
        for allowed in ((a,), (b,), (a, b, c)):
            assert refuted(build.proposal(*allowed), build.situation(), tried) == []

    def test_the_ablation_refutes_a_member(self, build):
        a, b = build.change("a"), build.change("b", mechanism="unroll")
        tried = [build.tried(a, b, fates=("refuted", "open"))]
        assert [r.change for r in refuted(build.proposal(a), build.situation(), tried)] == ["a"]
        assert refuted(build.proposal(b), build.situation(), tried) == []

    def test_what_remains_is_held_against_sets_again(self, build):
        a, b, c = build.change("a"), build.change("b", mechanism="unroll"), build.change("c", mechanism="prefetch")
        tried = [build.tried(a, b), build.tried(c, id_="run1:r1p2")]
        answer = guard(build.proposal(a, b, c), build.situation(), tried)
        assert answer.keep == () and {r.change for r in answer.refuted} == {"a", "b", "c"}

    def test_what_needs_a_refuted_change_falls_with_it(self, build):
        a = build.change("a")
        b = build.change("b", mechanism="unroll", requires=("a",))
        c = build.change("c", mechanism="prefetch", requires=("b",))
        d = build.change("d", mechanism="align")
        answer = guard(build.proposal(c, b, a, d), build.situation(), [build.tried(a)])
        assert [x.id for x in answer.keep] == ["d"]
        assert any(r.reason.startswith("needs a") for r in answer.refuted)

    def test_an_adopted_set_leaves_out_what_was_dropped(self, build):
        a, b = build.change("a"), build.change("b", mechanism="unroll")
        tried = [build.tried(a, b, decision="adopt", fates=("adopted", "open"), result="k1")]
        line = build.situation(lineage=frozenset({"start", "k1"}))
        answer = guard(build.proposal(a, b), line, tried)
        assert [r.change for r in answer.already_in] == ["a"] and [c.id for c in answer.keep] == ["b"]


class TestFree:
    def test_a_free_change_is_known_by_its_reason(self, build):
        tried = [build.tried(build.change(mechanism="free", why=FREE_WHY))]
        again = "Keep eight partial sums, so that the additions do not wait for each other!"
        other = "Ask the compiler to align the rows to 32 bytes before the loop."
        assert len(refuted(build.proposal(build.change(mechanism="free", why=again)), build.situation(), tried)) == 1
        assert refuted(build.proposal(build.change(mechanism="free", why=other)), build.situation(), tried) == []

    def test_code_that_did_not_build_refutes_a_recipe_but_no_idea(self, build):
        free = build.change(mechanism="free", why=FREE_WHY)
        assert refuted(build.proposal(free), build.situation(), [build.tried(free, gate="build")]) == []
        recipe = build.change()
        assert len(refuted(build.proposal(recipe), build.situation(), [build.tried(recipe, gate="build")])) == 1


def test_the_same_code_is_not_judged_twice(build):
    tried = [build.tried(build.change(), candidate="c0de")]
    found = same_code("c0de", build.situation(), tried)
    assert found is not None and found.tried == "run1:r1p1"
    assert same_code("0ther", build.situation(), tried) is None
    assert same_code("", build.situation(), [build.tried(build.change())]) is None
    assert same_code("c0de", build.situation(circumstances="gcc 13"), tried) is None
    open_case = build.tried(build.change(), candidate="c0de", decision="inconclusive")
    assert same_code("c0de", build.situation(), [open_case]) is None
