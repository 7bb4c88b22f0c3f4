"""The command `kernelcrew policy`: what the source gate says of a file, before anything is compiled."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernelcrew.runs import cli_show as show
from kernelcrew.runs.cli_options import AsJson

if TYPE_CHECKING:
    from kernelcrew.tools.nouns import Diagnostic

File = Annotated[Path, typer.Argument(help="A kernel's source file.")]
BackendName = Annotated[str, typer.Option(help="c, cuda or triton; by the file's ending otherwise.")]


def register(app: typer.Typer) -> None:
    """Put this command on the command line."""
    app.command()(policy)


def policy(file: File, backend: BackendName = "", json: AsJson = False) -> None:
    """Which rules a kernel's source breaks, by line; nothing is compiled or run. Exit status 1 when it breaks one."""
    from kernelcrew.files import read_text
    from kernelcrew.tools.policy_source import judge_source, language_of

    language = language_of(file.name, backend)
    found = judge_source(
        read_text(file, str(file), fix="name a source file: kernel.c, kernel.cu or kernel.py"), language
    )
    if json:
        broken = [{"line": d.line, "rule": d.kind, "message": d.message} for d in found]
        show.emit({"file": str(file), "backend": language, "passed": not found, "broken": broken})
    else:
        _verdict(file, language, found)
    if found:
        raise typer.Exit(1)


def _verdict(file: Path, language: str, found: list[Diagnostic]) -> None:
    for d in found:
        show.out.print(f"{file}:{d.line}: {d.kind}: {d.message}", markup=False, soft_wrap=True)
    outcome = f"refused: {len(found)} broken" if found else "passed"
    show.out.print(f"{outcome} ({language})", markup=False)
