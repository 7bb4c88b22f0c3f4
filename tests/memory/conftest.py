"""Builders of the nouns that the tests of this room need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from kernelcrew.kernels.nouns import Change, Expectation, Knob, Proposal
from kernelcrew.memory.nouns import Conditions, Rationale, Situation, TriedPatch
from kernelcrew.tools.nouns import ClassTiming, ShapeTiming, Timing

HERE = "cpu-amd-25-17"


def _change(id_: str = "a", *, mechanism: str = "multi_accumulator", **over: Any) -> Change:
    values: dict[str, Any] = {
        "id": id_,
        "mechanism": mechanism,
        "target": "reduction",
        "expects": Expectation(figure="time", shape_class="main", factor=0.5),
        "gain": 2.0,
        "why": "One chain of additions waits for its own latency; independent accumulators fill it.",
    }
    return Change(**{**values, **over})


def _knob(name: str, value: int, *window: int) -> Knob:
    return Knob(name=name, value=value, window=window or (value,))


def _proposal(*changes: Change, id_: str = "r1p1", title: str = "Hide the latency of the sum") -> Proposal:
    return Proposal(id=id_, title=title, direction="More sums in flight.", bottlenecks=("b1",), changes=changes)


def _timing(**ratios: float) -> Timing:
    answers = {n: "faster" if r > 1.01 else "slower" if r < 0.98 else "not slower" for n, r in ratios.items()}
    return Timing.model_validate(
        {
            "grade": "confirmed",
            "status": "decided",
            "baseline": "base",
            "candidate": "cand",
            "margin": 0.01,
            "aa_sd": 0.002,
            "classes": [
                ClassTiming(shape_class=n, answer=answers[n], ratio=r, low=r - 0.01, high=r + 0.01)
                for n, r in ratios.items()
            ],
            "shapes": [
                ShapeTiming(
                    shape=f"rows=1,n={i}", shape_class=n, ratio=r, low=r - 0.02, high=r + 0.02, candidate_us=1.0,
                    baseline_us=r, answer="not slower",
                )
                for i, (n, r) in enumerate(ratios.items(), 1)
            ],
            "blocks": 12,
        }
    )


def _tried(*changes: Change, id_: str = "run1:r1p1", **over: Any) -> TriedPatch:
    values: dict[str, Any] = {
        "id": id_,
        "run": id_.partition(":")[0],
        "operator": "reduction",
        "operator_version": 1,
        "backend": "c",
        "platform": HERE,
        "circumstances": "same",
        "incumbent": "start",
        "features": tuple(c.features("reduction", "c") for c in changes),
        "whys": tuple(c.why for c in changes),
        "decision": "rollback",
        "classes": {"main": 0.97},
        "hypothesis": "refuted",
        "text": f"{id_} {' and '.join(c.mechanism for c in changes)} was tried on the sum.",
        "created": "2025-01-01T00:00:00Z",
    }
    return TriedPatch(**{**values, **over})


def _rationale(id_: str, text: str, **over: Any) -> Rationale:
    values: dict[str, Any] = {
        "id": id_,
        "run": "run1",
        "operator": "reduction",
        "backend": "c",
        "platform": HERE,
        "mechanism": "idea",
        "decision": "adopt",
        "shape_classes": ("main",),
        "classes": {"main": 1.2},
        "why": text,
        "evidence": "main 1.2x",
        "text": text,
        "created": "2025-01-01T00:00:00Z",
    }
    return Rationale(**{**values, **over})


def _situation(**over: Any) -> Situation:
    values: dict[str, Any] = {
        "operator": "reduction",
        "operator_version": 1,
        "backend": "c",
        "platform": HERE,
        "circumstances": "same",
        "lineage": frozenset({"start"}),
    }
    return Situation(**{**values, **over})


def _conditions(**over: Any) -> Conditions:
    values: dict[str, Any] = {
        "run": "run1",
        "operator": "reduction",
        "operator_version": 1,
        "backend": "c",
        "platform": HERE,
        "compiler": "gcc 12.2",
        "circumstances": "same",
        "incumbent": "0123456789abcdef",
        "created": "2025-01-01T00:00:00Z",
    }
    return Conditions(**{**values, **over})


class Build:
    """Each factory by its noun's name."""

    here = HERE
    change: Callable[..., Change] = staticmethod(_change)
    knob: Callable[..., Knob] = staticmethod(_knob)
    proposal: Callable[..., Proposal] = staticmethod(_proposal)
    timing: Callable[..., Timing] = staticmethod(_timing)
    tried: Callable[..., TriedPatch] = staticmethod(_tried)
    rationale: Callable[..., Rationale] = staticmethod(_rationale)
    situation: Callable[..., Situation] = staticmethod(_situation)
    conditions: Callable[..., Conditions] = staticmethod(_conditions)


@pytest.fixture
def build() -> Build:
    return Build()
