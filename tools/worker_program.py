"""The worker's binary for one signature: `worker.c` and `forget.h` of `csrc/` and a generated header, compiled once and
kept by content."""

from __future__ import annotations

import os
import platform
import tempfile
from pathlib import Path
from typing import Self

from kernelcrew import proc
from kernelcrew.errors import HarnessError, MissingTool
from kernelcrew.kernels.nouns import Operator
from kernelcrew.record import Record, hash_of
from kernelcrew.settings import Settings, child_environment

SOURCE = Path(__file__).with_name("csrc") / "worker.c"
FORGET = SOURCE.with_name("forget.h")
FLAGS = ("-O2", "-std=gnu11", "-Wall", "-Wextra")
C_TYPES = {"float32": "float", "float64": "double", "int32": "int"}


class Signature(Record):
    """How the entry is called."""

    entry: str
    """Function name."""
    arguments: tuple[tuple[str, str], ...]
    """Name and C type of each argument in order; `const T *`, `T *` or `int`."""
    tensors: tuple[str, ...]
    """Names of the pointers, in order."""
    axes: tuple[str, ...]
    """Names of the ints, in order."""
    inputs: tuple[bool, ...]
    """For each tensor, whether it lies in the input ring."""
    doubles: tuple[bool, ...] = ()
    """For each tensor, whether its elements have eight bytes."""
    scratch: str = ""
    """Expression for the bytes of a trailing `void *scratch`; empty when there is none."""

    @classmethod
    def of(cls, operator: Operator, scratch: str = "") -> Self:
        """The signature of the operator's `c` backend."""
        backend = operator.backends["c"]
        tensors = {t.name: t for t in operator.tensors}
        arguments = []
        for name in backend.args:
            if name not in tensors:
                arguments.append((name, "int"))
                continue
            const = "const " if tensors[name].role == "in" else ""
            arguments.append((name, f"{const}{C_TYPES[tensors[name].dtype]} *"))
        pointers = tuple(name for name in backend.args if name in tensors)
        return cls(
            entry=backend.entry, arguments=tuple(arguments), tensors=pointers,
            axes=tuple(name for name in backend.args if name not in tensors),
            inputs=tuple(tensors[name].role == "in" for name in pointers),
            doubles=tuple(tensors[name].dtype == "float64" for name in pointers), scratch=scratch,
        )

    def header(self) -> str:
        """C text: the entry's type and a call of it on one slot's pointers."""
        types = [ctype for _, ctype in self.arguments] + (["void *"] if self.scratch else [])
        pointer = axis = 0
        values = []
        for _, ctype in self.arguments:
            if ctype == "int":
                values.append(f"axes[{axis}]")
                axis += 1
            else:
                values.append(f"({ctype}){'in' if self.inputs[pointer] else 'out'}[{pointer}]")
                pointer += 1
        values += ["scratch"] if self.scratch else []
        kinds = ", ".join([*(str(int(is_input)) for is_input in self.inputs), "0"])
        wide = ", ".join([*(str(int(is_double)) for is_double in self.doubles), "0"])
        return "\n".join(
            [
                f'#define ENTRY "{self.entry}"',
                f"#define TENSORS {len(self.tensors)}",
                f"#define AXES {len(self.axes)}",
                f"static const unsigned char IS_INPUT[TENSORS + 1] = {{{kinds}}};",
                f"static const unsigned char IS_DOUBLE[TENSORS + 1] = {{{wide}}};",
                f"typedef void (*kernel_fn)({', '.join(types)});",
                "static inline void call_kernel(",
                "    kernel_fn kernel, void *const *in, void *const *out, const int *axes, void *scratch) {",
                "    (void)in; (void)out; (void)axes; (void)scratch;",
                f"    kernel({', '.join(values)});",
                "}",
                "",
            ]
        )


def program(signature: Signature, settings: Settings) -> Path:
    """The path of the worker for this signature, compiled if it is not in the cache.

    Raises MissingTool without a compiler, HarnessError when it does not compile our own source.
    """
    source = SOURCE.read_text(encoding="utf-8")
    header = signature.header()
    own = [source, FORGET.read_text(encoding="utf-8"), header, FLAGS]
    key = hash_of(own, settings.cc, platform.machine(), platform.libc_ver())
    folder = settings.home / "cache" / "workers" / key
    binary = folder / "worker"
    if binary.exists():
        return binary
    folder.mkdir(parents=True, exist_ok=True)
    # A folder of its own: another process may be compiling the same worker.
    with tempfile.TemporaryDirectory(dir=folder, prefix="new-") as mine:
        (Path(mine) / "signature.h").write_text(header, encoding="utf-8")
        new = Path(mine) / "worker"
        line = [settings.cc, *FLAGS, "-I", mine, "-o", str(new), str(SOURCE), "-ldl", "-lm"]
        result = proc.run(line, env=child_environment(), limits=proc.Limits(time_s=60.0))
        if result.status == "missing":
            raise MissingTool(f"no C compiler '{settings.cc}'", fix="install gcc, or set KERNELCREW_CC")
        if not result.ok:
            what = f"the worker does not compile ({result.status}): {result.err[-2000:]}"
            raise HarnessError(what, fix="set KERNELCREW_CC to a gcc that works")
        new.chmod(0o755)
        os.replace(new, binary)
    return binary
