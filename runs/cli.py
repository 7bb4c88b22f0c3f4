"""The command line: the one door people use. Options in, tables and JSON out; all else is below.

Exit status: 0 for a run that finished (also when nothing was adopted), 1 for a failed run, 2 for a user's mistake.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from kernelcrew.errors import CrewError
from kernelcrew.runs import cli_answers as answers
from kernelcrew.runs import cli_nogo, cli_own, cli_people, cli_policy, cli_race, cli_trust
from kernelcrew.runs import cli_show as show
from kernelcrew.runs.cli_options import (
    AsJson,
    ClickError,
    Minutes,
    MoreMinutes,
    Operator,
    PriceIn,
    PriceOut,
    Rounds,
    Run,
    RunsOf,
    Workdir,
    resolve,
    usage_text,
)
from kernelcrew.version import VERSION

app = typer.Typer(
    name="kernelcrew",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="A team of role-specialised agents that makes compute kernels faster and proves it.",
)


def version(value: bool) -> None:
    if value:
        typer.echo(f"kernelcrew {VERSION}")
        raise typer.Exit()


@app.callback()
def root(
    _: Annotated[bool, typer.Option("--version", callback=version, is_eager=True, help="Show the version.")] = False,
) -> None:
    """A team of role-specialised agents that makes compute kernels faster and proves it."""


@app.command()
def run(  # noqa: PLR0913 - one parameter an option of the command
    operator: Operator,
    platform: Annotated[str, typer.Option(help="Platform to run for.")] = "auto",
    backend: Annotated[str, typer.Option(help="Backend of the candidates.")] = "c",
    model: Annotated[str, typer.Option(help="recipes, openai:NAME, or replay:FOLDER of a recorded run.")] = "recipes",
    base_url: Annotated[str, typer.Option("--base-url", help="Any OpenAI-compatible server, for openai:NAME.")] = "",
    price_in: PriceIn = None,
    price_out: PriceOut = None,
    rounds: Rounds = 2,
    budget_min: Minutes = 4.0,
    seed: Annotated[int, typer.Option(help="Seed of the team's choices (never of the inputs).")] = 0,
    anyway: Annotated[bool, typer.Option("--anyway", help="Go on where the preflight refuses.")] = False,
    workdir: Workdir = None,
    json: AsJson = False,
) -> None:
    """A team run: profile, propose, patch, verify, time, decide, settle, remember, report."""
    from kernelcrew.runs.preflight import preflight
    from kernelcrew.runs.session import Asked, open_run

    asked = Asked(
        operator=operator,
        backend=backend,
        platform=platform,
        model=model,
        base_url=base_url,
        price_in=price_in,
        price_out=price_out,
        rounds=rounds,
        budget_min=budget_min,
        seed=seed,
        anyway=anyway,
    )
    settings = resolve(workdir)
    with show.progress() as listener:
        asked = asked.model_copy(update={"overridden": preflight(settings, asked, listener)})
        crew = open_run(settings, asked, listener)
        show.play_to_end(crew, json=json)


@app.command()
def resume(
    run: Run,
    budget_min: MoreMinutes = None,
    workdir: Workdir = None,
    json: AsJson = False,
) -> None:
    """Go on with a killed run: finished steps are read back, not repeated. More budget extends one that ran out."""
    from kernelcrew.runs.extending import ended, more_to_do, stopped_for_budget
    from kernelcrew.runs.journal import read_steps
    from kernelcrew.runs.listing import run_folder

    settings = resolve(workdir)
    folder = run_folder(settings, run)
    done = ended(read_steps(folder))
    if done is not None and not (budget_min and stopped_for_budget(done)):
        answers.finished(done, more_to_do(done, budget_min), json=json)
        return
    from kernelcrew.runs.session import reopen_run

    with show.progress() as listener:
        crew, changed = reopen_run(settings, folder.name, listener, budget_min)
        for line in changed:
            show.note(f"changed since the run began: {line}")
        show.play_to_end(crew, json=json)


@app.command()
def runs(operator: RunsOf = "", workdir: Workdir = None, json: AsJson = False) -> None:
    """The runs of this working directory: operator, start, status, outcome."""
    from kernelcrew.runs.listing import list_runs

    found = [r for r in list_runs(resolve(workdir)) if operator in ("", r.operator)]
    answers.runs(found, json=json)


@app.command()
def judge(  # noqa: PLR0913 - one parameter an option of the command
    operator: Operator,
    source: Annotated[Path, typer.Option("--source", help="The candidate's source file.")],
    backend: Annotated[str, typer.Option(help="Backend of the candidate.")] = "c",
    plan: Annotated[
        Path | None, typer.Option("--plan", help="Launch plan (TOML); the operator's own otherwise.")
    ] = None,
    why: Annotated[str, typer.Option("--why", help="Rationale; the source's first comment otherwise.")] = "",
    despite: Annotated[list[str] | None, typer.Option("--despite-nogo", help="No-go entry to set aside.")] = None,
    budget_min: Minutes = 2.0,
    workdir: Workdir = None,
    json: AsJson = False,
) -> None:
    """Put one candidate through the same net, without a team."""
    from kernelcrew.runs.judge import JudgeAsked, judge_one

    asked = JudgeAsked(
        operator=operator, backend=backend, source=source, plan=plan, why=why, budget_min=budget_min,
        despite=tuple(despite or ()),
    )  # fmt: skip
    with show.progress() as listener:
        verdict = judge_one(resolve(workdir), asked, listener)
    answers.verdict(verdict, json=json)


@app.command()
def query(
    question: Annotated[str, typer.Argument(help="A plain question.")],
    operator: Annotated[str, typer.Option(help="Only this operator.")] = "",
    platform: Annotated[str, typer.Option(help="A platform, or `any`.")] = "auto",
    n: Annotated[int, typer.Option("-n", min=1, max=100, help="Answers at most.")] = 5,
    workdir: Workdir = None,
    json: AsJson = False,
) -> None:
    """Ask the rationale knowledge base: why was something adopted or rolled back."""
    from kernelcrew.runs.asking_memory import ask_memory

    answers.hits(ask_memory(resolve(workdir), question, operator, platform, n), question, json=json)


@app.command()
def report(run: Run, workdir: Workdir = None, json: AsJson = False) -> None:
    """Write the run's HTML report again from its journal, and show its table."""
    from kernelcrew.runs.listing import run_folder

    show.report(run_folder(resolve(workdir), run), json=json)


@app.command()
def operators(json: AsJson = False) -> None:
    """The operators that ship with kernelcrew."""
    show.operators(json=json)


@app.command()
def platforms(workdir: Workdir = None, json: AsJson = False) -> None:
    """The platforms known, this machine among them."""
    show.platforms(resolve(workdir), json=json)


@app.command()
def doctor(workdir: Workdir = None, json: AsJson = False) -> None:
    """What is here, what is missing, and what that means."""
    from kernelcrew.runs.doctor import examine

    show.doctor(examine(resolve(workdir)), json=json)


@app.command()
def bench(  # noqa: PLR0913 - one parameter an option of the command
    operator: Operator = "reduction",
    run: Annotated[str, typer.Option(help="Run whose figures to print (default: the newest).")] = "",
    search: cli_race.Search = False,
    seeds: cli_race.Seeds = 10,
    search_s: cli_race.SearchS = 120.0,
    strategies: cli_race.Strategies = cli_race.STRATEGIES_TOLD,
    lane: cli_race.Lane = "1/1",
    from_: cli_race.Files = None,
    workdir: Workdir = None,
    json: AsJson = False,
) -> None:
    """Figures as ratios in one run: adopted kernel over start, NumPy, flags alone and the measured ceilings; with
    --search, how soon the team's search comes near the best, beside Kernel Tuner's and its own without a profile."""
    from kernelcrew.runs.figures import bench_figures

    if search:
        cli_race.search(resolve(workdir), (operator, seeds, search_s, lane, strategies), from_ or [], json)
        return
    with show.progress() as listener:
        found = bench_figures(resolve(workdir), operator, run, listener)
    show.bench(found, json=json)


cli_people.register(app)
cli_trust.register(app)
cli_own.register(app)
cli_nogo.register(app)
cli_policy.register(app)

memory_app = typer.Typer(no_args_is_help=True, help="The memory store.")
app.add_typer(memory_app, name="memory")


@memory_app.command()
def rebuild(workdir: Workdir = None, json: AsJson = False) -> None:
    """Make the memory store anew from the journals of all runs."""
    from kernelcrew.runs.asking_memory import rebuild_memory

    show.restored(rebuild_memory(resolve(workdir)), json=json)


@memory_app.command("export")
def export_(path: Annotated[Path, typer.Argument(help="File to write (JSON lines).")], workdir: Workdir = None) -> None:
    """Write every entry of the memory store as a line of JSON, vectors included."""
    from kernelcrew.runs.asking_memory import export_memory

    show.moved("written", export_memory(resolve(workdir), path), path)


@memory_app.command("import")
def import_(path: Annotated[Path, typer.Argument(help="File that an export wrote.")], workdir: Workdir = None) -> None:
    """Take in the entries that an export wrote; the same id twice is one entry."""
    from kernelcrew.runs.asking_memory import import_memory

    show.moved("read", import_memory(resolve(workdir), path), path)


def main() -> NoReturn:
    """The console script. Expected stops end with a message, never with a traceback."""
    try:
        status = app(standalone_mode=False)
        sys.exit(status if isinstance(status, int) else 0)
    except CrewError as error:
        show.complain(str(error))
        sys.exit(error.exit_status)
    except ClickError as error:
        if text := usage_text(error):
            show.complain(text)
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):
        show.complain("stopped; what was recorded stays: kernelcrew resume RUN goes on from it")
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(1)
