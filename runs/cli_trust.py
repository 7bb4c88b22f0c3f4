"""The commands of trust: whether a run is worth it, what a team may do, whether a result still holds."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table
from rich.text import Text

from kernelcrew.runs import cli_show as show
from kernelcrew.runs.cli_options import AsJson, Minutes, MoreMinutes, Operator, Run, Workdir, resolve

if TYPE_CHECKING:
    from kernelcrew.runs.check import Finding
    from kernelcrew.runs.lockfile import LockReport
    from kernelcrew.runs.permissions import Held, Override
    from kernelcrew.runs.regress import Regression
    from kernelcrew.runs.reproduce import Reproduction

Who = Annotated[str, typer.Argument(help="The team: recipes, openai:NAME, or replay.")]
LevelName = Annotated[str, typer.Argument(help="observe, measure, write_scratch or commit.")]
Why = Annotated[str, typer.Option("--why", help="The reason, for the record.")]
OneOperator = Annotated[str, typer.Option("--operator", help="Only for this operator.")]
OnePlatform = Annotated[str, typer.Option("--platform", help="Only on this platform.")]

COLOURS = {"refuse": "red", "failed": "red", "differs": "red", "ok": "green", "passed": "green", "same": "green"}

permissions_app = typer.Typer(invoke_without_command=True, help="What a team may do, and why.")
lock_app = typer.Typer(no_args_is_help=True, help="Lock files of runs: compare, reproduce.")


def register(app: typer.Typer) -> None:
    """Put these commands on the command line."""
    app.command()(check)
    app.add_typer(permissions_app, name="permissions")
    app.add_typer(lock_app, name="lock")
    app.command()(regress)


def check(
    operator: Operator,
    backend: Annotated[str, typer.Option(help="Backend of the candidates.")] = "c",
    budget_min: Minutes = 4.0,
    workdir: Workdir = None,
    json: AsJson = False,
) -> None:
    """Whether a run would be worth it, before any work is spent: exit status 2 when it would be refused."""
    from kernelcrew.kernels.load import load_operator
    from kernelcrew.runs.check import examine

    with show.progress() as listener:
        found = examine(resolve(workdir), load_operator(operator), backend, budget_min, listener)
    _findings(operator, found, json=json)
    if any(f.severity == "refuse" for f in found):
        raise typer.Exit(2)


@permissions_app.callback()
def permissions(ctx: typer.Context, workdir: Workdir = None, json: AsJson = False) -> None:
    """Each team's level by operator and platform, and which runs earned or cost it."""
    from kernelcrew.platforms.detect import detect
    from kernelcrew.runs.deeds import all_levels

    if ctx.invoked_subcommand is None:
        settings = resolve(workdir)
        _levels(all_levels(settings, detect(settings.cc).platform.id), json=json)


@permissions_app.command()
def grant(  # noqa: PLR0913 - one parameter an option of the command
    who: Who,
    level: LevelName,
    why: Why,
    operator: OneOperator = "",
    platform: OnePlatform = "",
    workdir: Workdir = None,
    json: AsJson = False,
) -> None:
    """Give a team a level, whatever its record says; recorded with your name and the date."""
    from kernelcrew.runs.deeds import Grant, override

    _said(override(resolve(workdir), Grant("grant", who, level, why), operator, platform), json=json)


@permissions_app.command()
def revoke(  # noqa: PLR0913 - one parameter an option of the command
    who: Who,
    level: LevelName,
    why: Why,
    operator: OneOperator = "",
    platform: OnePlatform = "",
    workdir: Workdir = None,
    json: AsJson = False,
) -> None:
    """Hold a team to a level at most, until a grant; recorded with your name and the date."""
    from kernelcrew.runs.deeds import Grant, override

    _said(override(resolve(workdir), Grant("revoke", who, level, why), operator, platform), json=json)


@lock_app.command()
def verify(run: Run, workdir: Workdir = None, json: AsJson = False) -> None:
    """Compare a run's lock with this machine now: exit status 1 when something that changes answers differs."""
    from kernelcrew.runs.listing import run_folder
    from kernelcrew.runs.lockfile import verify_lock

    settings = resolve(workdir)
    found = verify_lock(settings, run_folder(settings, run))
    _lock(found, json=json)
    if not found.same:
        raise typer.Exit(1)


@lock_app.command()
def reproduce(
    run: Run,
    budget_min: MoreMinutes = None,
    workdir: Workdir = None,
    json: AsJson = False,
) -> None:
    """Run it again in a scratch folder and compare decisions and ratios: exit status 1 when they differ."""
    from kernelcrew.runs.listing import run_folder
    from kernelcrew.runs.reproduce import reproduce as again

    settings = resolve(workdir)
    with show.progress() as listener:
        found = again(settings, run_folder(settings, run).absolute(), budget_min or 0.0, listener)
    _reproduction(found, json=json)
    if found.outcome == "differs":
        raise typer.Exit(1)


def regress(
    operator: Annotated[str, typer.Argument(help="Only this operator (default: all with a run here).")] = "",
    junit: Annotated[Path | None, typer.Option("--junit", help="Write JUnit XML to this file.")] = None,
    workdir: Workdir = None,
    json: AsJson = False,
) -> None:
    """Rebuild, verify and screen what was adopted on this platform: exit status 1 when it is wrong or slower."""
    from kernelcrew.runs.regress import regress as guard_all
    from kernelcrew.runs.regress import write_junit

    with show.progress() as listener:
        found = guard_all(resolve(workdir), operator, listener)
    if junit is not None:
        write_junit(found, junit)
    _regression(found, json=json)
    if found.failed:
        raise typer.Exit(1)


def _findings(operator: str, found: list[Finding], *, json: bool) -> None:
    if json:
        show.emit({"operator": operator, "findings": [f.model_dump(mode="json") for f in found]})
        return
    rows = _table("looked at", "severity", "found", "why it matters", "what to do")
    for f in found:
        rows.add_row(f.name, _coloured(f.severity), f.what, f.why, f.do)
    show.out.print(rows)


def _levels(found: list[Held], *, json: bool) -> None:
    if json:
        show.emit({"permissions": [h.model_dump(mode="json") for h in found]})
        return
    rows = _table("team", "operator", "platform", "level", "why")
    for h in found:
        rows.add_row(h.team, h.operator, h.platform, h.level, "\n".join(h.why))
    show.out.print(rows)


def _said(said: Override, *, json: bool) -> None:
    if json:
        show.emit(said.model_dump(mode="json"))
        return
    where = f"{said.operator or 'every operator'} on {said.platform or 'every platform'}"
    verb = "holds" if said.verb == "grant" else "is held to"
    show.out.print(f"{said.who} {verb} {said.level} for {where}: {said.why} ({said.author}, {said.at})", markup=False)


def _lock(found: LockReport, *, json: bool) -> None:
    if json:
        show.emit(found.model_dump(mode="json"))
        return
    if not found.differences:
        show.out.print(f"{found.run}: all is as it was", markup=False)
        return
    rows = _table("what", "was", "is", "changes answers", "means")
    for d in found.differences:
        rows.add_row(d.name, d.was, d.now, "yes" if d.changes_answers else "no", d.means)
    show.out.print(rows)


def _reproduction(found: Reproduction, *, json: bool) -> None:
    if json:
        show.emit(found.model_dump(mode="json"))
        return
    rows = _table("what", "outcome", "was", "is")
    for row in found.rows:
        rows.add_row(row.what, _coloured(row.outcome), row.was, f"{row.now} ({row.why})" if row.why else row.now)
    show.out.print(rows)
    show.out.print(f"{found.run} against {found.again}: {found.outcome}\nrepetition    {found.folder}", markup=False)


def _regression(found: Regression, *, json: bool) -> None:
    if json:
        show.emit({**found.model_dump(mode="json"), "failed": found.failed})
        return
    if not found.guarded:
        show.out.print(f"nothing was adopted on {found.platform} yet: there is nothing to guard")
        return
    rows = _table("operator", "backend", "adopted", "outcome", "stage", "figures")
    for g in found.guarded:
        rows.add_row(g.operator, g.backend, g.commit[:12], _coloured(g.outcome), g.stage, g.reason)
    show.out.print(rows)
    for g in found.guarded:
        if g.outcome == "inconclusive":
            show.note(f"warning: {g.operator}: {g.reason}")


def _table(*columns: str) -> Table:
    rows = Table(show_lines=True)
    for column in columns:
        rows.add_column(column, overflow="fold")
    return rows


def _coloured(word: str) -> Text:
    return Text(word, style=COLOURS.get(word, "yellow"))
