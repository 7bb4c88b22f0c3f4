"""A small reader of ELF shared objects: sections, symbols, dynamic entries, segments, relocations.

64-bit little-endian only, which is what x86-64 and AArch64 Linux and cubins have. Layout: System V ABI, gABI
chapters 4 and 5.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

SHF_WRITE, SHF_ALLOC, SHF_EXEC, SHF_TLS = 1, 2, 4, 0x400
SHT_SYMTAB, SHT_RELA, SHT_DYNAMIC, SHT_REL, SHT_DYNSYM = 2, 4, 6, 9, 11
PT_LOAD, PT_TLS, PT_GNU_STACK = 1, 7, 0x6474E551
STB_LOCAL = 0
STT_OBJECT, STT_TLS, STT_IFUNC = 1, 6, 10
DT_NEEDED, DT_INIT, DT_FINI, DT_TEXTREL, DT_FLAGS = 1, 12, 13, 22, 30
DF_TEXTREL = 4
MAX_ENTRIES = 1 << 20


class BadObject(ValueError):
    """Bytes that are no such object."""


class Section(NamedTuple):
    """One section header, with its name."""

    name: str
    """`.text` and the like."""
    type: int
    """SHT_..."""
    flags: int
    """SHF_..."""
    offset: int
    """First byte in the file."""
    size: int
    """Bytes, in memory for `.bss`."""
    link: int
    """Index of the section of names."""
    entry: int
    """Bytes of one entry, for tables."""
    info: int = 0
    """Index of the section that a table of relocations changes."""


class Symbol(NamedTuple):
    """One symbol."""

    name: str
    """Its name, without version."""
    kind: int
    """STT_..."""
    binding: int
    """STB_..."""
    section: int
    """Index of its section; 0 when it is undefined."""
    size: int
    """Bytes."""
    other: int = 0
    """Visibility, and what the machine adds to it."""


class Elf(NamedTuple):
    """What the policy looks at."""

    machine: int
    """62 for x86-64, 183 for AArch64, 190 for CUDA."""
    sections: list[Section]
    """All, the null section included."""
    dynamic_symbols: list[Symbol]
    """What the loader sees."""
    symbols: list[Symbol]
    """All, when there is a symbol table."""
    dynamic: list[tuple[int, int]]
    """Tag and value."""
    needed: list[str]
    """Libraries that it asks for."""
    segments: list[tuple[int, int]]
    """Type and flags (1 execute, 2 write, 4 read)."""
    relocations: list[int]
    """Types of all dynamic relocations."""
    flags: int = 0
    """The machine's own word of the header."""
    abi: int = 0
    """Byte 7 of the file: the system's conventions."""
    references: tuple[tuple[int, int], ...] = ()
    """Index of a symbol and of the section that refers to it, for each relocation."""


def read(data: bytes) -> Elf:
    """Parse an object. Raises BadObject for bytes that are none."""
    try:
        return _read(data)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        raise BadObject(f"not a readable ELF object: {error}") from error


def _read(data: bytes) -> Elf:
    if data[:6] != b"\x7fELF\x02\x01":
        raise BadObject("not a 64-bit little-endian ELF object")
    machine = struct.unpack_from("<H", data, 18)[0]
    program_at, section_at = struct.unpack_from("<QQ", data, 32)
    flags = struct.unpack_from("<I", data, 48)[0]
    program_size, programs, section_size, count, names_at = struct.unpack_from("<HHHHH", data, 54)
    raw = [struct.unpack_from("<IIQQQQIIQQ", data, section_at + i * section_size) for i in range(count)]
    names = data[raw[names_at][4] : raw[names_at][4] + raw[names_at][5]] if count else b""
    sections = [Section(_text(names, r[0]), r[1], r[2], r[4], r[5], r[6], r[9], r[7]) for r in raw]
    dynamic, needed = _dynamic(data, sections)
    return Elf(
        machine=machine, sections=sections, dynamic_symbols=_symbols(data, sections, SHT_DYNSYM),
        symbols=_symbols(data, sections, SHT_SYMTAB), dynamic=dynamic, needed=needed,
        segments=[struct.unpack_from("<II", data, program_at + i * program_size) for i in range(programs)],
        relocations=[
            struct.unpack_from("<I", data, at + 8)[0]
            for s in sections if s.type == SHT_RELA for at in range(s.offset, s.offset + s.size, 24)
        ],
        flags=flags, abi=data[7], references=tuple(_references(data, sections)),
    )


def _text(table: bytes, at: int) -> str:
    return table[at : table.index(b"\0", at)].decode() if at < len(table) else ""


def _table(data: bytes, sections: list[Section], section: Section) -> bytes:
    names = sections[section.link]
    return data[names.offset : names.offset + names.size]


def _symbols(data: bytes, sections: list[Section], kind: int) -> list[Symbol]:
    found = []
    for section in sections:
        if section.type != kind:
            continue
        table = _table(data, sections, section)
        for at in range(section.offset + 24, section.offset + min(section.size, 24 * MAX_ENTRIES), 24):
            name, info, other, index, _, size = struct.unpack_from("<IBBHQQ", data, at)
            found.append(Symbol(_text(table, name), info & 15, info >> 4, index, size, other))
    return found


def _references(data: bytes, sections: list[Section]) -> Iterator[tuple[int, int]]:
    for section in sections:
        step = {SHT_RELA: 24, SHT_REL: 16}.get(section.type)
        if step:
            for at in range(section.offset, section.offset + min(section.size, step * MAX_ENTRIES), step):
                yield struct.unpack_from("<I", data, at + 12)[0], section.info


def _dynamic(data: bytes, sections: list[Section]) -> tuple[list[tuple[int, int]], list[str]]:
    found: list[tuple[int, int]] = []
    needed = []
    for section in sections:
        if section.type != SHT_DYNAMIC:
            continue
        table = _table(data, sections, section)
        for at in range(section.offset, section.offset + section.size, 16):
            tag, value = struct.unpack_from("<qQ", data, at)
            if tag == 0:
                break
            found.append((tag, value))
            if tag == DT_NEEDED:
                needed.append(_text(table, value))
    return found, needed
