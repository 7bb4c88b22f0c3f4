"""Options and arguments that commands share, checked at the door, and the way out that each usage error names."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Any

import typer

from kernelcrew.errors import UserMistake
from kernelcrew.settings import Settings
from kernelcrew.settings import resolve as settings_from

ClickError: Any = typer.BadParameter.__mro__[2]
"""The base of all usage errors: of the click that typer carries, or of the installed one."""


def above_zero(option: str, value: float, example: str) -> float:
    """A finite number above 0. Raises UserMistake."""
    if not (math.isfinite(value) and value > 0):
        raise UserMistake(f"{option} must be above 0 and finite, got {value:g}", fix=f"for instance {option} {example}")
    return value


def _minutes(value: float) -> float:
    return above_zero("--budget-min", value, "4")


def _price(value: float | None) -> float | None:
    if value is not None and not (math.isfinite(value) and value >= 0):
        what = f"a price must be 0 or more USD per million tokens, got {value:g}"
        raise UserMistake(what, fix="leave it out if it is unknown")
    return value


def _more_minutes(value: float | None) -> float | None:
    """A budget that may be left out."""
    return None if value is None else _minutes(value)


Workdir = Annotated[Path | None, typer.Option("--workdir", help="Folder that holds .kernelcrew/ (default: here).")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object as the last line of standard output.")]
Operator = Annotated[str, typer.Argument(help="A shipped operator, or a folder with an operator.toml.")]
Run = Annotated[str, typer.Argument(help="Id of the run, or `last` for the newest.")]
RunsOf = Annotated[str, typer.Option("--operator", help="Only this operator's.")]
MoreMinutes = Annotated[
    float | None,
    typer.Option("--budget-min", callback=_more_minutes, help="Another budget than the run was given."),
]
Minutes = Annotated[float, typer.Option("--budget-min", callback=_minutes, help="Minutes at most, above 0.")]
Rounds = Annotated[int, typer.Option("--rounds", help="Rounds at most, from 1.")]
PriceIn = Annotated[
    float | None, typer.Option("--price-in", callback=_price, help="The model's price: USD per million tokens read.")
]
PriceOut = Annotated[
    float | None, typer.Option("--price-out", callback=_price, help="The same per million tokens written.")
]

ALLOWED = {
    "budget_min": "minutes, a number above 0, for instance --budget-min 4",
    "rounds": "a whole number from 1, for instance --rounds 2",
    "n": "a whole number from 1 to 100, for instance -n 5",
    "seed": "a whole number, for instance --seed 1",
    "price_in": "USD per million tokens, for instance --price-in 0.5",
    "price_out": "USD per million tokens, for instance --price-out 1.5",
}
"""What an option takes, by the parameter's name."""


def resolve(workdir: Path | None) -> Settings:
    """Settings as the command line gives them. Raises UserMistake for a working directory that is not there: a
    mistyped one is never made."""
    settings = settings_from(workdir)
    if not settings.workdir.is_dir():
        what = "is no folder" if settings.workdir.exists() else "there is no such folder"
        fix = f"mend --workdir, or make it: mkdir -p {settings.workdir}"
        raise UserMistake(f"--workdir {settings.workdir}: {what}", fix=fix)
    return settings


def usage_text(error: Any) -> str:
    """What a usage error says, with the allowed values as its way out; '' where the help was the answer."""
    if type(error).__name__ == "NoArgsIsHelpError":
        return ""
    what = str(error.format_message())
    if getattr(getattr(error, "param", None), "name", "") in ALLOWED:
        what = what.split(": Input should", maxsplit=1)[
            0
        ]  # the words of a library below typer; the fix says it in ours
    context = getattr(error, "ctx", None)
    fix = _way_out(error, context, what)
    return f"{what}\n  fix: {fix}" if fix else what


def _way_out(error: Any, context: Any, what: str) -> str:
    if context is None:
        return ""
    path = f"kernelcrew {' '.join(context.command_path.split()[1:])}".strip()
    known = getattr(context.command, "commands", None)
    if known is not None and "No such command" in what:
        return f"the commands are {', '.join(sorted(known))}"
    parameter = getattr(error, "param", None)
    if parameter is not None and parameter.name in ALLOWED:
        return f"give {ALLOWED[parameter.name]}"
    if hasattr(error, "possibilities"):
        options = sorted(o for p in context.command.params for o in p.opts if o.startswith("-"))
        return f"the options of `{path}` are {', '.join(options)}" if options else f"`{path}` takes no options"
    return f"`{path} --help` shows what it takes"
