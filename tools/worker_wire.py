"""What parent and worker say to each other: 64-bit words over a Unix socket that keeps message borders.

A command is `[command, ticket, ...words]`, with file descriptors beside it; its answer is `[command, ticket, 6 words]`
and 256 bytes of text. The ticket is new each time, so an answer that was not asked for is seen. `csrc/worker.c` holds
the same numbers.
"""

from __future__ import annotations

import os
import signal
import socket
import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kernelcrew.kernels.nouns import Operator
from kernelcrew.tools.arena import InputRing, OutputRing, Placement, Plan
from kernelcrew.tools.worker_program import Signature

HELLO, LOAD, ATTACH, DETACH, BATCH, PING, FAULT = range(1, 8)
NAMES = {LOAD: "load", ATTACH: "attach", DETACH: "detach", BATCH: "batch", PING: "ping"}
_REPLY = struct.Struct("=8q256s")
REPLY_BYTES = _REPLY.size
_CREDENTIALS = struct.Struct("=3i")


class NoHelloError(Exception):
    """The worker ended, or said something else, before its first word. Becomes a HarnessError."""


@dataclass(frozen=True)
class Reply:
    """One answer."""

    command: int
    ticket: int
    words: tuple[int, ...]
    text: str


@dataclass(frozen=True)
class Rings:
    """What is attached under one handle, and where the worker has it."""

    inputs: Plan
    outputs: Plan
    slots: int
    input_base: int
    output_base: int


def pack(command: int, ticket: int, words: Sequence[int]) -> bytes:
    """A command's bytes."""
    return struct.pack(f"={2 + len(words)}q", command, ticket, *words)


def unpack(raw: bytes) -> Reply | None:
    """An answer, or None for bytes that are none."""
    if len(raw) != REPLY_BYTES:
        return None
    *words, text = _REPLY.unpack(raw)
    return Reply(words[0], words[1], tuple(words[2:]), text.split(b"\0", 1)[0].decode(errors="replace"))


def receive_hello(link: socket.socket, limit_s: float) -> int:
    """Wait for the worker's first word; the kernel says which process sent it, numbered as this one sees it.

    Raises NoHelloError when it does not come or tells of a failed start, TimeoutError (an OSError) after `limit_s`.
    """
    link.settimeout(limit_s)
    raw, ancillary, _, _ = link.recvmsg(REPLY_BYTES, socket.CMSG_SPACE(_CREDENTIALS.size))
    link.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 0)
    reply = unpack(raw)
    if reply is None or reply.command != HELLO:
        raise NoHelloError("it ended before its first word")
    if reply.words[0]:
        raise NoHelloError(reply.text)
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            return int(_CREDENTIALS.unpack(data)[0])
    raise NoHelloError("the kernel did not name its process")


def fresh_copy(artifact: Path) -> int:
    """A sealed copy of a shared object in memory pages of its own, so that placement differs from worker to worker."""
    copy = os.memfd_create("object", os.MFD_CLOEXEC)
    with open(artifact, "rb") as source, open(copy, "wb", closefd=False) as target:
        target.write(source.read())
    return copy


def attach_words(
    operator: Operator, signature: Signature, inputs: InputRing, outputs: OutputRing, scratch_bytes: int
) -> list[int]:
    """The words of ATTACH: slots, scratch, windows, axes, both rings, and each tensor in the order of the arguments."""
    words = [inputs.slots, scratch_bytes, inputs.windows, *(inputs.axes[name] for name in signature.axes)]
    for plan in (inputs.plan, outputs.plan):
        words += [plan.total_bytes, plan.stride_bytes, int(plan.guarded)]
    places = {place.name: place for plan in (inputs.plan, outputs.plan) for place in plan.placements}
    for name in signature.tensors:
        place = places[name]
        words += [place.offset_bytes, place.size_bytes, *place.segment_bytes]
    return words


def describe_fault(reply: Reply, attached: Iterable[Rings]) -> str:
    """A worker's last word: the signal, and the tensor that the address belongs to."""
    number, address, access, call = reply.words[:4]
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    if name == "SIGSYS":
        return f"SIGSYS: system call {call}{f' ({reply.text})' if reply.text else ''} is not open to a kernel"
    if name not in ("SIGSEGV", "SIGBUS"):
        return name
    verb = {0: "touched", 1: "read", 2: "wrote to"}.get(access, "touched")
    for rings in attached:
        for plan, base in ((rings.inputs, rings.input_base), (rings.outputs, rings.output_base)):
            offset = address - base
            if 0 <= offset < plan.total_bytes:
                return f"{name}: {verb} {_where(plan, rings.slots, offset, plan is rings.inputs)}"
    return f"{name}: {verb} address {address:#x}, which is in no tensor"


def _where(plan: Plan, slots: int, offset: int, read_only: bool) -> str:
    """Words for a place in a ring: the tensor that holds it, else the nearest one."""
    best: tuple[int, str] | None = None
    for place in plan.placements:
        nearest = min(max((offset - place.offset_bytes) // max(plan.stride_bytes, 1), 0), slots - 1)
        for slot in {nearest, min(nearest + 1, slots - 1)}:
            distance, words = _near(place, slot, offset - slot * plan.stride_bytes, read_only)
            if best is None or distance < best[0]:
                best = (distance, words)
    return best[1] if best else "a guard"


def _near(place: Placement, slot: int, offset: int, read_only: bool) -> tuple[int, str]:
    end = place.offset_bytes + place.size_bytes
    if offset < place.offset_bytes:
        return place.offset_bytes - offset, f"{place.offset_bytes - offset} bytes before '{place.name}' in slot {slot}"
    if offset >= end:
        return offset - end + 1, f"{offset - end} bytes past the end of '{place.name}' in slot {slot}"
    return 0, f"{'read-only ' if read_only else ''}'{place.name}' in slot {slot}"
