"""What nvcc and ptxas say, read: errors and warnings with their lines, resources by kernel."""

from __future__ import annotations

import re
from collections.abc import Sequence

from kernelcrew.tools.nouns import Diagnostic
from kernelcrew.tools.nouns_gpu import Resources

MAX_DIAGNOSTICS = 50

_FRONT = re.compile(
    r"^(?P<file>\S.*?)\((?P<line>\d+)\): (?:catastrophic )?(?P<kind>error|warning)"
    r"(?: #(?P<option>\d+-D))?: (?P<words>.*)$"
)
_HOST = re.compile(r"^(?P<file>[^:\s][^:]*):(?P<line>\d+):(?:\d+:)? (?:fatal )?(?P<kind>error|warning): (?P<words>.*)$")
_ASSEMBLER = re.compile(
    r"^(?:ptxas|nvlink|fatbinary|nvcc)(?: \S+, line \d+;)? *(?P<kind>error|fatal|warning)\s*: (?P<words>.*)$"
)
_COMPILING = re.compile(r"Compiling entry function '(?P<name>[^']+)' for '(?P<arch>sm_\w+)'")
_PROPERTIES = re.compile(r"Function properties for '?(?P<name>[\w$.]+)'?")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (?P<registers>\d+) registers(?P<rest>.*)$")


def diagnostics(text: str, source: str) -> list[Diagnostic]:
    """Errors and warnings in standard error; `source` is the candidate's file. Each message once."""
    found: dict[tuple[str, int, str], Diagnostic] = {}
    for line in text.splitlines():
        match = _FRONT.match(line) or _HOST.match(line) or _ASSEMBLER.match(line)
        if match is None:
            continue
        said = match.groupdict()
        own = str(said.get("file") or "").endswith(source)
        kind = "warning" if said["kind"] == "warning" else "error"
        at = int(said["line"]) if own and said.get("line") else 0
        words = said["words"].strip()
        option = f"#{said['option']}" if said.get("option") else ""
        found.setdefault((kind, at, words), Diagnostic(kind=kind, line=at, message=words, option=option))
    return list(found.values())[:MAX_DIAGNOSTICS]


def resources(text: str, kernels: Sequence[str], dynamic_shared_bytes: int = 0) -> tuple[Resources, ...]:
    """Figures of each kernel in the assembler's report (`-v`), in the order of `kernels`; those it does not name are
    left out. `dynamic_shared_bytes` is what a launch of them must ask for."""
    figures: dict[str, dict[str, int | str]] = {}
    entry = function = ""
    for line in text.splitlines():
        if match := _COMPILING.search(line):
            entry = function = match["name"]
            figures[entry] = {"arch": match["arch"]}
        elif match := _PROPERTIES.search(line):
            function = match["name"]
        elif (match := _FRAME.search(line)) and function == entry and entry:
            names = ("stack_bytes", "spill_store_bytes", "spill_load_bytes")
            figures[entry].update(zip(names, map(int, match.groups()), strict=True))
        elif (match := _USED.search(line)) and entry:
            figures[entry].update(registers=int(match["registers"]), **_used(match["rest"]))
    shared = {"dynamic_shared_bytes": dynamic_shared_bytes}
    return tuple(Resources.model_validate({"kernel": k, **figures[k], **shared}) for k in kernels if k in figures)


def _used(rest: str) -> dict[str, int]:
    """`, used 1 barriers, 8192 bytes smem, 552 bytes cmem[0]`."""
    barriers = re.search(r"used (\d+) barriers", rest)
    shared = re.search(r"(\d+)(?:\+\d+)? bytes smem", rest)
    constant = sum(int(n) for n in re.findall(r"(\d+) bytes cmem\[\d+\]", rest))
    return {
        "barriers": int(barriers[1]) if barriers else 0,
        "static_shared_bytes": int(shared[1]) if shared else 0,
        "constant_bytes": constant,
    }
