"""The autotuner: searches only inside the windows that the proposal names, one knob at a time, in few joint screens.

One pass of coordinate descent: with the best values so far, all values of one knob are built in parallel and screened
in the same blocks; the best is kept when it beats the others by more than the noise. It never decides anything: the
chosen candidate goes through the net again.
"""

from __future__ import annotations

from math import exp, log

from kernelcrew.kernels.nouns import Candidate, Knob, NotApplicable, Patch
from kernelcrew.runs.crew import Crew, Standing
from kernelcrew.runs.nouns import Trial
from kernelcrew.runs.trying import composed, fresh, inspect, screened
from kernelcrew.tools.nouns import Timing
from kernelcrew.tools.workshop import BUILD, BuildArgs, Builds

MAX_SCREENS = 12
"""Configurations screened for one proposal at most."""


def tune(crew: Crew, number: int, standing: Standing, trial: Trial) -> Trial:
    """The trial with the best knob values found inside its windows; unchanged when nothing better was found."""
    knobs = [(c.id, k) for c in trial.proposal.changes for k in c.knobs if len(k.window) > 1]
    if trial.candidate is None or trial.verdict.timing is None or trial.verdict.outcome == "reject" or not knobs:
        return trial
    best, best_score = trial, score(trial.verdict.timing)
    tried: list[tuple[str, float]] = [(_label(trial.patch, knobs), round(best_score, 4))]
    for change, knob in knobs:
        if len(tried) >= MAX_SCREENS or crew.clock.left_s() <= 0:
            break
        crew.say("tune", f"{knob.name} in {list(knob.window)}", round_number=number, candidate=trial.proposal.id)
        for value, candidate, timing in _sweep(crew, number, standing, best, change, knob):
            patch = with_knob(best.patch, change, knob.name, value)
            tried.append((_label(patch, knobs), round(score(timing), 4)))
            if timing.status != "invalid" and score(timing) > best_score * (1 + timing.margin / 2):
                best_score = score(timing)
                best = best.model_copy(update={"patch": patch, "candidate": candidate})
    values = {k.name: edit.knobs[k.name] for _, k in knobs for edit in best.patch.edits if k.name in edit.knobs}
    best = best.model_copy(update={"tuned": values, "tried_values": tuple(tried)})
    if best.candidate == trial.candidate or best.candidate is None:
        return best
    verdict = inspect(crew, f"r{number}.tuned.{trial.proposal.id}", best.candidate, standing.build)
    return best.model_copy(update={"verdict": verdict})


def score(timing: Timing) -> float:
    """Geometric mean of the class ratios: what the autotuner climbs."""
    return exp(sum(log(c.ratio) for c in timing.classes) / len(timing.classes)) if timing.classes else 0.0


def with_knob(patch: Patch, change: str, name: str, value: int) -> Patch:
    """The patch with one knob of one change set."""
    edits = tuple(
        e.model_copy(update={"knobs": {**e.knobs, name: value}}) if e.change == change else e for e in patch.edits
    )
    return patch.model_copy(update={"edits": edits})


def on_edge(trial: Trial) -> tuple[str, ...]:
    """Knobs whose chosen value is the first or last of a window of three or more."""
    knobs = [k for c in trial.proposal.changes for k in c.knobs if len(k.window) > 2]
    return tuple(k.name for k in knobs if trial.tuned.get(k.name) in (min(k.window), max(k.window)))


def _sweep(
    crew: Crew, number: int, standing: Standing, trial: Trial, change: str, knob: Knob
) -> list[tuple[int, Candidate, Timing]]:
    current = next((e.knobs.get(knob.name) for e in trial.patch.edits if e.change == change), None)
    made: list[tuple[int, Candidate]] = []
    for value in knob.window:
        if value == current:
            continue
        candidate = composed(crew, standing, trial.proposal, with_knob(trial.patch, change, knob.name, value))
        if not isinstance(candidate, NotApplicable):
            made.append((value, candidate))
    if not made:
        return []
    step = f"r{number}.tune.{trial.proposal.id}.{knob.name}"
    candidates = tuple(c for _, c in made)
    builds = crew.journal.do(
        f"{step}.build",
        Builds,
        [c.identity for c in candidates],
        lambda: crew.bus.need(BUILD, BuildArgs(candidates=candidates)),
    ).builds
    good = [(v, c, fresh(crew, c, b)) for (v, c), b in zip(made, builds, strict=True) if b.status == "ok"]
    if not good:
        return []
    timings = screened(crew, f"{step}.screen", tuple(b for _, _, b in good), standing.build)
    return [(v, c, t) for (v, c, _), t in zip(good, timings, strict=True)]


def _label(patch: Patch, knobs: list[tuple[str, Knob]]) -> str:
    values = {(e.change, name): value for e in patch.edits for name, value in e.knobs.items()}
    return " ".join(f"{knob.name}={values.get((change, knob.name), knob.value)}" for change, knob in knobs)
