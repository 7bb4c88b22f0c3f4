"""What an operator.toml must hold beyond the types of its fields. Each fault is a BadManifest with field and fix.

The files beside it are looked at in `load_files`, its limits and sizes in `load_limits`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from pathlib import Path

from kernelcrew.errors import BadManifest
from kernelcrew.kernels import kinds
from kernelcrew.kernels.expr import BadExpression, parse
from kernelcrew.kernels.load_files import MANIFEST, check_files
from kernelcrew.kernels.load_limits import check_limits
from kernelcrew.kernels.nouns import Backend, Distribution, Operator

MOST_ALIGN = 4096
WHOLE_HIGH = 128.0
"""Below it int32 tensors are drawn when no bound is given."""
INT_MAX = (1 << 31) - 1
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,63}")
"""An operator's name: it stands in the names of folders, branches and refs."""
VARIANT = re.compile(r"kernel_v\d+\.\w+|plan\.toml|operator\.toml|reference\.py")
"""Names beside the manifest that a start kernel cannot have."""


def check(operator: Operator, where: str) -> None:
    """Raises BadManifest for the first fault. `where` is the manifest's path."""
    _check_names(operator, where)
    _check_axes(operator, where)
    _check_distributions(operator, where)
    _check_contract(operator, where)
    _check_backends(operator, where)
    _check_expressions(operator, where)
    _check_shapes(operator, where)
    check_limits(operator, where)
    check_files(operator, where)


def _check_names(operator: Operator, where: str) -> None:
    if not NAME.fullmatch(operator.name):
        fix = "use a letter, then letters, digits, _ and -, 64 at most"
        raise BadManifest(f"{where}, field 'name'", f"'{operator.name}' cannot name a branch or a folder", fix=fix)
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
            if not kinds.is_c_name(name):
                what = f"'{name}' is no C name"
                fix = "use letters, digits and _, and no word of C"
                raise BadManifest(f"{where}, field '{field}[{index}].name'", what, fix=fix)
    if clash := {a.name for a in operator.axes} & {t.name for t in operator.tensors}:
        what = f"'{min(clash)}' is an axis too"
        raise BadManifest(f"{where}, field 'tensors'", what, fix="give one of them another name")
    if not any(t.role != "in" for t in operator.tensors):
        raise BadManifest(f"{where}, field 'tensors'", "no output", fix="give one tensor the role 'out'")


def _check_distributions(operator: Operator, where: str) -> None:
    drawn = [d.name for d in operator.distributions]
    if operator.timing_distribution not in drawn:
        raise _not_listed(f"{where}, field 'timing_distribution'", operator.timing_distribution, drawn)
    timed = operator.distribution(operator.timing_distribution).kind
    if timed in kinds.DRAWN and timed not in kinds.TIMED:
        what = f"'{timed}' values cannot be timed on: they are special, or have a structure along rows"
        raise BadManifest(
            f"{where}, field 'timing_distribution'", what, fix=f"name one of a kind of {', '.join(sorted(kinds.TIMED))}"
        )
    tensors = [t.name for t in operator.tensors]
    for index, distribution in enumerate(operator.distributions):
        whole = any(t.dtype == "int32" for t in operator.tensors)
        _check_draw(distribution, WHOLE_HIGH if whole else 1.0, f"{where}, field 'distributions[{index}]")
        field = f"{where}, field 'distributions[{index}].tensors'"
        if strange := [t for t in distribution.tensors if t not in tensors]:
            raise BadManifest(field, f"no tensor '{strange[0]}'", fix=f"the tensors are {', '.join(tensors)}")
        if distribution.tensors and distribution.name == operator.timing_distribution:
            raise BadManifest(field, "the timed distribution draws every tensor", fix="leave it out")
    for index, tolerance in enumerate(operator.tolerances):
        if tolerance.distribution not in (*drawn, "*"):
            field = f"tolerances[{index}].distribution"
            raise _not_listed(f"{where}, field '{field}'", tolerance.distribution, [*drawn, "*"])
    limited = {t.distribution for t in operator.tolerances}
    if "*" not in limited and (bare := [d for d in drawn if d not in limited]):
        raise BadManifest(f"{where}, field 'tolerances'", f"none for '{bare[0]}'", fix="add one for it, or one for '*'")


def _check_draw(distribution: Distribution, highest: float, place: str) -> None:
    """The kind is known and its bounds make a range; `highest` stands where no upper bound is given."""
    if distribution.kind not in kinds.DRAWN:
        raise BadManifest(
            f"{place}.kind'", f"no kind '{distribution.kind}'", fix=f"the kinds are {', '.join(kinds.DRAWN)}"
        )
    low = 0.0 if distribution.low is None else distribution.low
    high = highest if distribution.high is None else distribution.high
    if not (math.isfinite(low) and math.isfinite(high)):
        raise BadManifest(f"{place}.low'", "the bounds are not finite", fix="give numbers, for instance 0.0 and 1.0")
    given = distribution.low is not None or distribution.high is not None
    if given and not low < high:
        what = f"low {low:g} is not below high {high:g}"
        raise BadManifest(f"{place}.low'", what, fix="give low < high (without them: from 0 to 1)")


def _check_axes(operator: Operator, where: str) -> None:
    """Extents are not negative, versions count from 1, and an alignment is what an allocator can give."""
    if operator.version < 1:
        what = f"{operator.version} is not positive"
        raise BadManifest(f"{where}, field 'version'", what, fix="count from 1, and raise it when the contract changes")
    for index, axis in enumerate(operator.axes):
        place = f"{where}, field 'axes[{index}]"
        if not 0 <= axis.minimum <= INT_MAX:
            raise BadManifest(f"{place}.minimum'", f"{axis.minimum} is out of range", fix=f"give 0 to {INT_MAX}")
        if axis.maximum is not None and not axis.minimum <= axis.maximum <= INT_MAX:
            what = f"{axis.maximum} is out of range"
            raise BadManifest(f"{place}.maximum'", what, fix=f"give {axis.minimum} to {INT_MAX}, or leave it out")
    for index, tensor in enumerate(operator.tensors):
        least = 8 if tensor.dtype == "float64" else 4
        align = tensor.align_bytes
        if not (least <= align <= MOST_ALIGN and align & (align - 1) == 0):
            what = f"{align} is no alignment of {tensor.dtype}"
            fix = f"give a power of two from {least} to {MOST_ALIGN}"
            raise BadManifest(f"{where}, field 'tensors[{index}].align_bytes'", what, fix=fix)


def _check_contract(operator: Operator, where: str) -> None:
    for field in ("input", "accumulator", "output"):
        name = getattr(operator.contract, field)
        if name not in kinds.PRECISIONS:
            fix = f"the precisions are {', '.join(kinds.PRECISIONS)}"
            raise BadManifest(f"{where}, field 'contract.{field}'", f"no precision '{name}'", fix=fix)


def _check_backends(operator: Operator, where: str) -> None:
    if not operator.backends:
        raise BadManifest(f"{where}, field 'backends'", "it is empty", fix="add [backends.c]")
    parameters = sorted([*(a.name for a in operator.axes), *(t.name for t in operator.tensors)])
    for name, backend in operator.backends.items():
        if name not in kinds.BACKENDS:
            fix = f"the backends are {', '.join(kinds.BACKENDS)}"
            raise BadManifest(f"{where}, field 'backends.{name}'", f"no backend '{name}'", fix=fix)
        if not kinds.is_c_name(backend.entry):
            what = f"'{backend.entry}' cannot name a C function"
            fix = "use letters, digits and _, and no word of C"
            raise BadManifest(f"{where}, field 'backends.{name}.entry'", what, fix=fix)
        if name == "c":
            _check_flags(backend, f"{where}, field 'backends.{name}")
        if sorted(backend.args) != parameters:
            fix = f"list each of these once, in the order of the C parameters: {', '.join(parameters)}"
            raise BadManifest(f"{where}, field 'backends.{name}.args'", "not the tensors and axes", fix=fix)
        _check_source(operator, name, f"{where}, field 'backends.{name}.source'")


def _check_flags(backend: Backend, place: str) -> None:
    """Flags of every list that a build may take from: what they may be is one list, for manifests and plans."""
    for field in ("base_flags", "contract_flags", "extra_flags"):
        for flag in getattr(backend, field):
            if trouble := kinds.flag_trouble(flag):
                fix = "leave it out; -O, -f and -m flags that keep values, -std= and -W may stand here"
                raise BadManifest(f"{place}.{field}'", trouble, fix=fix)


def _check_source(operator: Operator, backend: str, where: str) -> None:
    """A start kernel is a C file; it may lie elsewhere in the source tree that holds the operator."""
    source = operator.backends[backend].source
    if Path(source).is_absolute():
        raise BadManifest(where, f"'{source}' is an absolute path", fix=f"name it from the folder of {MANIFEST}")
    if not (operator.folder / source).is_file():
        what = f"no file '{source}', seen from {operator.folder}"
        raise BadManifest(where, what, fix="name the start kernel's file")
    if VARIANT.fullmatch(source):
        raise BadManifest(where, f"'{source}' is a name that kernelcrew writes itself", fix="call it start.c")


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
        if tolerance.slope:
            yield f"tolerances[{i}].slope", tolerance.slope


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
    maximum = {a.name: INT_MAX if a.maximum is None else a.maximum for a in operator.axes}
    for index, shape in enumerate(operator.shapes):
        field = f"{where}, field 'shapes[{index}].axes'"
        if list(shape.axes) != list(minimum):
            named = ", ".join(shape.axes) or "none"
            raise BadManifest(field, f"it names {named}", fix=f"give, in this order: {', '.join(minimum)}")
        for name, value in shape.axes.items():
            if not minimum[name] <= value <= maximum[name]:
                fix = f"from {minimum[name]} to {maximum[name]}"
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
