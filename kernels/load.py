"""Operators from their folders: `operator.toml` read, checked and turned into the noun.

A broken manifest is a BadManifest that names the file, the line or field, and the fix.
"""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import ValidationError

from kernelcrew.errors import BadManifest, UnknownName
from kernelcrew.files import read_text
from kernelcrew.kernels.load_checks import check
from kernelcrew.kernels.load_files import MANIFEST, REFERENCE
from kernelcrew.kernels.nouns import Candidate, KernelSource, LaunchPlan, Operator, Variant
from kernelcrew.kernels.planfile import PLAN, files_named, from_files
from kernelcrew.wording import told, toml_of


def shipped() -> dict[str, Path]:
    """The operators that come with kernelcrew: name to folder."""
    here = Path(__file__).resolve().parent
    return {found.parent.name: found.parent for found in sorted(here.glob(f"*/{MANIFEST}"))}


def load_operator(path_or_name: str) -> Operator:
    """A shipped operator by name, or any by the path of its folder or manifest.

    Raises UnknownName (listing the shipped ones) or BadManifest.
    """
    known = shipped()
    if path_or_name in known:
        return _read(known[path_or_name] / MANIFEST)
    path = Path(path_or_name)
    manifest = path / MANIFEST if path.is_dir() else path
    if manifest.name == MANIFEST and manifest.is_file():
        return _read(manifest.resolve())
    if path.is_dir():
        fix = f"write {MANIFEST} there; kernels/reduction/{MANIFEST} is an example"
        raise BadManifest(str(path), f"the folder has no {MANIFEST}", fix=fix)
    fix = f"give one of these, or the path of a folder with {MANIFEST}"
    raise UnknownName("operator", path_or_name, known, fix=fix)


def start_candidate(operator: Operator, backend: str = "c") -> Candidate:
    """The kernel that a run starts from: the backend's source with its base flags alone, or as the `plan.toml` beside
    the manifest says, which an adopted kernel brings along.

    Raises UnknownName for a backend the operator does not have, BadManifest when source or plan cannot be read.
    """
    if backend not in operator.backends:
        fix = f"operator {operator.name} is built for these only"
        raise UnknownName("backend", backend, operator.backends, fix=fix)
    how = operator.backends[backend]
    if (adopted := _planned(operator, backend)) is not None:
        return adopted
    text = _text(operator.folder / how.source, f"{operator.folder / MANIFEST}, field 'backends.{backend}.source'")
    source = KernelSource(language="c", text=text, name=Path(how.source).name)
    variant = Variant(source=source, plan=LaunchPlan(entry=how.entry))
    return Candidate(operator=operator.name, backend=backend, variants=(variant,), author="start")


def is_shipped(operator: Operator) -> bool:
    """Whether it lies in kernelcrew's own folder."""
    return operator.folder == shipped().get(operator.folder.name)


def kernel_file(operator: Operator, backend: str) -> str:
    """The start kernel's file seen from the operator's folder, links resolved: `start.c`, `../src/foo.c`."""
    folder = operator.folder.resolve()
    return Path(os.path.relpath((folder / operator.backends[backend].source).resolve(), folder)).as_posix()


def _planned(operator: Operator, backend: str) -> Candidate | None:
    """The candidate of a plan.toml beside the manifest; None when there is none, or it is another backend's."""
    path = operator.folder / PLAN
    if not path.is_file():
        return None
    plan, where = _text(path, str(path)), str(operator.folder)
    names = files_named(plan, where)
    kernel = kernel_file(operator, backend)
    for index, name in enumerate(names):
        if name != kernel and (index == len(names) - 1 or Path(name).name != name):
            fix = f"the last variant's file is '{kernel}', the others lie beside {MANIFEST}; or delete {PLAN}"
            raise BadManifest(f"{path}, variant {index + 1}, field 'file'", f"'{name}' cannot stand there", fix=fix)
    files = {name: _text(operator.folder / name, f"{path}, file '{name}'") for name in names}
    found = from_files({PLAN: plan, **files}, where)
    if found.backend != backend:
        return None
    return found.model_copy(update={"operator": operator.name, "author": "start"})


def reference_path(operator: Operator) -> Path:
    """The operator's `reference.py`. Raises BadManifest when it is not there."""
    path = operator.folder / REFERENCE
    if not path.is_file():
        raise BadManifest(str(path), "no such file", fix="write reference(inputs, axes) -> {output: (value, scale)}")
    return path


def _read(manifest: Path) -> Operator:
    where = str(manifest)
    data = toml_of(_text(manifest, where), where)
    data["folder"] = manifest.parent
    try:
        operator = Operator.model_validate(data)
    except ValidationError as error:
        raise told(where, error, Operator) from error
    check(operator, where)
    return operator


def _text(path: Path, where: str) -> str:
    return read_text(path, where, fix=f"make {path.name} a readable UTF-8 file")
