"""The policy gate behind the compiler and before the loader: what a shared object may hold.

A kernel's object exports one function, refers to memory and mathematics alone, has nothing that can be written to from
one call to the next, runs nothing when it is loaded, and leaves the machine's state alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from kernelcrew.tools import elf
from kernelcrew.tools import policy_names as names
from kernelcrew.tools.nouns import Diagnostic

WRITABLE_OK = (".dynamic", ".got", ".got.plt", ".data.rel.ro", ".relro_padding")
"""Sections that the loader fills and then makes read-only."""
EXECUTABLE_OK = (".text", ".plt", ".plt.got", ".plt.sec")
STARTERS = (".init", ".fini", ".init_array", ".fini_array", ".preinit_array", ".ctors", ".dtors")
LIBRARIES = re.compile(r"(libc|libm|libmvec|libgcc_s|libgomp|ld-linux-[a-z0-9_-]+)\.so\.[0-9]+")
COMPILER_MADE = names.words("__stack_chk_fail __memcpy_chk __memset_chk __memmove_chk _GLOBAL_OFFSET_TABLE_")
VECTOR_MATH = re.compile(r"_ZGV[a-z]N[0-9]+v+_([a-z0-9]+)")
GNU_MATH = re.compile(r"__([a-z0-9]+)_finite")
OMP_RUNTIME = re.compile(
    r"GOMP_(parallel|barrier|loop_[a-z_]+|single_[a-z_]+|critical_[a-z_]+|atomic_[a-z]+|sections_[a-z0-9_]+)"
)
IRELATIVE = {62: 37, 183: 1032}
"""Relocations that run code of the object while it is loaded, by machine (x86-64, AArch64)."""

_X86 = re.compile(
    r"syscall|sysenter|sysexit|sysret[lq]?|int|into|iret[lqw]?|rdtscp?|rdpmc|rdpru|rdpid|rdrand|rdseed|"
    r"v?ldmxcsr|v?stmxcsr|fldcw|fldenv|f?n?stenv|xrstor[a-z0-9]*|xsave[a-z0-9]*|fxrstor(64)?|fxsave(64)?|"
    r"frstor|fnsave|(rd|wr)(fs|gs)base[lq]?|xgetbv|xsetbv|cpuid|in[bwl]?|out[bwl]?|ins[bwl]|outs[bwl]|hlt|cli|"
    r"sti|clflush(opt)?|clwb|cldemote|wbinvd|invd|rdpkru|wrpkru|enqcmds?|xbegin|xabort|monitorx?|mwaitx?|"
    r"umonitor|umwait|tpause|rdmsr|wrmsr|swapgs|vmcall|vmmcall|vmfunc|getsec|encl[suv]|ptwrite|ljmp|lcall|lret|"
    r"incssp[dq]|rstorssp|popf[lqw]?|serialize|senduipi|uiret"
)
_ARM = re.compile(r"svc|hvc|smc|msr|mrs|brk|hlt|eret|dcps[123]|sys|sysl|at|dc|ic|tlbi|wfe|wfi|wfet|wfit|sev|sevl|yield")
_SEGMENT = re.compile(r"%[fg]s:(?!0x28\b)")
_INSTRUCTION = re.compile(r"^\s*[0-9a-f]+:\s+(?P<words>\S.*)$")
_INDIRECT = re.compile(r"(call|jmp)[qlw]?\s+\*(?!0x[0-9a-f]+\(%rip\))|(blr|br|blra|bra)[a-z]*\s")
"""Calls and jumps through a register or memory; those through the object's own read-only tables excepted. The builder
asks for no jump tables, so that a switch needs none; a table of imports jumps through a register on AArch64."""
_SECTION = re.compile(r"^Disassembly of section (\S+):")
_PREFIXES = names.words("lock rep repz repnz repe repne bnd notrack data16 addr32 cs ds es ss rex rex.W xacquire")


def object_policy(path: Path, entry: str, threads: int, disassembly: str) -> tuple[Diagnostic, ...]:
    """Broken rules of the shared object at `path`; `disassembly` is what `objdump -d` says of it."""
    try:
        found = elf.read(path.read_bytes())
    except elf.BadObject as error:
        return (_broken("object", str(error)),)
    return (
        *_exports(found, entry), *_imports(found, threads), *_state(found), *_start(found),
        *_instructions(found, disassembly),
    )


def _exports(found: elf.Elf, entry: str) -> Iterable[Diagnostic]:
    exported = {s.name for s in found.dynamic_symbols if s.section and s.binding != elf.STB_LOCAL}
    if entry not in exported:
        yield _broken("export", f"'{entry}' is not exported: define it as an ordinary function, not static or hidden")
    for name in sorted(exported - {entry}):
        yield _broken("export", f"'{name}' is exported: only '{entry}' may be")


def _imports(found: elf.Elf, threads: int) -> Iterable[Diagnostic]:
    for symbol in found.dynamic_symbols:
        if symbol.section == 0 and symbol.name and not _may_import(symbol.name, threads):
            what = f"'{symbol.name}' is not on the list: only memory functions and math.h can be called"
            yield _broken("symbol", what)
    for library in found.needed:
        if not LIBRARIES.fullmatch(library):
            yield _broken("symbol", f"library {library} is asked for: only the C and math libraries can be")


def _may_import(name: str, threads: int) -> bool:
    if name in names.LIBRARY or name in COMPILER_MADE:
        return True
    vector = VECTOR_MATH.fullmatch(name) or GNU_MATH.fullmatch(name)
    if vector is not None:
        return vector.group(1) in names.MATH
    return threads > 1 and (name in names.OMP_CALLS or OMP_RUNTIME.fullmatch(name) is not None)


def _state(found: elf.Elf) -> Iterable[Diagnostic]:
    for index, section in enumerate(found.sections):
        if not section.flags & elf.SHF_ALLOC or not section.size:
            continue
        if section.flags & elf.SHF_TLS:
            yield _broken("state", f"thread-local data ({section.size} bytes): a kernel keeps nothing between calls")
        elif section.flags & elf.SHF_WRITE and section.name not in (*WRITABLE_OK, *STARTERS):
            inside = [s.name for s in found.symbols if s.section == index and s.kind == elf.STT_OBJECT]
            held = ", ".join(f"'{name}'" for name in inside[:5]) or f"{section.size} bytes"
            yield _broken("state", f"writable global data in {section.name} ({held}): make it const or a local")
        elif section.flags & elf.SHF_EXEC and section.name not in (*EXECUTABLE_OK, *STARTERS):
            yield _broken("section", f"code in section {section.name}: leave section attributes out")
    for kind, flags in found.segments:
        if kind == elf.PT_GNU_STACK and flags & 1:
            yield _broken("section", "the stack would be executable: leave nested functions out")
        if kind == elf.PT_LOAD and flags & 3 == 3:
            yield _broken("section", "memory that is writable and executable at once")


def _start(found: elf.Elf) -> Iterable[Diagnostic]:
    for section in found.sections:
        if section.name in STARTERS and section.size:
            what = f"{section.name} runs code at loading: leave out constructors, and flags that link one"
            yield _broken("startup", what)
    tags = dict(found.dynamic)
    if elf.DT_INIT in tags or elf.DT_FINI in tags:
        yield _broken("startup", "an initialiser runs code at loading: leave constructors out")
    if elf.DT_TEXTREL in tags or tags.get(elf.DT_FLAGS, 0) & elf.DF_TEXTREL:
        yield _broken("section", "text relocations: leave flags for position-dependent code out")
    chosen = any(s.kind == elf.STT_IFUNC for s in (*found.dynamic_symbols, *found.symbols))
    if chosen or IRELATIVE.get(found.machine) in found.relocations:
        yield _broken("startup", "a function is chosen at loading (IFUNC): leave target_clones and ifunc out")


def _instructions(found: elf.Elf, disassembly: str) -> Iterable[Diagnostic]:
    forbidden = _ARM if found.machine == 183 else _X86
    seen: set[str] = set()
    code = 0
    section = ""
    for line in disassembly.splitlines():
        if heading := _SECTION.match(line):
            section = heading.group(1)
        match = _INSTRUCTION.match(line)
        if match is None:
            continue
        code += 1
        text = match.group("words")
        words = [w for w in text.split() if w not in _PREFIXES]
        name = words[0] if words else ""
        through = _INDIRECT.match(" ".join(words)) and not section.startswith(".plt")
        if through and "indirect" not in seen:
            seen.add("indirect")
            what = f"'{' '.join(words)}' goes where a pointer says: call functions by name, and leave computed goto out"
            yield _broken("call", what)
        bad = forbidden.fullmatch(name) or name == "(bad)" or (found.machine == 62 and _SEGMENT.search(text))
        if bad and name not in seen:
            seen.add(name)
            shown = " ".join(text.split())
            yield _broken("instruction", f"'{shown}' reads or changes the machine's state: leave it out")
    if not code:
        yield _broken("object", "no instructions could be read from it")


def _broken(rule: str, message: str) -> Diagnostic:
    return Diagnostic(kind=rule, line=0, message=message)
