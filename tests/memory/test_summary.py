"""Summaries stay under 400 tokens and keep what decides; records carry what the guard needs."""

from __future__ import annotations

import pytest

from kernelcrew.memory.nouns import Findings
from kernelcrew.memory.summary import fates, rationales, summarise, tried_patch
from kernelcrew.memory.tokens import count
from kernelcrew.tools.nouns import Decision, Verdict

NOTHING_WON = Decision(action="rollback", gate="", reason="no class is faster by the margin of 1.0 %")


def test_a_summary_says_change_figures_conclusion_and_conditions(build):
    proposal = build.proposal(build.change(knobs=(build.knob("LANES", 8, 4, 8, 16),)))
    findings = Findings(
        decision=NOTHING_WON, timing=build.timing(main=1.004, short=0.95), hypotheses={"a": "refuted: time 0.99"}
    )
    text = summarise(proposal, findings, build.conditions())
    change = ("multi_accumulator on reduction", "LANES=8 of 4/8/16")
    figures = ("main 1.004 [0.994, 1.014] not slower", "short 0.950", "worst shape rows=1,n=2")
    conclusion = ("rolled back", "margin of 1.0 %", "a refuted")
    for piece in (*change, *figures, *conclusion, "gcc 12.2", "01234567", "contract 1"):
        assert piece in text, piece


@pytest.mark.parametrize("size", [1, 40, 4000])
def test_no_summary_exceeds_400_tokens_and_a_cut_one_keeps_every_part(build, size):
    long = " ".join(f"because{i} the ε-chain µ{i} waits" for i in range(size))
    changes = [build.change(f"c{i}", why=long, knobs=(build.knob("LANES", 8, *range(size)),)) for i in range(5)]
    findings = Findings(
        decision=Decision(action="rollback", gate="correctness", reason=long),
        timing=build.timing(main=1.0, short=1.0, long=1.0, tail=0.9),
        hypotheses={f"c{i}": "unread " + long for i in range(5)},
    )
    text = summarise(build.proposal(*changes, title=long), findings, build.conditions(compiler=f"gcc {long}"))
    assert count(text) <= 400
    heads = ("run1:r1p1", "Change: multi_accumulator", "Figures:", "main 1.000", "Conclusion: rolled back")
    for head in (*heads, "Conditions:"):
        assert head in text, head


def test_what_was_never_timed_says_where_it_stopped(build):
    verdict = Verdict(outcome="reject", stage="build", reason="kernel.c:3: expected ';'")
    findings = Findings(decision=Decision(action="rollback", gate="build", reason="does not compile"), verdict=verdict)
    text = summarise(build.proposal(build.change()), findings, build.conditions())
    assert "none, stopped at build: kernel.c:3" in text and "by the gate build" in text


def test_the_record_carries_what_the_guard_matches(build):
    findings = Findings(
        decision=NOTHING_WON, timing=build.timing(main=0.99), tried_knobs={"LANES": (4, 8)}, candidate="cand",
        hypotheses={"a": "confirmed: 0.5"},
    )
    kept = tried_patch(build.proposal(build.change()), findings, build.conditions())
    assert kept.id == "run1:r1p1" and kept.fates == ("refuted",) and kept.tried_knobs == {"LANES": (4, 8)}
    assert kept.classes == {"main": 0.99} and kept.hypothesis == "confirmed" and kept.candidate == "cand"
    assert kept.features[0]["mechanism"] == "multi_accumulator" and kept.incumbent == "0123456789abcdef"


@pytest.mark.parametrize(
    ("decision", "effects", "expected"),
    [
        ({"action": "rollback"}, {}, ()),
        ({"action": "rollback"}, {"a": {"main": 1.002}, "b": {"main": 1.3, "short": 0.7}}, ("refuted", "open")),
        ({"action": "adopt", "keep": ("a",)}, {}, ("adopted", "open")),
        ({"action": "adopt_when"}, {}, ("adopted", "adopted")),
        ({"action": "split", "drop": ("b",)}, {}, ("open", "refuted")),
        ({"action": "inconclusive"}, {}, ()),
        ({"action": "adjust"}, {}, ()),
    ],
)
def test_fates_follow_decision_and_ablation(build, decision, effects, expected):
    proposal = build.proposal(build.change("a"), build.change("b", mechanism="unroll"))
    assert fates(proposal, Findings(decision=Decision(reason="r", **decision), effects=effects)) == expected


def test_fates_that_are_said_win(build):
    findings = Findings(decision=Decision(action="rollback", reason="r"), fates={"a": "open"})
    assert fates(build.proposal(build.change("a")), findings) == ("open",)


def test_each_change_gets_its_own_reason_with_its_own_figures(build):
    proposal = build.proposal(build.change("a"), build.change("b", mechanism="unroll", why="Fewer branches."))
    findings = Findings(
        decision=Decision(action="adopt", reason="main is faster"), timing=build.timing(main=1.5, tail=1.0),
        effects={"b": {"main": 1.1}}, commit="abc123",
    )
    first, second = rationales(proposal, findings, build.conditions())
    assert (first.id, second.id) == ("run1:r1p1:a", "run1:r1p1:b")
    assert first.classes == {"main": 1.5, "tail": 1.0}
    assert "As part of a set, the figures are the whole set's (confirmed): main 1.500x" in first.evidence
    assert second.classes == {"main": 1.1}
    assert "Its own share of the set (ablation, screen): main 1.100x" in second.evidence
    assert "Fewer branches." in second.text and "adopted" in second.text and second.commit == "abc123"
