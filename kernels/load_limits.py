"""Limits and sizes of an operator.toml, held against its shapes: what would let anything pass, or fit no machine."""

from __future__ import annotations

from math import prod

from kernelcrew.errors import BadManifest
from kernelcrew.kernels.expr import parse
from kernelcrew.kernels.nouns import Operator, Shape, Tolerance

WIDTH = {"float32": 4, "float64": 8, "int32": 4}
LARGEST_BYTES = 16 << 30
"""Of all tensors of one shape: the reference takes no more."""
WHOLE_SCALE = 2.0**24
"""In units of u = 2^-24 of the scale: from here on an output of zeros would pass."""


def check_limits(operator: Operator, where: str) -> None:
    """Raises BadManifest. All expressions are known to have values that are not negative."""
    for index, shape in enumerate(operator.shapes):
        size = shape_bytes(operator, shape)
        if size > LARGEST_BYTES:
            what = f"its tensors take {size / 2**30:.0f} GiB"
            fix = f"make it smaller: {LARGEST_BYTES >> 30} GiB at most"
            raise BadManifest(f"{where}, field 'shapes[{index}].axes'", what, fix=fix)
        if shape.role == "timed" and not parse(operator.cost.bytes).value(shape.axes) > 0:
            what = f"expression '{operator.cost.bytes}' is 0 for the timed shape {shape.key}"
            fix = "count each input read once and each output written once"
            raise BadManifest(f"{where}, field 'cost.bytes'", what, fix=fix)
        for number, tolerance in enumerate(operator.tolerances):
            _check_tolerance(tolerance, shape, f"{where}, field 'tolerances[{number}]")


def shape_bytes(operator: Operator, shape: Shape) -> float:
    """Bytes of all tensors of one call."""
    return sum(
        prod(float(parse(dim).value(shape.axes)) for dim in tensor.dims) * WIDTH[tensor.dtype]
        for tensor in operator.tensors
    )


def _check_tolerance(tolerance: Tolerance, shape: Shape, place: str) -> None:
    for field in ("error", "bias", "deviation", "slope"):
        text = getattr(tolerance, field)
        if not text:
            continue
        value = parse(text).value(shape.axes)
        if value <= 0:
            what = f"expression '{text}' is {value:g} for shape {shape.key}: no float32 kernel could pass"
            raise BadManifest(f"{place}.{field}'", what, fix="give a limit above 0, in units of 2^-24 of the scale")
        if value >= WHOLE_SCALE:
            what = f"expression '{text}' is {value:.3g} for shape {shape.key}: an output of zeros would pass"
            raise BadManifest(f"{place}.{field}'", what, fix="give a limit far below 2^24, what an honest kernel needs")
