"""Which stage a journal step's time counts to."""

from __future__ import annotations

from collections.abc import Sequence

from kernelcrew.runs.nouns import Step

STAGES = {
    "baseline": "baseline",
    "prefix": "read",
    "read": "read",
    "profile": "read",
    "propose": "propose",
    "guard": "propose",
    "queue": "propose",
    "sweep": "propose",
    "write": "write",
    "trial": "trial",
    "tune": "tune",
    "tuned": "tune",
    "ablate": "ablate",
    "pruned": "ablate",
    "split": "ablate",
    "rule": "ablate",
    "confirm": "confirm",
    "review": "review",
    "more_tests": "review",
    "review_again": "review",
    "settle": "settle",
    "trial_ref": "settle",
    "remember": "remember",
    "final": "end",
}
"""By a part of the step's dotted name; the last part that is listed wins."""


def stage_of(step: str) -> str:
    """The stage; '' for steps that only gather others (`baseline`, `r1`, `end`)."""
    parts = step.split(".")
    if len(parts) == 1:
        return ""
    found = [STAGES[p] for p in parts if p in STAGES]
    if not found:
        return ""
    return "baseline" if parts[0] == "baseline" else "confirm" if "confirm" in parts else found[0]


def stage_seconds(steps: Sequence[Step]) -> dict[str, float]:
    """Wall-clock seconds by stage, in the order they were reached. Steps do not nest, so nothing counts twice."""
    seconds: dict[str, float] = {}
    for step in steps:
        stage = stage_of(step.step)
        if stage:
            seconds[stage] = seconds.get(stage, 0.0) + step.seconds
    return seconds


def tool_seconds(steps: Sequence[Step]) -> dict[str, float]:
    """Seconds inside each tool of the bus, over all steps that call tools themselves."""
    seconds: dict[str, float] = {}
    for step in steps:
        if stage_of(step.step):
            for name, spent in step.tool_s.items():
                seconds[name] = seconds.get(name, 0.0) + spent
    return seconds
