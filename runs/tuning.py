"""The autotuner: searches only inside the windows that the proposal names, a batch of configurations at a time.

A batch is built in parallel and screened in the same blocks. What was screened before in the same circumstances is read
from a cache and not measured again. It never decides anything: the chosen candidate goes through the net again.
"""

from __future__ import annotations

import json
from math import exp, log
from pathlib import Path

from kernelcrew.errors import StoreError
from kernelcrew.kernels.nouns import Candidate, Knob, NotApplicable, Patch, Proposal
from kernelcrew.kernels.recipes import RECIPES
from kernelcrew.record import Record, hash_of
from kernelcrew.runs.crew import Crew, Standing
from kernelcrew.runs.nouns import Judged, Trial
from kernelcrew.runs.trying import composed, fresh, inspect, screened
from kernelcrew.tools.nouns import Timing
from kernelcrew.tools.search import Search, Space, Values
from kernelcrew.tools.workshop import BUILD, BuildArgs, Builds

Found = tuple[Search, list[tuple[Values, float | None]], int]
"""The search, every configuration with its score, and how many were replayed."""
ALLOWANCE = 16
"""Configurations of one proposal at most, the proposal's own among them."""
BATCH = 5
"""Screened together in the same blocks."""
LARGEST = 6
"""Knobs searched at once: more cannot be told apart in so few screens; those of the first changes come first."""


class Known(Record):
    """One screened configuration, as the cache keeps it."""

    values: dict[str, int]
    """Knob to value."""
    score: float | None
    """Overall ratio over the standing kernel; None when it could not be built or run."""
    margin: float
    """Noise margin of that screen."""


class Batch(Record):
    """What one batch gave."""

    known: tuple[Known, ...]
    """One a configuration, in the order asked."""


def tune(crew: Crew, number: int, standing: Standing, trial: Trial) -> Trial:
    """The trial with the best knob values found inside its windows; unchanged when nothing better was found."""
    space = space_of(trial.proposal, trial.patch)
    if trial.candidate is None or trial.verdict.timing is None or trial.verdict.outcome == "reject" or not space.knobs:
        return trial
    search = Search(space, crew.start.seed, ALLOWANCE)
    first = space.first()
    margin = trial.verdict.timing.margin / 2
    search.tell([(first, score(trial.verdict.timing))], margin)
    cache = cache_of(crew, standing, trial)
    tried: list[tuple[Values, float | None]] = [(first, score(trial.verdict.timing))]
    replayed = 0
    batch_s = 0.0
    while asked := search.ask(BATCH):
        step = f"r{number}.tune.{trial.proposal.id}.{len(tried)}"
        # A batch takes about as long as the one before it; the ablation after it takes another.
        if not crew.may(step, crew.clock.reserve_s() + 2 * batch_s):
            break
        began = crew.clock.left_s()
        names = ", ".join(k.name for k in space.knobs)
        crew.say("tune", f"{len(asked)} of {names}", round_number=number, candidate=trial.proposal.id)
        old = crew.journal.do(f"{step}.cached", Batch, asked, lambda asked=asked: _cached(cache, asked))  # type: ignore[misc]
        known = {hash_of(k.values): k for k in old.known}
        new = [v for v in asked if hash_of(v) not in known]
        replayed += len(old.known)
        measured = _measured(crew, step, standing, trial, new).known if new else ()
        _keep(cache, measured)
        known |= {hash_of(k.values): k for k in measured}
        scores = [(v, known[hash_of(v)].score) for v in asked if hash_of(v) in known]
        search.tell(scores, margin)
        tried += scores
        batch_s = began - crew.clock.left_s()
    return _best(crew, number, standing, trial, (search, tried, replayed))


def space_of(proposal: Proposal, patch: Patch) -> Space:
    """The knobs with a choice, at the values they were written with, and what their recipes forbid."""
    written = {name: value for edit in patch.edits for name, value in edit.knobs.items()}
    edits = {e.change: e.recipe for e in patch.edits}
    knobs: list[Knob] = []
    constraints: list[str] = []
    for change in proposal.changes:
        if change.id not in edits:
            continue
        for knob in change.knobs:
            if len(set(knob.window)) > 1 and len(knobs) < LARGEST:
                value = written.get(knob.name, knob.value)
                window = tuple(sorted({*knob.window, value}))
                knobs.append(knob.model_copy(update={"value": value, "window": window}))
        recipe = RECIPES.get(edits[change.id])
        constraints += recipe.constraints if recipe else ()
    return Space(knobs=tuple(knobs), constraints=tuple(dict.fromkeys(constraints)))


def score(timing: Timing) -> float:
    """Geometric mean of the class ratios: what the autotuner climbs."""
    return exp(sum(log(c.ratio) for c in timing.classes) / len(timing.classes)) if timing.classes else 0.0


def with_knobs(patch: Patch, proposal: Proposal, values: Values) -> Patch:
    """The patch with knobs set, each in the edit of the change that has it."""
    owner = {k.name: c.id for c in proposal.changes for k in c.knobs}
    edits = []
    for edit in patch.edits:
        own = {name: value for name, value in values.items() if owner.get(name) == edit.change}
        edits.append(edit.model_copy(update={"knobs": {**edit.knobs, **own}}))
    return patch.model_copy(update={"edits": tuple(edits)})


def merged(searched: dict[str, tuple[int, ...]], judged: list[Judged]) -> dict[str, tuple[int, ...]]:
    """What was searched before, and the values that this round's autotuner measured: a plateau is told to the
    proposer as values that need not be tried again."""
    found = {name: set(values) for name, values in searched.items()}
    for one in judged:
        if one.trial.tuning:
            for text, _ in one.trial.tried_values:
                for name, value in values_of(text).items():
                    found.setdefault(name, set()).add(value)
    return {name: tuple(sorted(values)) for name, values in found.items()}


def on_edge(trial: Trial) -> tuple[str, ...]:
    """Knobs whose chosen value is the first or last of a window of three or more."""
    knobs = [k for c in trial.proposal.changes for k in c.knobs if len(k.window) > 2]
    return tuple(k.name for k in knobs if trial.tuned.get(k.name) in (min(k.window), max(k.window)))


def cache_of(crew: Crew, standing: Standing, trial: Trial) -> Path:
    """The file of scores that hold in these circumstances: machine, compiler, contract, standing kernel, patch."""
    bare = [[e.change, e.recipe, e.blocks, e.add_flags] for e in trial.patch.edits]
    key = hash_of(
        crew.machine.circumstances(),
        crew.machine.toolchain.version,
        crew.operator.contract_hash(),
        standing.candidate.identity,
        bare,
    )
    return crew.settings.home / "cache" / "tuned" / f"{key}.jsonl"


def _best(crew: Crew, number: int, standing: Standing, trial: Trial, found: Found) -> Trial:
    search, tried, replayed = found
    labels = tuple((label(values), round(s, 4)) for values, s in tried if s is not None)
    values = search.best[0] if search.best else {}
    patch = with_knobs(trial.patch, trial.proposal, values)
    update = {"tuned": values, "tried_values": labels, "tuning": search.ending or "time", "replayed": replayed}
    candidate = composed(crew, standing, trial.proposal, patch)
    if isinstance(candidate, NotApplicable) or candidate.identity == _identity(trial.candidate):
        return trial.model_copy(update=update)
    verdict = inspect(crew, f"r{number}.tuned.{trial.proposal.id}", candidate, standing.build)
    return trial.model_copy(update={**update, "patch": patch, "candidate": candidate, "verdict": verdict})


def _identity(candidate: Candidate | None) -> str:
    return candidate.identity if candidate else ""


def _measured(crew: Crew, step: str, standing: Standing, trial: Trial, asked: list[Values]) -> Batch:
    """Build and screen configurations that are in no cache; what cannot be composed or built has no score."""
    made: list[tuple[Values, Candidate]] = []
    for values in asked:
        candidate = composed(crew, standing, trial.proposal, with_knobs(trial.patch, trial.proposal, values))
        if not isinstance(candidate, NotApplicable):
            made.append((values, candidate))
    known = {hash_of(v): Known(values=v, score=None, margin=0.0) for v in asked}
    candidates = tuple(c for _, c in made)
    if candidates:
        identities = [c.identity for c in candidates]
        args = BuildArgs(candidates=candidates)
        builds = crew.journal.do(f"{step}.build", Builds, identities, lambda: crew.bus.need(BUILD, args)).builds
        good = [(v, fresh(crew, c, b)) for (v, c), b in zip(made, builds, strict=True) if b.status == "ok"]
        if good:
            timings = screened(crew, f"{step}.screen", tuple(b for _, b in good), standing.build)
            for (values, _), timing in zip(good, timings, strict=True):
                if timing.status != "invalid" and timing.classes:
                    known[hash_of(values)] = Known(values=values, score=score(timing), margin=timing.margin)
                elif timing.status != "invalid":
                    known.pop(hash_of(values))  # not measured: the time was up, so that nothing is known of it
    return Batch(known=tuple(known[h] for v in asked if (h := hash_of(v)) in known))


def _cached(path: Path, asked: list[Values]) -> Batch:
    """What an earlier search measured of these. Journalled, so that a replay needs no cache."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return Batch(known=())
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"{path}: {error}", fix="remove this file: it holds nothing but measurements") from error
    known = {hash_of(k.values): k for line in lines if (k := _read(line)) is not None}
    return Batch(known=tuple(known[h] for v in asked if (h := hash_of(v)) in known))


def _read(line: str) -> Known | None:
    """One line; None for one that a kill has torn."""
    try:
        return Known.model_validate(json.loads(line))
    except ValueError:
        return None


def _keep(path: Path, measured: tuple[Known, ...]) -> None:
    if not measured:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a", encoding="utf-8") as handle:
            handle.write("".join(known.model_dump_json() + "\n" for known in measured))
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}", fix="free space there or choose another --workdir") from error


def values_of(text: str) -> Values:
    """What `label` was given."""
    return {name: int(value) for name, _, value in (pair.partition("=") for pair in text.split())}


def label(values: Values) -> str:
    """`ACC=4 VEC=16`: how a configuration is shown."""
    return " ".join(f"{name}={value}" for name, value in values.items())
