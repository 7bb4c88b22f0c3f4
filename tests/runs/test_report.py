"""The report is one file that needs nothing else, escapes what a model wrote, and shows every figure with its kind."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import flow_kit as kit
import pytest

from kernelcrew.runs.journal import read_steps
from kernelcrew.runs.nouns import RoundRecord, RunRecord, Step
from kernelcrew.runs.report import diff_lines, gather, headline, render

VOID = {"meta", "br", "hr", "img", "input", "link", "path", "rect", "line", "circle", "polyline", "use"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> kit.Finished:
    folder = tmp_path_factory.mktemp("report")
    kit.share_builds(tmp_path_factory.getbasetemp(), folder / "work")
    with pytest.MonkeyPatch.context() as patch:
        kit.simulate(patch)
        return kit.run(folder / "work", kit.small_operator(folder / "reduction"))


class Tree(HTMLParser):
    """Checks nesting, and collects text, tags and attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.words: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def parsed(text: str) -> Tree:
    tree = Tree()
    tree.feed(text)
    return tree


def test_it_is_well_formed_and_loads_nothing(finished: kit.Finished) -> None:
    tree = parsed(Path(finished.record.report).read_text())
    assert [t for t in tree.open if t not in ("html", "body", "p", "li", "tr", "td", "th")] == []
    names = {tag for tag, _ in tree.tags}
    assert "svg" in names
    assert not names & {"script", "iframe", "object", "embed", "link"}
    for tag, attributes in tree.tags:
        for name in ("src", "href", "xlink:href", "poster", "srcset"):
            value = attributes.get(name) or ""
            assert not value or value.startswith(("#", "data:")), (tag, value)


def test_it_tells_changes_figures_costs_and_the_lock(finished: kit.Finished) -> None:
    text = " ".join(" ".join(parsed(Path(finished.record.report).read_text()).words).split())
    best = finished.record.rounds[0].judged[0]
    commit = finished.record.rounds[0].settled[0].commits[-1]
    lock = finished.step("start")["lock"]
    parts = (commit[:12], finished.record.platform, lock["operator_hash"], lock["packages"]["numpy"])
    for part in (*best.changes, *parts):
        assert part in text, part
    for change in best.trial.proposal.changes:
        assert change.why[:60] in text
    for shape in finished.record.baseline.profile.shapes:
        assert shape.shape in text
    for cost in finished.record.costs:
        assert cost.stage in text
    assert "remarks" in text
    assert "flags" in text


def test_what_a_model_wrote_is_text_and_never_markup(finished: kit.Finished) -> None:
    evil = "<script>alert(1)</script><img src=x onerror=alert(2)>"
    steps = []
    for step in finished.steps:
        payload = step.payload
        if step.step == "r1":
            record = RoundRecord.model_validate(payload)
            one = record.judged[0].model_copy(update={"title": evil})
            changed = record.model_copy(update={"judged": (one, *record.judged[1:]), "note": evil})
            payload = changed.model_dump(mode="json")
        steps.append(step.model_copy(update={"payload": payload}))
    text = render(steps)
    tree = parsed(text)
    assert "&lt;script&gt;" in text
    assert not any(tag == "script" or "onerror" in attributes for tag, attributes in tree.tags)


def not_adopted(finished: kit.Finished) -> list[Step]:
    """The same run as if its budget had ended after the screens."""
    steps = []
    for step in finished.steps:
        payload = step.payload
        if step.step in ("r1", "end"):
            record = RoundRecord.model_validate(payload if step.step == "r1" else payload["rounds"][0])
            judged = tuple(
                one.model_copy(
                    update={
                        "confirmation": None,
                        "ablation": None,
                        "decision": one.decision.model_copy(update={"action": "inconclusive", "reason": "no time"}),
                    }
                )
                for one in record.judged
            )
            told = record.model_copy(update={"judged": judged, "settled": ()}).model_dump(mode="json")
            payload = told if step.step == "r1" else {
                **payload, "rounds": [told], "final_timing": None, "final_over_start": None,
                "final": payload["baseline"]["start"],
            }  # fmt: skip
        if step.kind != "Profile" or not step.step.startswith("r1"):
            steps.append(step.model_copy(update={"payload": payload}))
    return steps


def test_what_was_only_screened_is_shown_and_labelled_so(finished: kit.Finished) -> None:
    steps = not_adopted(finished)
    text = " ".join(" ".join(parsed(render(steps)).words).split())
    assert "nothing was adopted: the incumbent stays (the best, r1p" in text
    assert text.count("not confirmed") >= 4
    assert "nothing new was measured" not in text
    assert "Nothing was adopted: the best that was only screened, shape by shape" in text
    assert "decides nothing, so it gives no answers" in text
    adopted = " ".join(" ".join(parsed(render(finished.steps)).words).split())
    assert "Ratio over the start kernel, shape by shape" in adopted
    assert "not confirmed" not in headline(gather(finished.steps))


def test_a_screen_has_no_answers_and_no_evidence_and_a_confirmation_has_both(finished: kit.Finished) -> None:
    screened = render(not_adopted(finished))
    assert "screen timing" in screened
    assert "tested: faster" not in screened
    assert "tested: not slower" not in screened
    confirmed = render(finished.steps)
    assert confirmed.count("<th>tested: faster</th>") == confirmed.count("<th>tested: not slower</th>") == sum(
        one.confirmation is not None for one in finished.record.rounds[0].judged
    )


def test_every_bottleneck_shows_its_grade_and_no_model_is_paid_for_computing(finished: kit.Finished) -> None:
    text = render(finished.steps)
    summary = finished.record.rounds[0].summary
    assert summary is not None
    assert text.count(f"<td>{summary.grade}</td>") == len(summary.bottlenecks)
    assert "no model was asked" in text
    assert "USD" not in text


def test_each_shape_is_held_against_the_ceiling_that_binds_it(finished: kit.Finished) -> None:
    text = render(finished.steps)
    for shape in finished.record.baseline.profile.shapes:
        assert f'<div class="who mono">{shape.shape}</div>' in text
        assert f"<b>{100 * shape.share:.0f} &rarr; " in text


def test_every_prefix_of_a_journal_can_be_told(finished: kit.Finished) -> None:
    for length in range(1, len(finished.steps) + 1):
        text = render(finished.steps[:length])
        assert finished.record.run in text
        assert ("unfinished" in headline(gather(finished.steps[:length]))) == (length < len(finished.steps))


def test_a_kernel_that_was_not_profiled_after_adoption_shows_no_new_figures(finished: kit.Finished) -> None:
    without = [s for s in finished.steps if s.step != "r1.profile"]
    assert gather(finished.steps).profile is not None
    assert gather(without).profile is None
    assert finished.record.run in render(without)


def test_the_diff_shows_added_and_removed_lines(finished: kit.Finished) -> None:
    lines = diff_lines(finished.record.baseline.start, finished.record.final)
    kinds = {kind for kind, _ in lines}
    assert {"add", "del", "hunk", "same"} <= kinds
    assert any(kind == "add" and "vector_accumulators:" in text for kind, text in lines)
    assert diff_lines(finished.record.final, finished.record.final) == []


def test_the_record_of_the_end_is_the_one_that_was_returned(finished: kit.Finished) -> None:
    kept = next(s for s in read_steps(finished.folder) if s.step == "end")
    assert RunRecord.model_validate(kept.payload) == finished.record
