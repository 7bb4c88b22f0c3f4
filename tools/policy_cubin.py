"""The policy gate behind nvcc and Triton and before the driver: what a cubin may hold.

A candidate's cubin exports the plan's kernels and nothing else, has no memory that outlives a launch, refers to nothing
outside itself, calls functions by their place and not through pointers, and reads no clock. Pure reading of bytes: no
tool, no driver, no device. Instructions have 128 bits from sm_70 on; the fields read here (operation in bits 0-11,
special register in bits 72-79) were seen to be the same from sm_75 to sm_120 in what nvcc 13.0 makes.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

from kernelcrew.tools import elf
from kernelcrew.tools.nouns import Diagnostic

EM_CUDA = 190
ENTRY = 0x10
"""Bit of a symbol's `other` that marks what can be launched."""
STT_FUNC = 2
STB_GLOBAL = 1
SHT_NOBITS = 8
WORD = 16
OLDEST, NEWEST = 70, 139
ARCHITECTURE_AT = {0x33: 0, 0x41: 8}
"""Bit of the header's flags at which the architecture's number begins, by conventions: the assemblers of CUDA 12
(Triton 3.6 carries one) and of CUDA 13."""

MAX_BYTES = 64 << 20

SECTIONS = re.compile(
    r"\.text\..+|\.nv\.constant[0-9](?:\..+)?|\.nv\.shared(?:\..+)?|\.nv\.local(?:\..+)?|\.nv\.tmem(?:\..+)?"
    r"|\.nv\.merc\..+|\.nv\.capmerc\..+"
)
"""Sections that the driver loads and that end with the launch or cannot be written."""
GLOBALS = (".nv.global", ".nv.global.init", ".nv.merc.nv.global", ".nv.merc.nv.global.init")
TABLES = re.compile(r"__cudart_(?:i2opi_[fd]|sin_cos_coeffs|lg_coeffs)|__internal_i2opi_[fd]|_\$_str[_0-9]*")
"""Constants of the compiler's own mathematics, and names of switches that libdevice asks for, which end up among
initialised globals. No source can spell them."""
TAGS = re.compile(r"_ZN[0-9]+_INTERNAL_[0-9a-f]{8}_[0-9]+_\w+?_[0-9a-f]{8}[0-9]*(?:4cuda|6thrust|3cub)\w+E")
"""Tags of one byte that the headers of cub and libcu++ leave in every object (`cuda::std::ignore` for
one). The compiler keeps a table of their addresses, used or not; the source policy lets nobody name them."""
OUTSIDE = re.compile(
    r"\.nv\.reservedSmem\.[A-Za-z0-9_.]+|__nv_reservedSMEM_[A-Za-z0-9_]+|\.nv\.reservedTmem\.[A-Za-z0-9_.]+|"
)
"""Symbols without a place of their own that stand for reserved shared memory."""
KNOWN_OUTSIDE = {
    "vprintf": "it prints",
    "malloc": "it keeps memory between launches",
    "free": "it keeps memory between launches",
    "__assertfail": "it stops the program",
    "cudaGetParameterBufferV2": "it starts a kernel from the device",
    "cudaLaunchDeviceV2": "it starts a kernel from the device",
}

INDIRECT = {0x343: "CALL.ABS", 0x344: "CALL.REL", 0x34A: "JMP", 0x34C: "JMX"}
"""Calls and jumps whose target is in a register. Jumps inside a switch (BRX, BRXU) have a table of the compiler's."""
READS_SPECIAL = (0x919, 0x9C3, 0x805, 0x8CB)
"""S2R, S2UR, CS2R, and CS2UR, which sm_120 has."""
SPECIAL = frozenset(
    (0x00, 0x03, 0x21, 0x22, 0x23, 0x25, 0x26, 0x27, 0x32, 0x38, 0x39, 0x3A, 0x3B, 0x3C, 0x88, 0x8A, 0xFF)
)
"""Lane, warp, thread and block indices, lane masks, size of shared memory, rank in the cluster and
its size, zero."""
CLOCKS = {0x50: "clock", 0x51: "clock", 0x52: "globaltimer", 0x53: "globaltimer"}


def cubin_policy(path: Path, kernels: Iterable[str]) -> tuple[Diagnostic, ...]:
    """Broken rules of the cubin at `path`, whose kernels the plan names; empty when it may be loaded."""
    if path.is_symlink() or not path.is_file():
        return (_broken("object", "the compiler left no plain file"),)
    if path.stat().st_size > MAX_BYTES:
        return (_broken("object", f"it is larger than {MAX_BYTES >> 20} MiB: make the kernel smaller"),)
    return cubin_bytes_policy(path.read_bytes(), kernels)


def cubin_bytes_policy(data: bytes, kernels: Iterable[str]) -> tuple[Diagnostic, ...]:
    """The same for bytes."""
    try:
        found = elf.read(data)
    except elf.BadObject as error:
        return (_broken("object", str(error)),)
    sm = architecture(found)
    if found.machine != EM_CUDA or not OLDEST <= sm <= NEWEST:
        return (_broken("object", "not a cubin for sm_70 to sm_139: build it with nvcc or Triton for such a device"),)
    return (
        *_exports(found, set(kernels)), *_outside(found), *_state(found), *_instructions(found, data),
    )  # fmt: skip


def architecture(found: elf.Elf) -> int:
    """Number of the architecture, 90 for sm_90; 0 for conventions that are not known here."""
    return (found.flags >> ARCHITECTURE_AT.get(found.abi, 32)) & 0xFF


def _exports(found: elf.Elf, kernels: set[str]) -> Iterator[Diagnostic]:
    entries = {s.name for s in found.symbols if s.kind == STT_FUNC and s.section and s.other & ENTRY}
    for name in sorted(kernels - entries):
        yield _broken("export", f"kernel '{name}' is not in it: define it as extern \"C\" __global__")
    for name in sorted(entries - kernels):
        yield _broken("export", f"kernel '{name}' is in it: only {', '.join(sorted(kernels))} may be")
    for symbol in found.symbols:
        seen = symbol.binding == STB_GLOBAL and symbol.section and symbol.name not in entries
        if seen:
            yield _broken("export", f"'{symbol.name}' is seen from outside: leave relocatable device code out")


def _outside(found: elf.Elf) -> Iterator[Diagnostic]:
    for symbol in found.symbols:
        if symbol.section == 0 and not OUTSIDE.fullmatch(symbol.name):
            why = KNOWN_OUTSIDE.get(symbol.name, "nothing outside the kernel can be called")
            yield _broken("symbol", f"'{symbol.name}' is not on the list: {why}")


def _state(found: elf.Elf) -> Iterator[Diagnostic]:
    for index, section in enumerate(found.sections):
        if not section.flags & elf.SHF_ALLOC or not section.size or SECTIONS.fullmatch(section.name):
            continue
        if section.name in GLOBALS:
            reached = _reached(found, index)
            if reached:
                named = ", ".join(f"'{name}'" for name in reached[:5])
                what = f"device memory that outlives a launch ({named}): use arguments, or __constant__ tables"
                yield _broken("state", what)
        else:
            yield _broken("section", f"section {section.name}: leave section attributes and linked device code out")


def _reached(found: elf.Elf, index: int) -> list[str]:
    """Names of the objects of a section of globals that the kernels refer to, the compiler's own tables excepted.

    Libraries leave tags there that nothing refers to; what no relocation names a kernel cannot find.
    """
    names = set()
    for number, target in found.references:  # numbers count the null symbol, which the table leaves out
        loaded = target < len(found.sections) and found.sections[target].flags & elf.SHF_ALLOC
        symbol = found.symbols[number - 1] if 0 < number <= len(found.symbols) else None
        if not loaded or symbol is None or symbol.section != index:
            continue
        if not TABLES.fullmatch(symbol.name) and not (symbol.size == 1 and TAGS.fullmatch(symbol.name)):
            names.add(symbol.name or found.sections[index].name)
    return sorted(names)


def _instructions(found: elf.Elf, data: bytes) -> Iterator[Diagnostic]:
    seen: set[tuple[str, int]] = set()
    code = 0
    for section in found.sections:
        if not section.flags & elf.SHF_EXEC:
            continue
        body = data[section.offset : section.offset + section.size]
        if section.type == SHT_NOBITS or len(body) != section.size or section.size % WORD:
            yield _broken("object", f"section {section.name} is cut off")
            continue
        code += len(body) // WORD
        for low, high in struct.iter_unpack("<QQ", body):
            operation = low & 0xFFF
            if operation in INDIRECT and ("call", operation) not in seen:
                seen.add(("call", operation))
                what = f"{INDIRECT[operation]} goes where a register says: call functions by name"
                yield _broken("call", f"{section.name}: {what}")
            register = (high >> 8) & 0xFF
            if operation in READS_SPECIAL and register not in SPECIAL and ("special", register) not in seen:
                seen.add(("special", register))
                shown = CLOCKS.get(register, f"number {register:#x}")
                what = f"special register {shown} is read: a kernel sees its place in the grid and nothing else"
                yield _broken("instruction", f"{section.name}: {what}")
    if not code:
        yield _broken("object", "no instructions could be read from it")


def _broken(rule: str, message: str) -> Diagnostic:
    return Diagnostic(kind=rule, line=0, message=message)
