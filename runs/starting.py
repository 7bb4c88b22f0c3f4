"""`kernelcrew init`: a folder with an operator that runs as it stands, to be replaced step by step by one's own."""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

from kernelcrew.errors import StoreError, UserMistake
from kernelcrew.kernels.load import load_operator, shipped
from kernelcrew.record import Record
from kernelcrew.runs.vcs import vcs_trouble
from kernelcrew.tools import policy_names as names

TEMPLATE = ("operator.toml", "reference.py", "start.c")
EXAMPLE = "my_op"
"""The name that the template's files speak of."""
TAKEN = frozenset(("main", "x", "factor", "y", "rows", "n", "row", "sum", "r", "i")) | names.KEYWORDS | names.LIBRARY
"""What the template's function cannot be called."""


class Begun(Record):
    """What was written."""

    folder: Path
    """The operator's folder."""
    files: tuple[str, ...]
    """Names in it."""
    trouble: str
    """What a run still wants of version control; '' when nothing."""


def begin_operator(name: str, here: Path) -> Begun:
    """Write the template as the operator `name` into a new folder of that name under `here`.

    Raises UserMistake for a name that no C function can have or that a shipped operator has, and when a file is there
    already; StoreError when the folder cannot be written.
    """
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,63}", name) or name in TAKEN:
        what = f"'{name}' cannot name a C function"
        raise UserMistake(what, fix="use a letter, then letters, digits and _, for instance my_op")
    if name in shipped():
        fix = "choose another name, for instance my_" + name
        raise UserMistake(f"'{name}' is an operator that comes with kernelcrew", fix=fix)
    folder = here / name
    there = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if there or (folder.exists() and not folder.is_dir()):
        held = f"it holds {', '.join(there[:5])}{' ...' if len(there) > 5 else ''}" if there else "it is a file"
        raise UserMistake(f"{folder} is there already: {held}", fix="choose another name, or move it away")
    template = resources.files("kernelcrew.runs") / "templates" / "operator"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in TEMPLATE:
            text = (template / file).read_text(encoding="utf-8")
            (folder / file).write_text(re.sub(rf"\b{EXAMPLE}\b", name, text), encoding="utf-8")
    except OSError as error:
        raise StoreError(f"{folder}: {error.strerror}", fix="change to a folder that can be written") from error
    return Begun(folder=folder, files=TEMPLATE, trouble=vcs_trouble(load_operator(str(folder))))
