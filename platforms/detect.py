"""This machine as a Machine: read from /proc, /sys, uname and the compiler's own words."""

from __future__ import annotations

import os
import re
from pathlib import Path

from kernelcrew import proc
from kernelcrew.errors import MissingTool, UserMistake
from kernelcrew.platforms.cpuinfo import CacheEntry, Processor, is_guest, read_caches, read_processor
from kernelcrew.platforms.nouns import Fingerprint, Machine, Platform, Toolchain
from kernelcrew.platforms.registry import known
from kernelcrew.record import Record
from kernelcrew.settings import child_environment

CPUINFO = Path("/proc/cpuinfo")
CPU_FOLDER = Path("/sys/devices/system/cpu")
FIRMWARE = (Path("/sys/class/dmi/id/sys_vendor"), Path("/sys/class/dmi/id/product_name"), Path("/sys/hypervisor/type"))
SVE_LENGTH = Path("/proc/sys/abi/sve_default_vector_length")
COMPILER_LIMITS = proc.Limits(time_s=20.0)


class Sighting(Record):
    """All texts that a machine is recognised from."""

    cpuinfo: str
    """/proc/cpuinfo."""
    arch: str
    """`uname -m`."""
    kernel: str
    """`uname -r`."""
    caches: tuple[CacheEntry, ...]
    """sysfs, of one core."""
    firmware: str = ""
    """Vendor and product, where the firmware names them."""
    sve_bytes: str = ""
    """Length of an SVE register, where there is one."""
    cpus: tuple[int, ...]
    """Processors that this process may use."""


def detect(cc: str) -> Machine:
    """This machine with compiler `cc`. Raises MissingTool when that is not here and UserMistake when it is no GCC."""
    toolchain = read_toolchain(cc)
    return recognise(look(), toolchain)


def look() -> Sighting:
    """Read the texts of this machine. What cannot be read is empty: containers hide some of them."""
    cpus = tuple(sorted(os.sched_getaffinity(0)))
    system = os.uname()
    folders = sorted((CPU_FOLDER / f"cpu{cpus[0]}" / "cache").glob("index*"))
    caches = tuple(
        CacheEntry(level=_text(f / "level"), type=_text(f / "type"), size=_text(f / "size")) for f in folders
    )
    return Sighting(
        cpuinfo=_text(CPUINFO), arch=system.machine, kernel=system.release, caches=caches,
        firmware=" ".join(_text(path) for path in FIRMWARE), sve_bytes=_text(SVE_LENGTH), cpus=cpus,
    )


def recognise(seen: Sighting, toolchain: Toolchain) -> Machine:
    """The machine that those texts describe. What the table knows of its platform is added; what was read here wins."""
    processor = read_processor(seen.cpuinfo, seen.arch, seen.cpus[0])
    entry = known().get(processor.id)
    caches = {**(entry.caches if entry else {}), **read_caches(seen.caches)}
    platform = Platform(
        id=processor.id, readable=entry.readable if entry else processor.name, features=processor.features,
        vector_bytes=_vector_bytes(processor, seen.sve_bytes), caches=caches, figures=entry.figures if entry else {},
        here=True, source=entry.source if entry else "read from this machine; no table entry",
    )
    fingerprint = Fingerprint(
        cores=len(seen.cpus), caches=caches, compiler_major=toolchain.major, virtual=is_guest(processor, seen.firmware),
        kernel=seen.kernel,
    )
    return Machine(platform=platform, fingerprint=fingerprint, toolchain=toolchain)


def read_toolchain(cc: str) -> Toolchain:
    """Ask the compiler what it is. Raises MissingTool when it cannot be started, UserMistake when it is not GCC."""
    told = proc.run([cc, "--version"], env=child_environment(), limits=COMPILER_LIMITS)
    if told.status == "missing":
        raise MissingTool(
            f"the C compiler '{cc}' is not here ({told.err})",
            fix="apt-get install gcc libc6-dev, or name another gcc in KERNELCREW_CC",
        )
    first = told.out.partition("\n")[0]
    version = proc.run([cc, "-dumpfullversion", "-dumpversion"], env=child_environment(), limits=COMPILER_LIMITS)
    if "Free Software Foundation" not in told.out or not version.out[:1].isdigit():
        raise UserMistake(
            f"'{cc}' is not GCC: --version says '{first or told.err.strip()}'",
            fix="kernels are built with GCC's options and remarks: name a gcc in KERNELCREW_CC",
        )
    options = proc.run([cc, "-march=native", "-Q", "--help=target"], env=child_environment(), limits=COMPILER_LIMITS)
    return parse_toolchain(cc, first, version.out, options.out)


def parse_toolchain(path: str, banner: str, version: str, options: str) -> Toolchain:
    """A toolchain from the first line of `--version`, `-dumpfullversion` and `-march=native -Q --help=target`."""
    number = re.search(r"\d+(?:\.\d+)*", version) or re.search(r"\d+(?:\.\d+)+", banner)
    full = number.group() if number else "0"
    chosen = re.search(r"^\s*-march=\s+(\S+)\s*$", options, re.MULTILINE)
    target = chosen.group(1) if chosen else "unknown"
    return Toolchain(name="gcc", path=path, version=full, major=int(full.partition(".")[0]), target=target)


def _vector_bytes(processor: Processor, sve_bytes: str) -> int:
    if "sve" in processor.features and sve_bytes.strip().isdigit():
        return max(16, int(sve_bytes))
    return processor.vector_bytes


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
