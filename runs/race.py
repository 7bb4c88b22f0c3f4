"""`kernelcrew bench --search`: the same search by the team, by the team with a shuffled profile, and by Kernel Tuner.

Each search is a process of its own in an empty folder, one after another, stopped at the same budget. Afterwards every
candidate that was anyone's best at some time is measured again, all by one bench, and only that figure counts.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

from pydantic import ValidationError

from kernelcrew import proc
from kernelcrew.errors import BadManifest, HarnessError, MissingTool, StoreError, UnknownName, UserMistake
from kernelcrew.event import Event, Listener
from kernelcrew.kernels.load import is_shipped, load_operator, start_candidate
from kernelcrew.kernels.nouns import Candidate, Operator
from kernelcrew.platforms.detect import detect
from kernelcrew.platforms.nouns import Machine
from kernelcrew.record import Record
from kernelcrew.runs.crew import Clock, Lab
from kernelcrew.runs.journal import read_steps
from kernelcrew.runs.listing import run_folders
from kernelcrew.runs.locks import core_lock
from kernelcrew.runs.race_kt import FOUND, Found, TunerJob, known_strategies
from kernelcrew.runs.race_nouns import SHUFFLED, STRATEGIES, TEAM, TUNER, Job, Race, Score, Trace
from kernelcrew.runs.race_space import LISTED_MOST, composed, space_for
from kernelcrew.runs.race_team import BUILT, TeamJob, read_sources
from kernelcrew.runs.race_trace import Figure, best_so_far, measured_in, screened_in
from kernelcrew.runs.session import Asked, open_lab
from kernelcrew.runs.tuning import score as overall
from kernelcrew.settings import Settings, child_environment, resolve
from kernelcrew.tools.cores import measuring_core
from kernelcrew.tools.nouns import AlphaPlan, Build
from kernelcrew.tools.timing import TOGETHER
from kernelcrew.tools.workshop import BUILD, SCREEN, BuildArgs, ScreenArgs
from kernelcrew.version import VERSION

FILE_BYTES = 1 << 30
"""Largest file of a search: a run keeps its memory and its builds."""
SCORING_S = 6 * 3600.0
"""Measuring again is bounded by the number of candidates, not by a budget."""


class RaceAsked(Record):
    """What the command line asked for."""

    operator: str
    """A shipped operator."""
    seeds: int = 10
    """Seeds 0, 1, ... of every contestant."""
    search_s: float = 120.0
    """Budget of each search in seconds."""
    strategies: tuple[str, ...] = STRATEGIES
    """Kernel Tuner's."""
    lane: tuple[int, int] = (1, 1)
    """Which of how many lanes, from 1: the searches are dealt out in turn."""


def jobs_of(asked: RaceAsked) -> list[Job]:
    """The searches of one lane: seed by seed, so that each lane has all contestants, and the first seeds are whole."""
    contestants = (TEAM, SHUFFLED, *(TUNER + name for name in asked.strategies))
    everyone = [Job(contestant=who, seed=seed) for seed in range(asked.seeds) for who in contestants]
    return everyone[asked.lane[0] - 1 :: asked.lane[1]]


def race(settings: Settings, asked: RaceAsked, listener: Listener) -> tuple[Race, Path]:
    """Do the searches of one lane; the record and its file. Raises MissingTool without Kernel Tuner, UserMistake for
    what cannot be searched."""
    operator = load_operator(asked.operator)
    _check(operator, asked)
    machine = detect(settings.cc)
    space = space_for(operator)
    now = datetime.now(UTC)
    record = Race(
        operator=operator.name,
        platform=machine.platform.id,
        readable=machine.platform.readable,
        search_s=asked.search_s,
        versions=_versions(machine),
        started=now.isoformat(timespec="seconds"),
        space=space.facts(space.thinned(LISTED_MOST)),
        traces=(),
    )
    path = settings.home / "races" / f"{operator.name}-{now:%Y%m%d-%H%M%S}-{asked.lane[0]}of{asked.lane[1]}.json"
    jobs = jobs_of(asked)
    for number, job in enumerate(jobs, 1):
        told = f"search {number} of {len(jobs)}: {job.contestant}, seed {job.seed}, {asked.search_s:g} s"
        listener(Event(stage="bench", message=told))
        trace, candidates = _searched(settings, operator, machine, job, asked.search_s)
        if trace.problem:
            listener(Event(stage="bench", message=f"{job.contestant}: {trace.problem}", status="warn"))
        kept = {p.candidate: candidates[p.candidate] for p in trace.points}
        update = {"traces": (*record.traces, trace), "candidates": {**record.candidates, **kept}}
        record = record.model_copy(update=update)
        save(record, path)
    return record, path


def scored(settings: Settings, record: Race, listener: Listener) -> Race:
    """The same with every candidate measured again over the start, by one bench on this machine. Raises HarnessError
    when no search came to its end."""
    faults = [t.problem for t in record.traces if t.problem]
    if faults and len(faults) == len(record.traces):
        what = f"not one of {len(faults)} searches came to its end: {faults[0]}"
        raise HarnessError(what, fix="mend that and search again; kernelcrew doctor says what this machine lacks")
    operator = load_operator(record.operator)
    start = start_candidate(operator)
    plan = AlphaPlan(confirmations=1, classes=len(operator.classes()))
    lab = open_lab(settings, operator, "c", Clock(budget_s=SCORING_S), plan, listener)
    try:
        names = [name for name in record.candidates if name != start.identity]
        lab.say("bench", f"measure {len(names)} candidates again, side by side")
        (base,) = lab.bus.need(BUILD, BuildArgs(candidates=(start,))).builds
        scores = {start.identity: Score(ratio=1.0)}
        for first in range(0, len(names), TOGETHER):
            group = tuple(record.candidates[name] for name in names[first : first + TOGETHER])
            scores |= _scores(lab, group, base)
            lab.say("bench", f"{min(first + TOGETHER, len(names))} of {len(names)} measured again")
    finally:
        lab.close()
    return record.model_copy(update={"scores": scores})


def joined(records: Sequence[Race]) -> Race:
    """Lanes of one race as one record. Raises UserMistake when they do not belong together."""
    first = records[0]
    for other in records[1:]:
        for name in ("operator", "platform", "search_s", "versions", "space"):
            if getattr(other, name) != getattr(first, name):
                what = f"the records differ in {name}: {getattr(first, name)} and {getattr(other, name)}"
                raise UserMistake(what, fix="join lanes of one race, made with the same options on one machine")
    traces = [t for r in records for t in r.traces]
    twice = {(t.job.contestant, t.job.seed) for t in traces}
    if len(twice) < len(traces):
        raise UserMistake("the same search stands in two of the records", fix="name each lane's file once")
    if len(records) == 1:
        return first
    candidates = {name: c for r in records for name, c in r.candidates.items()}
    traces.sort(key=lambda t: (t.job.seed, t.job.contestant))
    return first.model_copy(update={"traces": tuple(traces), "candidates": candidates, "scores": {}})


def save(record: Race, path: Path) -> None:
    """Write a record. Raises StoreError when the disk refuses."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".part")
        partial.write_text(record.model_dump_json(), encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise StoreError(f"{path}: {error.strerror}", fix="free space there or choose another --workdir") from error


def load(path: Path) -> Race:
    """A record from its file. Raises UserMistake or BadManifest."""
    try:
        return Race.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        what = f"--from {path}: {error.strerror}"
        raise UserMistake(what, fix="name a file that `bench --search` has written") from error
    except (ValidationError, ValueError) as error:
        fix = "name a file that this version's `bench --search` has written"
        raise BadManifest(str(path), "not a record of searches", fix=fix) from error


def _check(operator: Operator, asked: RaceAsked) -> None:
    if not is_shipped(operator):
        what = f"{operator.name} is an operator of your own, and a search would leave its branches in your repository"
        raise UserMistake(what, fix="search a shipped operator")
    if importlib.util.find_spec("kernel_tuner") is None:
        fix = "pip install 'kernelcrew[bench]', or in a checkout: .venv/bin/pip install -e '.[bench]'"
        raise MissingTool("Kernel Tuner, which `bench --search` is held against, is not installed", fix=fix)
    known = known_strategies()
    if unknown := next((name for name in asked.strategies if name not in known), None):
        raise UnknownName("strategy of Kernel Tuner", unknown, known)
    lane, lanes = asked.lane
    if not 1 <= lane <= lanes:
        raise UserMistake(f"--lane {lane}/{lanes}: there is no such lane", fix="for instance --lane 1/4, 2/4, 3/4, 4/4")


def _versions(machine: Machine) -> dict[str, str]:
    tool = machine.toolchain
    tuner = metadata.version("kernel-tuner")
    return {"kernelcrew": VERSION, "Kernel Tuner": tuner, "compiler": f"{tool.name} {tool.version} {tool.target}"}


def _searched(
    settings: Settings, operator: Operator, machine: Machine, job: Job, search_s: float
) -> tuple[Trace, dict[str, Candidate]]:
    """One search in a fresh folder, which is removed afterwards; what it found and the sources."""
    core = measuring_core(settings)
    with tempfile.TemporaryDirectory(prefix="kernelcrew-search-") as name:
        folder = Path(name)
        if job.contestant.startswith(TUNER):
            figures, candidates, done = _tuner(folder, operator, (job, machine, core), search_s)
        else:
            figures, candidates, done = _team(settings, folder, operator, job, (core, search_s))
    stopped = done.status in ("ok", "timeout")
    words = (done.err.strip().splitlines() or [done.status])[-1]
    trace = Trace(
        job=job,
        core=core,
        points=best_so_far(figures, search_s),
        measured=len({identity for _, identity, _ in figures}),
        seconds=round(done.seconds, 2),
        problem="" if stopped else words[:300],
    )
    return trace, candidates


Outcome = tuple[list[Figure], dict[str, Candidate], proc.ProcResult]


def _tuner(folder: Path, operator: Operator, what: tuple[Job, Machine, int | None], search_s: float) -> Outcome:
    job, machine, core = what
    compiler = shutil.which(machine.toolchain.path) or machine.toolchain.path
    with core_lock(core)():
        asked = TunerJob(
            operator=operator.name,
            backend="c",
            strategy=job.contestant.removeprefix(TUNER),
            seed=job.seed,
            core=core,
            toolchain=machine.toolchain.model_copy(update={"path": compiler}),
            began=time.time(),
            search_s=search_s,
        )
        done = _child("race_kt", folder, asked, {}, search_s)
    space, start = space_for(operator), start_candidate(operator)
    written = folder / FOUND
    lines = written.read_text(encoding="utf-8").splitlines(keepends=True) if written.exists() else []
    configs = {Found.model_validate(json.loads(line)).config for line in lines if line.endswith("\n")}
    made = {config: composed(operator, start, space, config) for config in configs}
    figures = measured_in(lines, {config: c.identity for config, c in made.items()})
    return figures, {c.identity: c for c in made.values()}, done


def _team(settings: Settings, folder: Path, operator: Operator, job: Job, limits: tuple[int | None, float]) -> Outcome:
    core, search_s = limits
    workdir = folder / "work"
    workdir.mkdir()
    asked = Asked(
        operator=operator.name,
        seed=job.seed,
        budget_min=search_s / 60,
        shuffled=job.seed if job.contestant == SHUFFLED else None,
    )
    ours = {"CC": settings.cc, "SANDBOX": settings.sandbox, "EMBEDDER": settings.embedder}
    if core is not None:
        ours["CORE"] = str(core)
    environment = {f"KERNELCREW_{name}": value for name, value in ours.items()}
    began = time.time()
    done = _child("race_team", folder, TeamJob(asked=asked, workdir=workdir), environment, search_s)
    runs = run_folders(resolve(workdir))
    figures = screened_in(read_steps(runs[-1]), began) if runs else []
    return figures, read_sources(folder / BUILT), done


def _child(module: str, folder: Path, job: Record, extra: dict[str, str], search_s: float) -> proc.ProcResult:
    """Run a program of this package, from wherever this process has it, on its job; at the end of the budget it is
    stopped with all that it started."""
    (folder / "job.json").write_text(job.model_dump_json(), encoding="utf-8")
    argv = [sys.executable, "-P", "-m", f"kernelcrew.runs.{module}", str(folder / "job.json")]
    limits = proc.Limits(time_s=search_s, output_bytes=FILE_BYTES)
    ours = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    return proc.run(argv, cwd=folder, env={**child_environment(), **ours, **extra}, limits=limits)


def _scores(lab: Lab, group: tuple[Candidate, ...], base: Build) -> dict[str, Score]:
    builds = lab.bus.need(BUILD, BuildArgs(candidates=group)).builds
    pairs = list(zip((c.identity for c in group), builds, strict=True))
    found = {name: Score(ratio=None, why=f"not built: {build.stage}") for name, build in pairs if build.status != "ok"}
    good = [(name, build) for name, build in pairs if build.status == "ok"]
    if good:
        args = ScreenArgs(candidates=tuple(b for _, b in good), baseline=base)
        for (name, _), timing in zip(good, lab.bus.need(SCREEN, args).timings, strict=True):
            right = timing.status != "invalid" and bool(timing.classes)
            found[name] = Score(ratio=overall(timing)) if right else Score(ratio=None, why=timing.reason)
    return found
