"""What the builder writes beside a candidate's sources, and the command lines that it runs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from kernelcrew.kernels.expr import parse, to_c
from kernelcrew.kernels.nouns import Backend, Candidate, Operator, Variant
from kernelcrew.platforms.nouns import Toolchain

CONTRACT = "contract.h"
DISPATCH = "dispatch.c"
EXPORTS = "exports.map"
REMARKS = "remarks.txt"
OBJECT = "kernel.so"
LAST_JSON = 14
"""gcc writes diagnostics as JSON up to this major version."""

_C_TYPES = {"float32": "float", "float64": "double", "int32": "int"}


def parameters(operator: Operator, backend: Backend, scratch: bool) -> list[tuple[str, str]]:
    """(C type, name) of each parameter of the entry, in order."""
    tensors = {t.name: t for t in operator.tensors}
    found = []
    for name in backend.args:
        tensor = tensors.get(name)
        if tensor is None:
            found.append(("int ", name))
        else:
            found.append((f"{'const ' if tensor.role == 'in' else ''}{_C_TYPES[tensor.dtype]} *", name))
    return [*found, ("void *", "scratch")] if scratch else found


def prototype(operator: Operator, backend: Backend, name: str, scratch: bool) -> str:
    """`void name(const float *x, ...)`."""
    listed = ", ".join(kind + parameter for kind, parameter in parameters(operator, backend, scratch))
    return f"void {name}({listed})"


def contract_header(operator: Operator, backend: Backend, scratch: bool) -> str:
    """A declaration that every source is compiled after: another signature is a compile error, and the entry alone is
    seen outside, so that helper functions are inlined as if they were static."""
    return f'__attribute__((visibility("default"))) {prototype(operator, backend, backend.entry, scratch)};\n'


def exports(entry: str) -> str:
    """The linker's version script."""
    return f"{{ global: {entry}; local: *; }};\n"


def scratch_of(candidate: Candidate) -> str:
    """Bytes of scratch that serve every variant, as an expression; '' when none declares any."""
    declared = list(dict.fromkeys(v.plan.scratch_bytes for v in candidate.variants if v.plan.scratch_bytes))
    return declared[0] if len(declared) == 1 else f"max({', '.join(declared)})" if declared else ""


def dispatcher(operator: Operator, backend: Backend, candidate: Candidate) -> str:
    """C text of the entry that calls the first variant whose rule holds."""
    scratch = bool(scratch_of(candidate))
    entry = backend.entry
    declared = []
    body = []
    for number, variant in enumerate(candidate.variants, 1):
        own = bool(variant.plan.scratch_bytes)
        declared.append(prototype(operator, backend, f"{entry}_v{number}", own) + ";")
        given = ", ".join(name for _, name in parameters(operator, backend, own))
        call = f"{entry}_v{number}({given});"
        body.append(f"    if ({to_c(parse(variant.when))}) {{ {call} return; }}" if variant.when else f"    {call}")
    return "\n".join([*declared, prototype(operator, backend, entry, scratch), "{", *body, "}", ""])


def source_name(variant: Variant) -> str:
    """The file name that the object's line table carries."""
    name = Path(variant.source.name).name
    return name if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}\.c", name) else "kernel.c"


def compile_line(toolchain: Toolchain, backend: Backend, variant: Variant, folder: Path, rename: str) -> list[str]:
    """Compile one variant that lies in `folder` (the contract's header beside it) to `kernel.o` there."""
    plan = variant.plan
    json_format = ["-fdiagnostics-format=json"] if toolchain.major <= LAST_JSON else ["-fdiagnostics-plain-output"]
    line = ["env", "-C", str(folder), toolchain.path, *backend.base_flags, *plan.flags]
    line += ["-fopenmp" if plan.threads > 1 else "-fopenmp-simd", "-fPIC", "-fvisibility=hidden", "-Wall", "-Wextra"]
    # A table of jumps cannot be told from a call through a pointer, which is refused: a switch becomes comparisons.
    line += ["-fno-jump-tables", "-g1", "-gno-record-gcc-switches", f"-fdebug-prefix-map={folder}=.", *json_format]
    line += [f"-fopt-info-vec-all-internals={REMARKS}", "-include", CONTRACT]
    line += [f"-D{name}={value}" for name, value in sorted(plan.defines.items())]
    line += [f"-D{backend.entry}={rename}"] if rename else []
    return [*line, "-c", source_name(variant), "-o", "kernel.o"]


def dispatch_line(toolchain: Toolchain, folder: Path) -> list[str]:
    """Compile the dispatcher."""
    return ["env", "-C", str(folder), toolchain.path, "-O2", "-fPIC", "-fvisibility=hidden", "-include", CONTRACT,
            "-c", DISPATCH, "-o", "dispatch.o"]


def keep_line(folder: Path, symbol: str) -> list[str]:
    """Make all symbols of a variant's object local but its entry, so that helpers of the same name do not clash."""
    return ["objcopy", f"--keep-global-symbol={symbol}", str(folder / "kernel.o")]


def link_line(toolchain: Toolchain, folder: Path, objects: Sequence[str], threads: int) -> list[str]:
    """Link to a shared object that exports the entry alone and runs nothing when it is loaded."""
    line = ["env", "-C", str(folder), toolchain.path, "-shared", "-nostartfiles", "-o", OBJECT, *objects]
    line += [f"-Wl,--version-script={EXPORTS}", "-Wl,--build-id=none", "-Wl,-z,relro,-z,now,-z,separate-code"]
    return [*line, "-Wl,--as-needed", "-lm", *(["-fopenmp"] if threads > 1 else [])]


def disassemble_line(folder: Path) -> list[str]:
    """Print the object's instructions."""
    return ["objdump", "-d", "--no-show-raw-insn", "-w", str(folder / OBJECT)]
