"""The commands of the no-go list: what is not to be tried, who says so, and how often that was wrong."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from kernelcrew.runs import cli_show as show
from kernelcrew.runs.cli_options import AsJson, Workdir, resolve

if TYPE_CHECKING:
    from kernelcrew.runs.nogo_audit import Audit, Counted, Share

Name = Annotated[str, typer.Argument(help="The entry's id, as `kernelcrew nogo list` shows it.")]
Features = Annotated[
    list[str] | None,
    typer.Option("--feature", help="recipe:, target:, knob:NAME=8..32, flag:, code: or hash:; all given must match."),
]

nogo_app = typer.Typer(no_args_is_help=True, help="What is not to be tried: an enforced list.")


def register(app: typer.Typer) -> None:
    """Put these commands on the command line."""
    app.add_typer(nogo_app, name="nogo")


@nogo_app.command()
def add(  # noqa: PLR0913 - one parameter an option of the command
    reason: Annotated[str, typer.Option("--reason", help="What went wrong.")],
    evidence: Annotated[str, typer.Option("--evidence", help="A run's id, a commit, an address, or a file.")],
    feature: Features = None,
    operator: Annotated[str, typer.Option("--operator", help="Only for these (pattern; several by |).")] = "*",
    shape_class: Annotated[str, typer.Option("--shape-class", help="Only where it serves this class.")] = "*",
    platform: Annotated[str, typer.Option("--platform", help="Only on these platform ids (pattern).")] = "*",
    backend: Annotated[str, typer.Option("--backend", help="Only for this backend (pattern).")] = "*",
    toolchain: Annotated[str, typer.Option("--toolchain", help="Only with these: 'gcc 12*' (pattern).")] = "*",
    expires: Annotated[str, typer.Option("--expires", help="Date from which it blocks no more: 2027-01-31.")] = "",
    id_: Annotated[str, typer.Option("--id", help="Its id (default: made from the features).")] = "",
    no_retrial: Annotated[
        bool, typer.Option("--no-retrial", help="Nobody may judge it in spite of this: trying does harm.")
    ] = False,
    workdir: Workdir = None,
    json: AsJson = False,
) -> None:
    """Enter what is not to be tried here, under your name and today's date."""
    from kernelcrew.runs.nogo import add as enter

    entry = enter(resolve(workdir), {
        "id": id_, "features": feature or [], "operator": operator, "shape_class": shape_class, "platform": platform,
        "backend": backend, "toolchain": toolchain, "reason": reason, "evidence": evidence, "expires": expires,
        "retrial": not no_retrial,
    })  # fmt: skip
    if json:
        show.emit(entry.model_dump(mode="json"))
        return
    show.out.print(f"{entry.line}; entered by {entry.author} on {entry.created}", markup=False)


@nogo_app.command("list")
def list_(workdir: Workdir = None, json: AsJson = False) -> None:
    """Every entry: scope, features, reason, evidence, author, expiry, how often it blocked, and how often wrongly."""
    from kernelcrew.runs.nogo_audit import audit

    found = audit(resolve(workdir))
    if json:
        show.emit({
            "entries": [_plain(c) for c in found.entries],
            "false_blocks": found.false_blocks.model_dump(mode="json"),
            "true_blocks": found.true_blocks.model_dump(mode="json"),
        })  # fmt: skip
        return
    rows = Table(show_lines=True)
    for column in ("entry", "not to be tried", "why", "by", "blocked", "good ones blocked", "bad ones blocked"):
        rows.add_column(column, overflow="fold")
    for c in found.entries:
        rows.add_row(*_row(c))
    show.out.print(rows)
    _whole(found)


@nogo_app.command("remove")
def remove_(
    name: Name,
    why: Annotated[str, typer.Option("--why", help="What has changed since it was entered; kept in the file.")],
    workdir: Workdir = None,
    json: AsJson = False,
) -> None:
    """Take an entry out: one that ships is lifted for this working directory."""
    from kernelcrew.runs.nogo import remove

    gone = remove(resolve(workdir), name, why)
    if json:
        show.emit(gone.model_dump(mode="json"))
        return
    show.out.print(f"{gone.id} blocks no more: {gone.why} ({gone.author}, {gone.at})", markup=False)


@nogo_app.command("audit")
def audit_(
    operator: Annotated[str, typer.Argument(help="Only this operator's candidates (default: all).")] = "",
    workdir: Workdir = None,
    json: AsJson = False,
) -> None:
    """Hold the active entries against every recorded candidate: how many good and bad ones they forbid."""
    from kernelcrew.runs.nogo_audit import audit

    found = audit(resolve(workdir), operator)
    if json:
        show.emit(found.model_dump(mode="json"))
        return
    _whole(found)
    for c in found.entries:
        both = f"{_share(c.false_blocks)} good, {_share(c.true_blocks)} bad"
        show.out.print(f"  {c.listed.entry.id}: {both}", markup=False)
    for line in found.skipped:
        show.note(f"warning: not read, {line}")


def _row(c: Counted) -> tuple[str, ...]:
    e = c.listed.entry
    pairs = (("", e.operator), ("class ", e.shape_class), ("", e.platform), ("", e.backend), ("", e.toolchain))
    scope = ", ".join(f"{word}{value}" for word, value in pairs if value != "*") or "everywhere"
    state = "" if c.listed.state == "active" else f"\n{c.listed.state}"
    until = f"\nuntil {e.expires}" if e.expires else ""
    elsewhere = f"\n{c.good_elsewhere} good elsewhere" if c.good_elsewhere else ""
    return (
        f"{e.id}{state}", f"{chr(10).join(e.features)}\non: {scope}", f"{e.reason}\n{e.evidence}",
        f"{e.author}\n{e.created}{until}", str(c.blocked), _share(c.false_blocks) + elsewhere, _share(c.true_blocks),
    )  # fmt: skip


def _whole(found: Audit) -> None:
    about = f"{found.operator} in " if found.operator else ""
    text = (
        f"active entries over {about}{found.runs} runs: false blocks {_share(found.false_blocks)} of the good "
        f"candidates, true blocks {_share(found.true_blocks)} of the bad ones"
    )
    show.out.print(text, markup=False, soft_wrap=True)


def _share(s: Share) -> str:
    if not s.of:
        return "none known"
    return f"{s.count} of {s.of} [{s.low:.0%}, {s.high:.0%}]"


def _plain(c: Counted) -> dict[str, object]:
    listed = c.listed
    return {
        **listed.entry.model_dump(mode="json"), "state": listed.state, "ships": listed.ships, "blocked": c.blocked,
        "false_blocks": c.false_blocks.model_dump(mode="json"), "true_blocks": c.true_blocks.model_dump(mode="json"),
        "good_elsewhere": c.good_elsewhere,
    }  # fmt: skip
