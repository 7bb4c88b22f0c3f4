"""The commands for an operator of one's own: `kernelcrew init`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kernelcrew.runs import cli_show as show
from kernelcrew.runs.cli_options import AsJson

Name = Annotated[str, typer.Argument(help="The operator's name: a C identifier.")]


def register(app: typer.Typer) -> None:
    """Put these commands on the command line."""
    app.command()(init)


def init(name: Name, json: AsJson = False) -> None:
    """Write a new operator that runs as it stands: a folder with operator.toml, reference.py and start.c."""
    from kernelcrew.runs.starting import begin_operator

    begun = begin_operator(name, Path.cwd())
    if json:
        show.emit({"folder": str(begun.folder), "files": list(begun.files), "version_control": begun.trouble})
        return
    lines = [
        f"written: {', '.join(f'{name}/{file}' for file in begun.files)}",
        f"It computes scaled row sums and runs as it stands. Make it your own:\n{STEPS.format(name=name)}",
    ]
    if begun.trouble:
        lines += ["A run wants it in version control, since kernels are handed back as commits:", begun.trouble]
    show.out.print("\n".join(lines), markup=False, soft_wrap=True)


STEPS = """\
  1. {name}/reference.py   what is right, in float64
  2. {name}/operator.toml  parameters, shapes, limits; each field is explained there
  3. {name}/start.c        the kernel you have now
  4. kernelcrew check ./{name}     whether the three agree
  5. kernelcrew run ./{name}"""
"""What to do next."""
