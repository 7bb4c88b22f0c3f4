"""A small reader of ELF shared objects: sections, symbols, dynamic entries, segments, relocations.

64-bit little-endian only, which is what x86-64 and AArch64 Linux have. Layout: System V ABI, gABI chapters 4 and 5.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

SHF_WRITE, SHF_ALLOC, SHF_EXEC, SHF_TLS = 1, 2, 4, 0x400
SHT_SYMTAB, SHT_RELA, SHT_DYNAMIC, SHT_DYNSYM = 2, 4, 6, 11
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


class Elf(NamedTuple):
    """What the policy looks at."""

    machine: int
    """62 for x86-64, 183 for AArch64."""
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
    program_size, programs, section_size, count, names_at = struct.unpack_from("<HHHHH", data, 54)
    raw = [struct.unpack_from("<IIQQQQIIQQ", data, section_at + i * section_size) for i in range(count)]
    names = data[raw[names_at][4] : raw[names_at][4] + raw[names_at][5]] if count else b""
    sections = [Section(_text(names, r[0]), r[1], r[2], r[4], r[5], r[6], r[9]) for r in raw]
    dynamic, needed = _dynamic(data, sections)
    return Elf(
        machine=machine, sections=sections, dynamic_symbols=_symbols(data, sections, SHT_DYNSYM),
        symbols=_symbols(data, sections, SHT_SYMTAB), dynamic=dynamic, needed=needed,
        segments=[struct.unpack_from("<II", data, program_at + i * program_size) for i in range(programs)],
        relocations=[
            struct.unpack_from("<I", data, at + 8)[0]
            for s in sections if s.type == SHT_RELA for at in range(s.offset, s.offset + s.size, 24)
        ],
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
            name, info, _, index, _, size = struct.unpack_from("<IBBHQQ", data, at)
            found.append(Symbol(_text(table, name), info & 15, info >> 4, index, size))
    return found


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
