"""Operators from their folders: `operator.toml` read, checked and turned into the noun.

A broken manifest is a BadManifest that names the file, the line or field, and the fix.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kernelcrew.errors import BadManifest, UnknownName
from kernelcrew.kernels.expr import BadExpression, parse
from kernelcrew.kernels.nouns import Candidate, KernelSource, LaunchPlan, Operator, Variant

MANIFEST = "operator.toml"
REFERENCE = "reference.py"


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
    """The kernel that a run starts from: the backend's source with its base flags alone.

    Raises UnknownName for a backend the operator does not have, BadManifest when the source cannot be read.
    """
    if backend not in operator.backends:
        fix = f"operator {operator.name} is built for these only"
        raise UnknownName("backend", backend, operator.backends, fix=fix)
    how = operator.backends[backend]
    text = _text(operator.folder / how.source, f"{operator.folder / MANIFEST}, field 'backends.{backend}.source'")
    source = KernelSource(language="c", text=text, name=Path(how.source).name)
    variant = Variant(source=source, plan=LaunchPlan(entry=how.entry))
    return Candidate(operator=operator.name, backend=backend, variants=(variant,), author="start")


def reference_path(operator: Operator) -> Path:
    """The operator's `reference.py`. Raises BadManifest when it is not there."""
    path = operator.folder / REFERENCE
    if not path.is_file():
        raise BadManifest(str(path), "no such file", fix="write reference(inputs, axes) -> {output: (value, scale)}")
    return path


def _read(manifest: Path) -> Operator:
    where = str(manifest)
    try:
        data = tomllib.loads(_text(manifest, where))
    except tomllib.TOMLDecodeError as error:
        raise BadManifest(where, f"not TOML: {error}", fix="mend the line that is named") from error
    data["folder"] = manifest.parent
    try:
        operator = Operator.model_validate(data)
    except ValidationError as error:
        raise _broken(where, error) from error
    _check_names(operator, where)
    _check_backends(operator, where)
    _check_expressions(operator, where)
    _check_shapes(operator, where)
    return operator


def _broken(where: str, error: ValidationError) -> BadManifest:
    first = error.errors()[0]
    field = _field(first["loc"])
    if first["type"] == "extra_forbidden":
        return BadManifest(f"{where}, field '{field}'", "no such field", fix="remove it or mend its name")
    if first["type"] == "missing":
        return BadManifest(f"{where}, field '{field}'", "it is missing", fix="add it")
    what = f"{first['msg']}, got {_shown(first['input'])}"
    return BadManifest(f"{where}, field '{field}'", what, fix="mend its value")


def _check_names(operator: Operator, where: str) -> None:
    lists: tuple[tuple[str, list[str]], ...] = (
        ("axes", [a.name for a in operator.axes]), ("tensors", [t.name for t in operator.tensors]),
        ("distributions", [d.name for d in operator.distributions]), ("shapes", [s.key for s in operator.shapes]),
        ("tolerances", [t.distribution for t in operator.tolerances]),
    )
    for field, names in lists:
        if not names:
            raise BadManifest(f"{where}, field '{field}'", "it is empty", fix="list at least one")
        for index, name in enumerate(names):
            if name in names[:index]:
                what = f"'{name}' is there twice"
                raise BadManifest(f"{where}, field '{field}[{index}]'", what, fix="keep one of them")
    for field, names in lists[:2]:
        for index, name in enumerate(names):
            if not (name.isidentifier() and name.isascii()):
                what = f"'{name}' is no C name"
                raise BadManifest(f"{where}, field '{field}[{index}].name'", what, fix="use letters, digits, _")
    if clash := {a.name for a in operator.axes} & {t.name for t in operator.tensors}:
        what = f"'{min(clash)}' is an axis too"
        raise BadManifest(f"{where}, field 'tensors'", what, fix="give one of them another name")
    if not any(t.role != "in" for t in operator.tensors):
        raise BadManifest(f"{where}, field 'tensors'", "no output", fix="give one tensor the role 'out'")
    drawn = [d.name for d in operator.distributions]
    if operator.timing_distribution not in drawn:
        raise _not_listed(f"{where}, field 'timing_distribution'", operator.timing_distribution, drawn)
    for index, tolerance in enumerate(operator.tolerances):
        if tolerance.distribution not in (*drawn, "*"):
            field = f"tolerances[{index}].distribution"
            raise _not_listed(f"{where}, field '{field}'", tolerance.distribution, [*drawn, "*"])
    limited = {t.distribution for t in operator.tolerances}
    if "*" not in limited and (bare := [d for d in drawn if d not in limited]):
        raise BadManifest(f"{where}, field 'tolerances'", f"none for '{bare[0]}'", fix="add one for it, or one for '*'")


def _check_backends(operator: Operator, where: str) -> None:
    if not operator.backends:
        raise BadManifest(f"{where}, field 'backends'", "it is empty", fix="add [backends.c]")
    parameters = sorted([*(a.name for a in operator.axes), *(t.name for t in operator.tensors)])
    for name, backend in operator.backends.items():
        if sorted(backend.args) != parameters:
            fix = f"list each of these once, in the order of the C parameters: {', '.join(parameters)}"
            raise BadManifest(f"{where}, field 'backends.{name}.args'", "not the tensors and axes", fix=fix)
        source = operator.folder / backend.source
        if Path(backend.source).name != backend.source or not source.is_file():
            what = f"no file '{backend.source}' beside the manifest"
            raise BadManifest(f"{where}, field 'backends.{name}.source'", what, fix="name the start kernel's file")


def _expressions(operator: Operator) -> Iterator[tuple[str, str]]:
    yield "cost.flops", operator.cost.flops
    yield "cost.bytes", operator.cost.bytes
    for i, tensor in enumerate(operator.tensors):
        for j, dim in enumerate(tensor.dims):
            yield f"tensors[{i}].dims[{j}]", dim
    for i, tolerance in enumerate(operator.tolerances):
        yield f"tolerances[{i}].error", tolerance.error
        yield f"tolerances[{i}].bias", tolerance.bias
        yield f"tolerances[{i}].deviation", tolerance.deviation


def _check_expressions(operator: Operator, where: str) -> None:
    axes = {a.name for a in operator.axes}
    for field, text in _expressions(operator):
        try:
            names = parse(text).names
        except BadExpression as error:
            raise BadManifest(f"{where}, field '{field}'", error.what, fix=error.fix) from error
        if strange := names - axes:
            raise BadManifest(
                f"{where}, field '{field}'", f"expression '{text}' uses '{min(strange)}', which is no axis",
                fix=f"the axes are {', '.join(sorted(axes))}",
            )


def _check_shapes(operator: Operator, where: str) -> None:
    minimum = {a.name: a.minimum for a in operator.axes}
    for index, shape in enumerate(operator.shapes):
        field = f"{where}, field 'shapes[{index}].axes'"
        if list(shape.axes) != list(minimum):
            named = ", ".join(shape.axes) or "none"
            raise BadManifest(field, f"it names {named}", fix=f"give, in this order: {', '.join(minimum)}")
        for name, value in shape.axes.items():
            if not minimum[name] <= value < 1 << 31:
                fix = f"from {minimum[name]} to {(1 << 31) - 1}"
                raise BadManifest(f"{field}.{name}", f"{value} is out of range", fix=fix)
        if not shape.weight > 0:
            what = f"{shape.weight} is not positive"
            raise BadManifest(f"{where}, field 'shapes[{index}].weight'", what, fix="use 1.0")
        for name, text in _expressions(operator):
            _check_value(text, shape.axes, f"{where}, field '{name}', shape {shape.key}")
    if not operator.timed():
        raise BadManifest(f"{where}, field 'shapes'", "no timed shape", fix="give at least one the role 'timed'")


def _check_value(text: str, axes: dict[str, int], where: str) -> None:
    try:
        value = parse(text).value(axes)
    except BadExpression as error:
        raise BadManifest(where, error.what, fix="guard it with max(...) or mend the shape") from error
    if value < 0:
        raise BadManifest(where, f"expression '{text}' is {value}", fix="it must not be negative")


def _not_listed(where: str, name: str, known: list[str]) -> BadManifest:
    return BadManifest(where, f"no distribution '{name}'", fix=f"the distributions are {', '.join(known)}")


def _text(path: Path, where: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        what = f"{path.name} cannot be read ({error})"
        raise BadManifest(where, what, fix="make it a readable UTF-8 file") from error


def _field(loc: tuple[int | str, ...]) -> str:
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
