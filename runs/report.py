"""The report: one self-contained HTML file a run, written from the journal alone (an unfinished run's too)."""

from __future__ import annotations

import difflib
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined, Template

from kernelcrew.errors import StoreError
from kernelcrew.kernels.nouns import Candidate
from kernelcrew.kernels.planfile import to_files
from kernelcrew.record import Record
from kernelcrew.runs.journal import payload_of, read_steps
from kernelcrew.runs.nouns import Baseline, RoundRecord, RunRecord, Start, Step
from kernelcrew.runs.outcome import Seen, best_seen, outcome_of, seen_words
from kernelcrew.runs.permissions import WORDS, Held
from kernelcrew.runs.remembering import fate
from kernelcrew.runs.report_charts import COLOURS, RatioRow, cost_bars, ratio_chart
from kernelcrew.runs.stages import stage_seconds
from kernelcrew.tools.nouns import Profile, ShapeProfile, Timing


class Story(Record):
    """What the template needs, gathered from the steps."""

    start: Start
    """What was asked."""
    baseline: Baseline | None
    """None when the run was killed before."""
    rounds: tuple[RoundRecord, ...]
    """Finished rounds."""
    end: RunRecord | None
    """None while unfinished."""
    profile: Profile | None
    """Of the last adopted kernel, or the baseline's; None when the last adopted one was not profiled any more."""
    adopted: bool
    """Whether the final kernel is not the one the run began with."""


def write_report(folder: Path) -> Path:
    """Write `report.html` into a run's folder and return its path. Raises StoreError."""
    steps = read_steps(folder)
    text = render(steps)
    path = folder / "report.html"
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise StoreError(
            f"{path}: cannot be written ({error.strerror})", fix="free space; `kernelcrew report RUN` writes it again"
        ) from error
    return path


def render(steps: list[Step]) -> str:
    """The HTML text of a run's steps."""
    story = gather(steps)
    seconds = stage_seconds(steps)
    return _template().render(
        story=story,
        start=story.start,
        baseline=story.baseline,
        rounds=[_round(story, r) for r in story.rounds],
        end=story.end,
        ratios=ratio_chart(_ratio_rows(story)),
        seen=_only_seen(story),
        colours=COLOURS,
        shares=_shares(story),
        costs=_costs(story, seconds),
        cost_bars=cost_bars(list(seconds.items())),
        headline=headline(story),
        permission=_permission(steps),
        classes=_classes(story),
        shapes=_shapes(story),
        final_files=to_files(story.end.final) if story.end and story.adopted else {},
    )


@cache
def _template() -> Template:
    """The page's template: compiling it takes longer than filling it in."""
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    source = resources.files("kernelcrew.runs").joinpath("templates", "report.html.j2").read_text(encoding="utf-8")
    return environment.from_string(source)


def gather(steps: list[Step]) -> Story:
    """Typed results out of the steps. Raises StoreError when the run never began."""
    start = payload_of(steps, "start", Start)
    if start is None:
        raise StoreError("this journal holds no start: the run was killed before it began", fix="start a new run")
    baseline = payload_of(steps, "baseline", Baseline)
    rounds: list[RoundRecord] = []
    while (found := payload_of(steps, f"r{len(rounds) + 1}", RoundRecord)) is not None:
        rounds.append(found)
    end = payload_of(steps, "end", RunRecord)
    profiles = [s for s in steps if s.step.endswith(".profile") and s.kind == "Profile"]
    profile = Profile.model_validate(profiles[-1].payload) if profiles else None
    settled = [s.candidate for r in rounds for s in r.settled if s.candidate]
    adopted = bool(settled)
    if profile is not None and settled and profile.candidate != settled[-1].identity:
        profile = None
    return Story(start=start, baseline=baseline, rounds=tuple(rounds), end=end, profile=profile, adopted=adopted)


def headline(story: Story) -> str:
    """One sentence that says how the run ended."""
    if story.end is None:
        return f"unfinished: kernelcrew resume {story.start.run} goes on with it"
    return outcome_of(story.rounds)


def _permission(steps: list[Step]) -> str:
    """The team's level and what it came from last; '' for runs from before levels were journalled."""
    found = payload_of(steps, "permission", Held)
    return f"{WORDS[found.rung]} ({found.why[-1]})" if found else ""


def _classes(story: Story) -> list[dict[str, Any]]:
    """By class: final over start, over the run's incumbent, flags alone."""
    if story.baseline is None:
        return []
    names = list(dict.fromkeys(s.shape_class for s in story.baseline.profile.shapes))
    over_start = story.end.final_over_start if story.end else None
    over_incumbent = story.end.final_timing if story.end else None
    columns = {"start": over_start, "incumbent": over_incumbent, "flags": story.baseline.flags_alone}
    seen = None if story.adopted else best_seen(story.rounds)
    return [
        {"name": n, "seen": seen_words(seen, n) if seen else "", **{k: _of(t, n) for k, t in columns.items()}}
        for n in names
    ]


def _of(timing: Timing | None, name: str) -> Any:
    return next((c for c in timing.classes if c.shape_class == name), None) if timing else None


def _shapes(story: Story) -> list[dict[str, Any]]:
    if story.baseline is None:
        return []
    after = {s.shape: s for s in story.profile.shapes} if story.profile and story.adopted else {}
    return [{"before": s, "after": after.get(s.shape)} for s in story.baseline.profile.shapes]


def _ratio_rows(story: Story) -> list[RatioRow]:
    """Of the final kernel over the start; where none was adopted, of the best that was seen, over the incumbent."""
    seen = _only_seen(story)
    timing = seen.timing if seen else story.end.final_over_start if story.end else None
    if timing is None or story.baseline is None:
        return []
    flags = {s.shape: s.ratio for s in story.baseline.flags_alone.shapes} if story.baseline.flags_alone else {}
    return [
        RatioRow(
            shape=s.shape, shape_class=s.shape_class, ratio=s.ratio, low=s.low, high=s.high, flags=flags.get(s.shape)
        )
        for s in timing.shapes
    ]


def _only_seen(story: Story) -> Seen | None:
    """The best that was measured and not adopted, where nothing was."""
    return None if story.adopted else best_seen(story.rounds)


def _shares(story: Story) -> list[dict[str, Any]]:
    """By shape: how much of the ceiling that binds it was reached, before and after, in percent."""
    if story.baseline is None:
        return []
    after = {s.shape: s.share for s in story.profile.shapes} if story.profile and story.adopted else {}
    return [
        {
            "shape": s.shape,
            "name": s.shape_class,
            "before": 100 * s.share,
            "after": 100 * after[s.shape] if s.shape in after else None,
            "ceiling": _ceiling(s),
        }
        for s in story.baseline.profile.shapes
    ]


def _ceiling(shape: ShapeProfile) -> str:
    """The ceiling whose share is the larger one: `L1 255 GB/s` or `FMA 90 GFLOP/s`."""
    by_flops = shape.gflop_s / shape.peak_gflop_s if shape.peak_gflop_s else 0.0
    by_bytes = shape.gb_s / shape.peak_gb_s if shape.peak_gb_s else 0.0
    if by_flops > by_bytes:
        return f"FMA {shape.peak_gflop_s:.0f} GFLOP/s"
    return f"{shape.level} {shape.peak_gb_s:.0f} GB/s"


def _costs(story: Story, seconds: dict[str, float]) -> list[dict[str, Any]]:
    usage = {c.stage: c.usage for c in story.end.costs} if story.end else {}
    return [{"stage": stage, "seconds": spent, "usage": usage.get(stage)} for stage, spent in seconds.items()]


def _round(story: Story, record: RoundRecord) -> dict[str, Any]:
    before = _standing_before(story, record.number)
    proposals = []
    for one in record.judged:
        candidate = one.trial.candidate
        rows = {r.change: r for r in one.ablation.rows} if one.ablation else {}
        changes = [
            {
                "change": c,
                "fate": fate(one, c.id),
                "row": rows.get(c.id),
                "hypothesis": one.hypotheses.get(c.id, "unread"),
            }
            for c in one.trial.proposal.changes
        ]
        diff = diff_lines(before, candidate) if before and candidate else []
        proposals.append(
            {"judged": one, "changes": changes, "diff": diff, "timing": one.confirmation or one.trial.verdict.timing}
        )
    return {"record": record, "proposals": proposals}


def _standing_before(story: Story, number: int) -> Candidate | None:
    earlier = [s.candidate for r in story.rounds if r.number < number for s in r.settled if s.candidate]
    return earlier[-1] if earlier else (story.baseline.incumbent if story.baseline else None)


def diff_lines(before: Candidate, after: Candidate) -> list[tuple[str, str]]:
    """Unified diff of the files of two candidates: (kind, text) with kind add, del, hunk or same."""
    old, new = to_files(before), to_files(after)
    lines: list[tuple[str, str]] = []
    for name in sorted({*old, *new}):
        for text in difflib.unified_diff(
            old.get(name, "").splitlines(), new.get(name, "").splitlines(), name, name, lineterm=""
        ):
            kind = {"+": "add", "-": "del", "@": "hunk"}.get(text[:1], "same")
            lines.append((kind, text))
    return lines
