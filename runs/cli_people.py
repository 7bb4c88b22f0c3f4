"""The commands by which people take part: show the kernel, hand in a patch, say the last word, roll back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelcrew.runs import cli_show as show
from kernelcrew.runs.cli_options import AsJson, Minutes, Operator, Run, Workdir, resolve

if TYPE_CHECKING:
    from kernelcrew.runs.person import LastWord
    from kernelcrew.runs.queue import Submission


def register(app: typer.Typer) -> None:
    """Put these commands on the command line."""
    app.command("show")(show_kernel)
    app.command()(submit)
    app.command()(approve)
    app.command()(reject)
    app.command()(rollback)


def show_kernel(
    operator: Operator,
    backend: Annotated[str, typer.Option(help="Backend of the kernel.")] = "c",
    plan: Annotated[bool, typer.Option("--plan", help="Its launch plan in place of its source.")] = False,
    workdir: Workdir = None,
) -> None:
    """Print the kernel as it stands on this platform: what a patch is made against."""
    from kernelcrew.kernels.load import load_operator
    from kernelcrew.kernels.planfile import PLAN, to_files
    from kernelcrew.runs.submitting import standing_kernel

    standing = standing_kernel(resolve(workdir), load_operator(operator), backend)
    _plain(to_files(standing)[PLAN] if plan else standing.variants[-1].source.text)


def submit(  # noqa: PLR0913 - one parameter an option of the command
    operator: Operator,
    patch: Annotated[Path, typer.Option("--patch", help="Unified diff against the kernel, or the whole source.")],
    why: Annotated[str, typer.Option("--why", help="Why it works: mechanism and evidence.")],
    changes: Annotated[list[str] | None, typer.Option("--changes", help="NAME=HUNKS[:REASON], once a change.")] = None,
    flags: Annotated[list[str] | None, typer.Option("--flag", help="Compiler flag to add.")] = None,
    expects: Annotated[str, typer.Option("--expects", help="Class and ratio that it should reach.")] = "main=1.05",
    author: Annotated[str, typer.Option("--author", help="Your name (default: the login name).")] = "",
    backend: Annotated[str, typer.Option(help="Backend of the kernel.")] = "c",
    queue: Annotated[bool, typer.Option("--queue", help="Leave it for the next run of the team.")] = False,
    budget_min: Minutes = 4.0,
    workdir: Workdir = None,
    json: AsJson = False,
) -> None:
    """Hand in a patch of your own: the same queue, net, ablation and memory as the team's."""
    from kernelcrew.runs.session import Asked, open_run
    from kernelcrew.runs.submitting import SubmitAsked, hand_in

    settings = resolve(workdir)
    asked = SubmitAsked(
        operator=operator, backend=backend, patch=patch, why=why, changes=tuple(changes or ()),
        flags=tuple(flags or ()), expects=expects, author=author,
    )  # fmt: skip
    submission, waiting = hand_in(settings, asked)
    show.note(f"submission {submission.id} by {submission.author}: {len(submission.groups)} changes, {waiting} waiting")
    if queue:
        _submitted(submission, json=json)
        return
    with show.progress() as listener:
        # One round each for all that wait: the queue is served in order, whoever comes.
        crew = open_run(
            settings, Asked(operator=operator, backend=backend, rounds=waiting, budget_min=budget_min), listener
        )
        show.play_to_end(crew, json=json)


def approve(
    run: Run,
    why: Annotated[str, typer.Option("--why", help="What convinced you.")] = "",
    merge: Annotated[bool, typer.Option("--merge", help="Merge the run's branch into the one you are on.")] = False,
    out: Annotated[Path | None, typer.Option("--out", help="Write the kernel's files to this folder.")] = None,
    workdir: Workdir = None,
    json: AsJson = False,
) -> None:
    """Approve what a run adopted; on request bring it to your own branch."""
    from kernelcrew.runs import person

    _last_word(person.approve(resolve(workdir), run, why, merge=merge, out=out), json=json)


def reject(
    run: Run,
    why: Annotated[str, typer.Option("--why", help="The reason: memory keeps it.")],
    workdir: Workdir = None,
    json: AsJson = False,
) -> None:
    """Take back what a run adopted, and let memory know why."""
    from kernelcrew.runs import person

    _last_word(person.reject(resolve(workdir), run, why), json=json)


def rollback(
    operator: Operator,
    to: Annotated[str, typer.Option("--to", help="A run, a commit, or `start` (default: one run back).")] = "",
    why: Annotated[str, typer.Option("--why", help="The reason, for the record.")] = "",
    backend: Annotated[str, typer.Option(help="Backend of the kernel.")] = "c",
    workdir: Workdir = None,
    json: AsJson = False,
) -> None:
    """Move the adopted kernel of this platform back."""
    from kernelcrew.runs import person

    _last_word(person.roll_back(resolve(workdir), operator, to, why, backend), json=json)


def _plain(text: str) -> None:
    show.out.print(text, markup=False, highlight=False, soft_wrap=True, end="" if text.endswith("\n") else "\n")


def _submitted(submission: Submission, *, json: bool) -> None:
    if json:
        show.emit(submission.model_dump(mode="json"))
        return
    _plain(f"{submission.id} waits for the next run: kernelcrew run {submission.operator}")


def _last_word(word: LastWord, *, json: bool) -> None:
    if json:
        show.emit(word.model_dump(mode="json"))
        return
    about = f"run {word.run}" if word.run else word.operator
    _plain(f"{about}: {word.word} by {word.by.removeprefix('person:')}{f' ({word.why})' if word.why else ''}")
    if word.before != word.after:
        _plain(f"incumbent  {word.before[:12] or 'none'} -> {word.after[:12] or 'your own source'}")
    if word.merged:
        _plain(f"merged     your branch is at {word.merged[:12]}")
    for path in word.written:
        _plain(f"written    {path}")
