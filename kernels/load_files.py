"""The files beside an operator.toml: reference, yardstick and start kernels can be read as what they are."""

from __future__ import annotations

import ast
from pathlib import Path

from kernelcrew.errors import BadManifest
from kernelcrew.files import read_text
from kernelcrew.kernels.nouns import Operator

MANIFEST = "operator.toml"
REFERENCE = "reference.py"
RIVAL = "rival.py"
SIGNATURES = {
    REFERENCE: ("reference", "write reference(inputs, axes) -> {output: (value, scale)}"),
    RIVAL: ("rival", "write rival(inputs, outputs), or delete the file: it is only a yardstick"),
}
"""What each Python file must define, and what to do."""


def check_files(operator: Operator, where: str) -> None:
    """Raises BadManifest naming the file. The yardstick may be missing; nothing is run."""
    for name, backend in operator.backends.items():
        path = operator.folder / backend.source
        fix = f"write the start kernel {backend.entry}({', '.join(backend.args)}) there"
        text = read_text(path, f"{where}, field 'backends.{name}.source': {path.name}", fix=fix)
        if not text.strip():
            raise BadManifest(str(path), "it is empty", fix=fix)
    check_python(operator.folder / REFERENCE)
    if (operator.folder / RIVAL).exists():
        check_python(operator.folder / RIVAL)


def check_python(path: Path) -> None:
    """The file is Python and defines at its top level what it is called for."""
    function, fix = SIGNATURES[path.name]
    text = read_text(path, str(path), fix=fix)
    try:
        body = ast.parse(text).body
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        said = getattr(error, "msg", None) or str(error)
        raise BadManifest(f"{path}, line {line}", f"it is no Python: {said}", fix="mend this line") from error
    if function not in {name for statement in body for name in _defined(statement)}:
        raise BadManifest(str(path), f"it defines no function {function}", fix=fix)


def _defined(statement: ast.stmt) -> set[str]:
    """The names that a statement gives a value to, blocks included."""
    names = {n.id for n in ast.walk(statement) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    kinds = (ast.FunctionDef, ast.ClassDef, ast.AsyncFunctionDef)
    names |= {n.name for n in ast.walk(statement) if isinstance(n, kinds)}
    names |= {a.asname or a.name for n in ast.walk(statement) if isinstance(n, ast.ImportFrom) for a in n.names}
    return names
