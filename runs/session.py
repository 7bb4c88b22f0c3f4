"""The one place that joins the concrete parts of a run and hands them in."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import fields
from datetime import UTC, datetime
from math import inf, isfinite
from pathlib import Path

from kernelcrew.agents.reach import check_model
from kernelcrew.agents.team import Team
from kernelcrew.errors import NotPermitted, UnknownName, UserMistake
from kernelcrew.event import Listener
from kernelcrew.kernels.load import is_shipped, load_operator
from kernelcrew.kernels.nouns import Operator
from kernelcrew.memory.embed import choose as choose_embedder
from kernelcrew.memory.store import Memory
from kernelcrew.platforms.detect import detect
from kernelcrew.platforms.nouns import Machine, Platform
from kernelcrew.platforms.registry import resolve as resolve_platform
from kernelcrew.record import Record, hash_of
from kernelcrew.runs.crew import Clock, Crew, Lab, Ledger
from kernelcrew.runs.deeds import level_here
from kernelcrew.runs.desk import register_role_tools
from kernelcrew.runs.extending import take_budget
from kernelcrew.runs.journal import Journal, payload_of, read_steps
from kernelcrew.runs.listing import run_folder
from kernelcrew.runs.lockfile import write_lock
from kernelcrew.runs.locking import differences, make_lock, salt_of
from kernelcrew.runs.locks import core_lock, hold
from kernelcrew.runs.nogo import bars_for
from kernelcrew.runs.nouns import Start
from kernelcrew.runs.permissions import WORDS, Held, Where, role_level, team_of
from kernelcrew.runs.settling import COMMIT, KEEP_TRIAL, CommitArgs, Commits, TrialArgs
from kernelcrew.runs.stages import stage_seconds
from kernelcrew.runs.vcs import lock_file, repo_for, require_committed, standing_apart
from kernelcrew.settings import Settings
from kernelcrew.tools.bus import (
    Bus,
    Level,
    Refusal,
    budget_wrapper,
    device_wrapper,
    ledger_wrapper,
    permission_wrapper,
)
from kernelcrew.tools.cores import measuring_core
from kernelcrew.tools.git import Repo
from kernelcrew.tools.git_program import program as git_program
from kernelcrew.tools.nogo import nogo_wrapper
from kernelcrew.tools.nouns import AlphaPlan
from kernelcrew.tools.peaks import measure_peaks, with_peaks
from kernelcrew.tools.sandbox import Sandbox, choose
from kernelcrew.tools.workshop import Workshop

DeviceLock = Callable[[], AbstractContextManager[None]]
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
    price_in: float | None = None
    """USD per million tokens read; None: unknown."""
    price_out: float | None = None
    """The same per million tokens written."""
    rounds: int = 2
    """Rounds at most."""
    budget_min: float = 4.0
    """Minutes at most."""
    seed: int = 0
    """The team's choices."""
    anyway: bool = False
    """Whether an operator that its repository does not hold as it stands is worked on in a copy."""
    overridden: tuple[str, ...] = ()
    """What the preflight refused and `anyway` overrode."""
    shuffled: int | None = None
    """Seed of a shuffled profile, for the control of `bench --search`; no command line of a run asks for it."""


def open_run(settings: Settings, asked: Asked, listener: Listener) -> Crew:
    """A new run's crew: nothing has been built or measured yet but the machine's peaks."""
    operator = load_operator(asked.operator)
    check_asked(operator, asked)
    machine, sandbox = machine_here(settings, asked.platform)
    lock = make_lock(operator, asked.backend, machine, asked.model, asked.seed, sandbox)
    now = datetime.now(UTC)
    run = f"{operator.name}-{now:%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    alpha = AlphaPlan(confirmations=asked.rounds * CONFIRMATIONS_A_ROUND, classes=len(operator.classes()))
    start = Start(
        run=run,
        operator=operator.name,
        operator_path=asked.operator if is_shipped(operator) else str(operator.folder),
        backend=asked.backend,
        platform=machine.platform.id,
        model=asked.model,
        base_url=asked.base_url,
        price_in=asked.price_in,
        price_out=asked.price_out,
        rounds=asked.rounds,
        budget_min=asked.budget_min,
        seed=asked.seed,
        alpha=alpha,
        lock=lock,
        started=now.isoformat(timespec="seconds"),
        anyway=asked.anyway,
        overridden=asked.overridden,
        shuffled=asked.shuffled,
    )
    crew = _join(settings, operator, machine, sandbox, start, listener)
    crew.journal.do("start", Start, run, lambda: start)
    _note_level(crew)
    write_lock(crew.journal.folder)
    return crew


def reopen_run(
    settings: Settings, run: str, listener: Listener, budget_min: float | None = None
) -> tuple[Crew, list[str]]:
    """A killed run's crew, with what has changed on this machine since (it is told, and steps it touches run again).

    `budget_min` is its budget from now on, all sittings together; None leaves it as it was."""
    folder = run_folder(settings, run)
    start = payload_of(read_steps(folder), "start", Start)
    if start is None:
        raise UserMistake(
            f"run {run} was killed before it began", fix=f"start again: kernelcrew run ...; its folder is {folder}"
        )
    check_model(start.model, start.base_url, start.seed)
    operator = load_operator(start.operator_path)
    machine, sandbox = machine_here(settings, start.platform)
    now = make_lock(operator, start.backend, machine, start.model, start.seed, sandbox)
    crew = _join(settings, operator, machine, sandbox, start, listener)
    crew.journal.salt = salt_of(now)
    take_budget(crew, budget_min)
    _note_level(crew)
    return crew, differences(start.lock, now)


def machine_here(settings: Settings, platform: str) -> tuple[Machine, Sandbox]:
    """This machine with its measured peaks, and the sandbox in use. Raises UnknownName or UserMistake."""
    machine = detect(settings.cc)
    require_here(platform, machine.platform)
    sandbox = choose(settings)
    return with_peaks(machine, measure_peaks(machine, settings)), sandbox


def require_here(platform: str, here: Platform) -> None:
    """A run measures where it runs. Raises UnknownName or UserMistake for another platform than this machine."""
    wanted = resolve_platform(platform, here)
    if wanted.id != here.id:
        raise UserMistake(
            f"platform '{wanted.id}' is not this machine ({here.id}): a run measures where it runs",
            fix="leave --platform out, or start the run on that machine",
        )


def check_asked(operator: Operator, asked: Asked) -> None:
    """Refuse what cannot be done before anything is measured or written."""
    if asked.backend not in operator.backends:
        raise UnknownName("backend", asked.backend, operator.backends)
    if asked.rounds < 1:
        raise UserMistake("--rounds must be at least 1", fix="for instance --rounds 2")
    if not (isfinite(asked.budget_min) and asked.budget_min > 0):
        raise UserMistake("--budget-min must be above 0 and finite", fix="for instance --budget-min 4")
    git_program()
    check_model(asked.model, asked.base_url, asked.seed)
    if not asked.model.startswith("openai:") and (asked.price_in, asked.price_out) != (None, None):
        what = f"--price-in and --price-out have no meaning with --model {asked.model}, which costs nothing"
        raise UserMistake(what, fix="leave them out")
    if not asked.anyway:
        require_committed(operator)


def open_lab(
    settings: Settings, operator: Operator, backend: str, clock: Clock, alpha: AlphaPlan, listener: Listener
) -> Lab:
    """What `judge` needs: builder, verifier, bench and git on a bus, with a journal of its own. An operator that its
    repository does not hold as it stands is judged as it stands."""
    machine, sandbox = machine_here(settings, "auto")
    name = f"{operator.name}-{datetime.now(UTC):%Y%m%d-%H%M%S}-{secrets.token_hex(2)}"
    where = (settings.home / "judged" / name, clock, alpha)
    return _lab(settings, (operator, backend, machine, sandbox), where, listener, anyway=True)


WAITS = "waits: another kernelcrew measures on this core; the wait does not count"


def _lab(
    settings: Settings,
    what: tuple[Operator, str, Machine, Sandbox],
    where: tuple[Path, Clock, AlphaPlan],
    listener: Listener,
    *,
    anyway: bool,
    team: Level = Level.COMMIT,
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
    bars = bars_for(settings, operator, backend, machine)
    journal.tool_seconds = lambda: dict(ledger.tool_s)
    journal.waited_seconds = lambda: clock.waited_s

    def waited(seconds: float) -> None:
        clock.waited_s += seconds
        ledger.waited_s += seconds

    wrappers = (
        ledger_wrapper(ledger.note, lambda: ledger.stage),
        permission_wrapper(
            lambda caller: role_level(caller, team), lambda refusal, args: _keep_refusal(journal, refusal, args)
        ),
        nogo_wrapper(bars.barred),
        budget_wrapper(lambda: measuring_left_s(journal, clock)),
        device_wrapper(core_lock(core, lambda: lab.say(ledger.stage, WAITS, status="warn"), waited)),
    )
    bus = Bus(wrappers=wrappers)
    workshop.register_on(bus)
    repo = repo_for(settings, operator, backend, anyway=anyway)
    lab = Lab(
        settings=settings,
        operator=operator,
        machine=machine,
        alpha=alpha,
        journal=journal,
        bus=bus,
        repo=repo,
        clock=clock,
        ledger=ledger,
        bars=bars,
        listener=listener,
        on_close=[release, workshop.close],
    )
    if told := standing_apart(operator, repo):
        lab.say("baseline", told, status="warn")
    return lab


def alone(settings: Settings, operator: Operator, machine: Machine) -> tuple[Workshop, DeviceLock]:
    """Builder, verifier and bench without run, journal or repository, and the lock that whoever measures must hold."""
    _ignore_itself(settings)
    core = measuring_core(settings)
    workshop = Workshop(
        operator=operator, settings=settings, sandbox=choose(settings), machine=machine, core=core, keep=hash_of
    )
    return workshop, core_lock(core)


def measuring_left_s(journal: Journal, clock: Clock) -> float:
    """Seconds left for measurements. A baseline is measured whatever it takes: nothing could be said without it."""
    return clock.left_s() if journal.find("baseline") else inf


def _join(
    settings: Settings, operator: Operator, machine: Machine, sandbox: Sandbox, start: Start, listener: Listener
) -> Crew:
    folder = settings.home / "runs" / start.run
    held = _permitted(settings, start, operator)
    release_repo = hold(lock_file(settings, operator), f"the repository of {operator.name}")
    spent = sum(stage_seconds(Journal.open(folder).steps).values())
    clock = Clock(budget_s=start.budget_min * 60, spent_before_s=spent)
    where = (folder, clock, start.alpha)
    what = (operator, start.backend, machine, sandbox)
    lab = _lab(settings, what, where, listener, anyway=start.anyway, team=held.rung)
    lab.ledger.prices = start.price_in, start.price_out
    embedder, without = choose_embedder(settings.embedder)
    memory = Memory(settings.home, embedder)
    team = Team(start.model, start.base_url, start.seed, lab.journal.keep, lab.bus.view)
    crew = Crew(**{f.name: getattr(lab, f.name) for f in fields(lab)}, start=start, memory=memory, team=team, held=held)
    crew.journal.salt = salt_of(start.lock)
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


def _permitted(settings: Settings, start: Start, operator: Operator) -> Held:
    """The team's level for this run. Raises NotPermitted when it does not reach as far as trying a candidate."""
    where = Where(
        team=team_of(start.model),
        operator=start.operator,
        platform=start.platform,
        shipped=is_shipped(operator),
    )
    held = level_here(settings, where, but=start.run)
    if held.rung < Level.WRITE_SCRATCH:
        raise NotPermitted(
            f"{where.team} holds `{WORDS[held.rung]}` for {where.operator} on {where.platform}, and a run builds and "
            f"tries candidates ({held.why[-1]})",
            fix=f"kernelcrew permissions grant {where.team} write_scratch --operator {where.operator} --why TEXT",
        )
    return held


def _note_level(crew: Crew) -> None:
    """Journal the team's level when it is not as last noted; a finished run's journal stays as it is."""
    last = payload_of(crew.journal.steps, "permission", Held)
    held = crew.held
    if held is None or crew.journal.find("end") or (last is not None and last.level == held.level):
        return
    times = sum(step.step == "permission" for step in crew.journal.steps)
    crew.journal.do("permission", Held, [held.level, times], lambda: held)
    if held.rung < Level.COMMIT:
        crew.say("baseline", f"{held.team} may {WORDS[held.rung]} only: {held.why[-1]}", status="warn")


def _keep_refusal(journal: Journal, refusal: Refusal, args: Record) -> None:
    journal.do(f"refused.{refusal.tool}", Refusal, [refusal, args], lambda: refusal)


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
