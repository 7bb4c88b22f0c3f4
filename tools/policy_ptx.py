"""The PTX that may stand inside a kernel's source: an allow-list of instruction forms, each statement read by itself.

Two groups. The first is what has no spelling in CUDA C++: loads and stores with cache hints, asynchronous and bulk
copies, matrix fragments and products, barriers in shared memory, register counts, fences. The second is what those
cannot do without: moving, converting and comparing registers, and jumps to labels of the same block. Such an
instruction computes a register from registers; it sees no clock, no other memory and no state. Forms as in the PTX
ISA 8.x and 9.x manuals.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from kernelcrew.tools.nouns import Diagnostic

MAX_PTX_BYTES = 16 << 10
MAX_STATEMENTS = 512

_TYPE = r"\.(?:b|u|s|f)(?:8|16|32|64|128)"
_VALUE = r"(?:\.(?:v2|v4|v8))?" + _TYPE
_SPACE = r"(?:\.(?:global|shared(?:::(?:cta|cluster))?))?"
_HINTS = (
    r"(?:\.(?:ca|cg|cs|lu|cv|wb|wt))?(?:\.nc)?(?:\.L1::(?:evict_normal|evict_unchanged|evict_first|evict_last|no_allocate))?"
    r"(?:\.L2::(?:evict_normal|evict_first|evict_last))?(?:\.L2::cache_hint)?(?:\.L2::(?:64|128|256)B)?"
)
_ORDER = r"(?:\.(?:relaxed|acquire|release)\.(?:cta|cluster|gpu)|\.weak)?"
_TAIL = r"(?:\.[a-z0-9_]+(?:::[a-z0-9_]+)*)*"

_NAMED = (
    rf"ld{_ORDER}{_SPACE}{_HINTS}{_VALUE}",
    rf"st{_ORDER}{_SPACE}{_HINTS}{_VALUE}",
    r"ld\.global\.nc" + _HINTS + _VALUE,
    r"createpolicy\.(?:fractional|range|cvt)" + _TAIL,
    r"prefetch(?:u)?(?:\.global)?\.(?:L1|L2|L2::evict_last|L2::evict_normal)",
    r"prefetch(?:\.param)?(?:\.const)?\.tensormap",
    r"cp\.async\.(?:ca|cg)\.shared(?:::cta)?\.global(?:\.L2::cache_hint)?(?:\.L2::(?:64|128|256)B)?",
    r"cp\.async\.(?:commit_group|wait_group|wait_all)",
    r"cp\.async\.mbarrier\.arrive(?:\.noinc)?(?:\.shared(?:::cta)?)?\.b64",
    r"cp\.async\.bulk" + _TAIL,
    r"cp\.reduce\.async\.bulk" + _TAIL,
    r"(?:ldmatrix|stmatrix)\.sync\.aligned\.m(?:8n8|16n16|8n16|16n8)" + _TAIL,
    r"movmatrix\.sync\.aligned\.m8n8\.trans\.b16",
    r"(?:mma|wmma)(?:\.[a-z0-9_]+)+(?:::[a-z0-9_]+)*" + _TAIL,
    r"wgmma\.(?:mma_async|fence|commit_group|wait_group)" + _TAIL,
    r"mbarrier\.(?:init|inval|arrive|arrive_drop|test_wait|try_wait|expect_tx|complete_tx|pending_count)" + _TAIL,
    r"setmaxnreg\.(?:inc|dec)\.sync\.aligned\.u32",
    r"fence(?:\.(?:sc|acq_rel|acquire|release))?(?:\.(?:cta|cluster|gpu))?",
    r"fence\.(?:mbarrier_init\.release\.cluster|proxy\.(?:alias|async)(?:\.(?:global|shared::(?:cta|cluster)))?)",
    r"fence\.proxy\.tensormap(?:::generic)?" + _TAIL,
    r"membar\.(?:cta|gl)",
    r"(?:bar|barrier)(?:\.cta)?\.(?:sync|arrive)(?:\.aligned)?",
    r"bar\.warp\.sync",
    r"barrier\.cluster\.(?:arrive|wait)" + _TAIL,
    r"griddepcontrol\.(?:launch_dependents|wait)",
)
_REGISTERS = (
    rf"mov{_TYPE}",
    r"mov\.pred",
    rf"mapa(?:\.shared::cluster)?{_TYPE}",
    r"cvta(?:\.to)?\.(?:global|shared)(?:::(?:cta|cluster))?\.u(?:32|64)",
    rf"setp\.(?:eq|ne|lt|le|gt|ge|lo|ls|hi|hs)(?:\.(?:and|or|xor))?{_TYPE}",
    rf"selp{_TYPE}",
    r"elect\.sync",
    r"bra(?:\.uni)?",
)
_ARITHMETIC = (
    r"cvt(?:\.[a-z0-9]+)+",
    r"(?:ex2|lg2|tanh|rcp|rsqrt|sqrt|sin|cos)\.approx(?:\.ftz)?\.(?:f16|f16x2|bf16|bf16x2|f32)",
    r"ex2\.approx\.ftz\.bf16(?:x2)?",
    r"lop3\.b32",
    r"prmt\.b32",
    r"(?:add|sub|mul|fma)(?:\.rn)?(?:\.ftz)?\.(?:f32x2|f16x2|bf16x2)",
    r"(?:and|or|xor|not|shl|shr)" + _TYPE,
)

ALLOWED = re.compile("|".join(f"(?:{form})" for form in (*_NAMED, *_REGISTERS, *_ARITHMETIC)))
PURE = re.compile("|".join(f"(?:{form})" for form in (_REGISTERS[0], _REGISTERS[4], _REGISTERS[5], *_ARITHMETIC)))
"""Instructions that compute a register from registers and do nothing else."""

SPECIAL = re.compile(
    r"(?:tid|ntid|ctaid|nctaid|clusterid|nclusterid|cluster_ctaid|cluster_nctaid)\.[xyz]|laneid|cluster_ctarank"
    r"|cluster_nctarank|is_explicit_cluster|lanemask_(?:eq|le|lt|ge|gt)|dynamic_smem_size|total_smem_size"
)
"""Special registers: where a thread stands in its grid, and nothing of clocks, processors or counters."""

NAMED = (
    "ld and st with cache hints, cp.async, cp.async.bulk, ldmatrix, mma, wgmma, mbarrier, setmaxnreg, fences, "
    "barriers, and mov, cvta, cvt, setp, selp, lop3, prmt, approximate functions, bra within the block"
)

_ESCAPES = {"n": "\n", "t": "\t", "\\": "\\", '"': '"', "'": "'"}
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_LABEL = re.compile(r"^\s*(?P<label>[A-Za-z_$][\w$]*(?:%=)?)\s*:(?!:)")
_REG = re.compile(r"\.reg\s+\.(?:pred|(?:b|u|s|f)(?:8|16|32|64|128)|f16x2)\s+(?P<names>.*)", re.DOTALL)
_GUARD = re.compile(r"^@!?\s*(?:%\d+|%?%?[A-Za-z_$][\w$]*)\s+")
_OPCODE = re.compile(r"^(?P<opcode>[A-Za-z][\w.:]*)(?P<rest>.*)$", re.DOTALL)
_OPERAND = re.compile(r"(?:%%|%|\$)?[A-Za-z_$][\w$]*(?:\.[xyz]\b)?(?:%=)?|%\d+|\$\d+|[0-9][\w.]*|\S")


def unescape(literal: str) -> str | None:
    """The text of a plain string literal (quotes included); None when an escape hides what it says."""
    out = []
    at = literal.index('"') + 1
    while at < len(literal) - 1:
        if literal[at] == "\\":
            plain = _ESCAPES.get(literal[at + 1])
            if plain is None:
                return None
            out.append(plain)
            at += 2
        else:
            out.append(literal[at])
            at += 1
    return "".join(out)


def ptx_policy(text: str, line: int, *, pure: bool = False) -> list[Diagnostic]:
    """Broken rules of one block of inline PTX that begins at source line `line`.

    `pure` admits register arithmetic alone, as for Triton's elementwise assembler.
    """
    if len(text) > MAX_PTX_BYTES:
        return [_broken(line, f"the assembler text is longer than {MAX_PTX_BYTES >> 10} KiB: split it")]
    bare = _COMMENT.sub(lambda m: "\n" * m.group().count("\n") or " ", text)
    if "/*" in bare or "#" in bare:
        return [_broken(line, "a comment that does not end or a preprocessor line: write instructions alone")]
    statements = list(_statements(bare))
    if len(statements) > MAX_STATEMENTS:
        return [_broken(line, f"{len(statements)} instructions in one block: at most {MAX_STATEMENTS}")]
    own = _declared(statements)
    return [broken for statement in statements for broken in _statement(statement, own, line, pure)]


def _statements(text: str) -> Iterator[str]:
    """Instructions, labels and register declarations; the braces of vector operands stay inside their instruction."""
    held = ""
    for char in text:
        if char == ";" or (char == "{" and not _open(held)) or (char == "}" and "{" not in held):
            yield from [held.strip()] if held.strip() else []
            held = ""
        else:
            held += char
            label = _LABEL.match(held)
            if label:
                yield held.strip()
                held = ""
    if held.strip():
        yield held.strip()


def _open(held: str) -> bool:
    """Whether an instruction has begun, so that a brace belongs to its operands."""
    return bool(held.strip())


def _declared(statements: list[str]) -> set[str]:
    """Registers and labels of the block."""
    found: set[str] = set()
    for statement in statements:
        if match := _REG.fullmatch(statement):
            for name in match["names"].split(","):
                plain = name.strip().lstrip("%")
                counted = re.fullmatch(r"([A-Za-z_$][\w$]*)<(\d{1,3})>", plain)
                found |= {f"{counted[1]}{i}" for i in range(int(counted[2]))} if counted else {plain}
        elif match := _LABEL.match(statement):
            found.add(match["label"].removesuffix("%="))
    return found


def _statement(statement: str, own: set[str], line: int, pure: bool) -> Iterator[Diagnostic]:
    if _LABEL.fullmatch(statement) or _REG.fullmatch(statement):
        return
    match = _OPCODE.match(_GUARD.sub("", statement))
    if match is None:
        yield _broken(line, f"'{_short(statement)}' is no instruction of the list: {NAMED}")
        return
    opcode = match["opcode"]
    if not (PURE if pure else ALLOWED).fullmatch(opcode):
        listed = "mov, cvt, setp, selp, lop3, prmt, shifts and approximate functions" if pure else NAMED
        yield _broken(line, f"'{opcode}' is not on the list of inline PTX: {listed}")
        return
    yield from _operands(opcode, match["rest"], own, line)


def _operands(opcode: str, rest: str, own: set[str], line: int) -> Iterator[Diagnostic]:
    for token in _OPERAND.findall(rest):
        name = token.removesuffix("%=").lstrip("%")
        if not re.match(r"[A-Za-z_$%]", token) or re.fullmatch(r"[%$]\d+", token) or name == "_":
            continue
        if name in own or (token.startswith("%%") and SPECIAL.fullmatch(name)):
            continue
        what = "special register" if token.startswith("%") else "symbol"
        yield _broken(line, f"{what} '{token}' in '{opcode}': use operands, registers of the block and thread indices")
    if re.search(r"\[\s*[0-9]", rest):
        yield _broken(line, f"'{opcode}' on a fixed address: addresses come from the kernel's arguments")


def _short(text: str) -> str:
    return " ".join(text.split())[:60]


def _broken(line: int, message: str) -> Diagnostic:
    return Diagnostic(kind="asm", line=line, message=message)
