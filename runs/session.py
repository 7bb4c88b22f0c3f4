"""The one place that joins the concrete parts of a run and hands them in."""

from __future__ import annotations

import secrets
from dataclasses import fields
from datetime import UTC, datetime
from math import inf
from pathlib import Path

from kernelcrew.agents.clients import make_client
from kernelcrew.agents.team import Team
from kernelcrew.errors import UnknownName, UserMistake
from kernelcrew.event import Listener
from kernelcrew.kernels.load import load_operator, start_candidate
from kernelcrew.kernels.nouns import Operator
from kernelcrew.kernels.planfile import to_files
from kernelcrew.memory.embed import choose as choose_embedder
from kernelcrew.memory.store import Memory
from kernelcrew.platforms.detect import detect
from kernelcrew.platforms.nouns import Machine
from kernelcrew.platforms.registry import resolve as resolve_platform
from kernelcrew.record import Record
from kernelcrew.runs.crew import Clock, Crew, Lab, Ledger
from kernelcrew.runs.desk import register_role_tools
from kernelcrew.runs.journal import Journal, payload_of, read_steps
from kernelcrew.runs.locking import differences, make_lock
from kernelcrew.runs.locks import core_lock, hold
from kernelcrew.runs.nouns import Start
from kernelcrew.runs.settling import COMMIT, KEEP_TRIAL, CommitArgs, Commits, TrialArgs
from kernelcrew.runs.stages import stage_seconds
from kernelcrew.settings import Settings
from kernelcrew.tools.bus import Bus, Level, budget_wrapper, device_wrapper, ledger_wrapper, permission_wrapper
from kernelcrew.tools.cores import measuring_core
from kernelcrew.tools.git import Repo
from kernelcrew.tools.nouns import AlphaPlan
from kernelcrew.tools.peaks import measure_peaks, with_peaks
from kernelcrew.tools.sandbox import Sandbox, choose
from kernelcrew.tools.workshop import Workshop

CONFIRMATIONS_A_ROUND = 2
"""The best of a round, and one follow-up."""


class Asked(Record):
    """What the command line asked for."""

    operator: str
    """Registry name or folder."""
    backend: str = "c"
    """Backend."""
    platform: str = "auto"
    """Platform name or alias."""
    model: str = "recipes"
    """Model option."""
    base_url: str = ""
    """Model server."""
    rounds: int = 2
    """Rounds at most."""
    budget_min: float = 4.0
    """Minutes at most."""
    seed: int = 0
    """The team's choices."""


def open_run(settings: Settings, asked: Asked, listener: Listener) -> Crew:
    """A new run's crew: nothing has been built or measured yet but the machine's peaks."""
    operator = load_operator(asked.operator)
    _check(operator, asked)
    machine, sandbox = machine_here(settings, asked.platform)
    lock = make_lock(operator, asked.backend, machine, asked.model, asked.seed, sandbox)
    now = datetime.now(UTC)
    run = f"{operator.name}-{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    alpha = AlphaPlan(confirmations=asked.rounds * CONFIRMATIONS_A_ROUND, classes=len(operator.classes()))
    start = Start(
        run=run,
        operator=operator.name,
        operator_path=asked.operator,
        backend=asked.backend,
        platform=machine.platform.id,
        model=asked.model,
        base_url=asked.base_url,
        rounds=asked.rounds,
        budget_min=asked.budget_min,
        seed=asked.seed,
        alpha=alpha,
        lock=lock,
        started=now.isoformat(timespec="seconds"),
    )
    crew = _join(settings, operator, machine, sandbox, start, listener)
    crew.journal.do("start", Start, run, lambda: start)
    return crew


def reopen_run(settings: Settings, run: str, listener: Listener) -> tuple[Crew, list[str]]:
    """A killed run's crew, with what has changed on this machine since (it is told, and steps it touches run again)."""
    folder = run_folder(settings, run)
    start = payload_of(read_steps(folder), "start", Start)
    if start is None:
        raise UserMistake(
            f"run {run} was killed before it began", fix=f"start again: kernelcrew run ...; its folder is {folder}"
        )
    operator = load_operator(start.operator_path)
    machine, sandbox = machine_here(settings, start.platform)
    now = make_lock(operator, start.backend, machine, start.model, start.seed, sandbox)
    return _join(settings, operator, machine, sandbox, start, listener), differences(start.lock, now)


def machine_here(settings: Settings, platform: str) -> tuple[Machine, Sandbox]:
    """This machine with its measured peaks, and the sandbox in use. Raises UnknownName or UserMistake."""
    machine = detect(settings.cc)
    wanted = resolve_platform(platform, machine.platform)
    if wanted.id != machine.platform.id:
        raise UserMistake(
            f"platform '{wanted.id}' is not this machine ({machine.platform.id}): a run measures where it runs",
            fix="leave --platform out, or start the run on that machine",
        )
    sandbox = choose(settings)
    return with_peaks(machine, measure_peaks(machine, settings)), sandbox


def run_folder(settings: Settings, run: str) -> Path:
    """A run's folder. Raises UnknownName with the known runs."""
    folder = settings.home / "runs" / run
    if not run or not (folder / "journal.jsonl").exists():
        known = [p.parent.name for p in settings.home.glob("runs/*/journal.jsonl")]
        raise UnknownName("run", run, known, fix="" if known else "start one: kernelcrew run reduction")
    return folder


def _check(operator: Operator, asked: Asked) -> None:
    """Refuse what cannot be done before anything is measured or written."""
    if asked.backend not in operator.backends:
        raise UnknownName("backend", asked.backend, operator.backends)
    make_client(asked.model, asked.base_url, asked.seed)
    if asked.rounds < 1:
        raise UserMistake("--rounds must be at least 1", fix="for instance --rounds 2")
    if asked.budget_min <= 0:
        raise UserMistake("--budget-min must be above 0", fix="for instance --budget-min 4")


def open_lab(
    settings: Settings, operator: Operator, backend: str, clock: Clock, alpha: AlphaPlan, listener: Listener
) -> Lab:
    """What `judge` needs: builder, verifier, bench and git on a bus, with a journal of its own."""
    machine, sandbox = machine_here(settings, "auto")
    name = f"{operator.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    return _lab(
        settings, (operator, backend, machine, sandbox), (settings.home / "judged" / name, clock, alpha), listener
    )


def _lab(
    settings: Settings,
    what: tuple[Operator, str, Machine, Sandbox],
    where: tuple[Path, Clock, AlphaPlan],
    listener: Listener,
) -> Lab:
    operator, backend, machine, sandbox = what
    folder, clock, alpha = where
    _ignore_itself(settings)
    release = hold(folder / "lock", folder.name)
    journal = Journal.open(folder)
    core = measuring_core(settings)
    workshop = Workshop(
        operator=operator, settings=settings, sandbox=sandbox, machine=machine, core=core, keep=journal.keep
    )
    ledger = Ledger()
    journal.tool_seconds = lambda: dict(ledger.tool_s)
    wrappers = (
        permission_wrapper(level_of),
        budget_wrapper(lambda: measuring_left_s(journal, clock)),
        ledger_wrapper(ledger.note, lambda: ledger.stage),
        device_wrapper(core_lock(core)),
    )
    bus = Bus(wrappers=wrappers)
    workshop.register_on(bus)
    repo = Repo.for_shipped(settings.home, operator.name, to_files(start_candidate(operator, backend)))
    return Lab(
        settings=settings,
        operator=operator,
        machine=machine,
        alpha=alpha,
        journal=journal,
        bus=bus,
        repo=repo,
        clock=clock,
        ledger=ledger,
        listener=listener,
        on_close=[release, workshop.close],
    )


def measuring_left_s(journal: Journal, clock: Clock) -> float:
    """Seconds left for measurements. A baseline is measured whatever it takes: nothing could be said without it."""
    return clock.left_s() if journal.find("baseline") else inf


def _join(
    settings: Settings, operator: Operator, machine: Machine, sandbox: Sandbox, start: Start, listener: Listener
) -> Crew:
    folder = settings.home / "runs" / start.run
    release_repo = hold(settings.home / "repos" / f"{operator.name}.lock", f"the repository of {operator.name}")
    spent = sum(stage_seconds(Journal.open(folder).steps).values())
    clock = Clock(budget_s=start.budget_min * 60, spent_before_s=spent)
    lab = _lab(settings, (operator, start.backend, machine, sandbox), (folder, clock, start.alpha), listener)
    embedder, without = choose_embedder(settings.embedder)
    memory = Memory(settings.home, embedder)
    team = Team(start.model, start.base_url, start.seed, lab.journal.keep, lab.bus.view)
    crew = Crew(**{f.name: getattr(lab, f.name) for f in fields(lab)}, start=start, memory=memory, team=team)
    crew.bus.register(COMMIT, lambda args: _commit(crew.repo, args))
    crew.bus.register(KEEP_TRIAL, lambda args: _keep_trial(crew.repo, args))
    register_role_tools(crew.bus, crew)
    crew.on_close += [release_repo, memory.close]
    if without:
        crew.say("baseline", without, status="warn")
    crew.journal.on_reuse = lambda step: crew.say(
        crew.ledger.stage, f"{step} read back from the journal", status="reused"
    )
    return crew


LEVELS = {
    "runs": Level.COMMIT,
    "profiler_reader": Level.OBSERVE,
    "proposer": Level.OBSERVE,
    "patch_writer": Level.WRITE_SCRATCH,
    "skeptic": Level.OBSERVE,
}
"""Permission of each caller; merging is a person's."""


def level_of(caller: str) -> Level:
    """A caller's rung on the ladder; nobody unknown may do more than look."""
    return LEVELS.get(caller, Level.OBSERVE)


def _commit(repo: Repo, args: CommitArgs) -> Commits:
    commits = repo.commit_changes(
        args.branch, args.parent, [(s.files, s.subject, list(s.trailers)) for s in args.steps]
    )
    moved = repo.set_incumbent(*args.incumbent, commits[-1])
    return Commits(commits=commits, ref=moved.ref)


def _keep_trial(repo: Repo, args: TrialArgs) -> Commits:
    return Commits(
        commits=(repo.trial(args.run, args.proposal, args.files),),
        ref=f"refs/kernelcrew/trial/{args.run}/{args.proposal}",
    )


def _ignore_itself(settings: Settings) -> None:
    path = settings.home / ".gitignore"
    if not path.exists():
        hold(settings.home / "lock", str(settings.home))()
        path.write_text("*\n", encoding="utf-8")
