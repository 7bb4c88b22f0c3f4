"""Scratch memory of a plan: how many bytes its expression asks for on a shape, and what is no number of bytes."""

from __future__ import annotations

from collections.abc import Mapping

from kernelcrew.errors import UserMistake
from kernelcrew.kernels.expr import parse

MOST_BYTES = 256 << 20
"""More than any tile or packed copy of a timed shape takes; it is poisoned before each call."""


def scratch_bytes(text: str, axes: Mapping[str, int]) -> int:
    """Bytes on a shape; 0 without an expression. Raises UserMistake where `scratch_trouble` says why."""
    if not text:
        return 0
    if trouble := scratch_trouble(text, axes):
        raise UserMistake(trouble, fix="give a whole number of bytes for every shape")
    return int(parse(text).value(axes))


def scratch_trouble(text: str, axes: Mapping[str, int]) -> str:
    """Why the expression gives no size on a shape, with its value; '' when it gives one."""
    try:
        value = parse(text).value(axes)
        whole = value == int(value)
    except (UserMistake, OverflowError, ValueError) as error:
        return f"scratch_bytes '{text}' has no value ({str(error).splitlines()[0]})"
    if not whole or not 0 <= value <= MOST_BYTES:
        return f"scratch_bytes '{text}' is {value}: give a whole number from 0 to {MOST_BYTES}"
    return ""
