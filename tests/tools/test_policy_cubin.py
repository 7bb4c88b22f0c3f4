"""The object policy of cubins: what it refuses in a real one, what it lets through, and what broken bytes get."""

from __future__ import annotations

import lzma
import struct
import sys
from pathlib import Path

import pytest

from kernelcrew.tools import elf
from kernelcrew.tools.policy_cubin import architecture, cubin_bytes_policy, cubin_policy

sys.path.insert(0, str(Path(__file__).parent))
from gpu_kit import cubin, needs_nvcc
from gpu_sources import CUDA

DATA = Path(__file__).parent.parent / "data" / "gpu"
HEAD = 'extern "C" __global__ void k(float *x, int n)\n{\n'

REFUSED = {
    "counter": ("state", "__device__ int count;\n", "x[n] = atomicAdd(&count, 1);"),
    "initialised global": ("state", "__device__ float kept[4] = {1, 2, 3, 4};\n", "kept[n & 3] += 1; x[0] = kept[1];"),
    "static local": ("state", "", "static int count; x[n] = count++;"),
    "table that could be written": ("state", "__device__ const float t[4] = {1, 2, 3, 4};\n", "x[0] = t[n & 3];"),
    "printf": ("symbol", "#include <cstdio>\n", 'printf("%d", n);'),
    "malloc": ("symbol", "", "float *p = (float *)malloc(4 * n); p[0] = x[0]; x[1] = (size_t)p;"),
    "assert": ("symbol", "#include <cassert>\n", "assert(n > 0); x[0] = 1;"),
    "clock": ("instruction", "", "x[0] = clock();"),
    "clock64": ("instruction", "", "x[0] = clock64();"),
    "timer": ("instruction", "", 'unsigned long t; asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t)); x[0] = t;'),
    "processor": ("instruction", "", 'unsigned t; asm volatile("mov.u32 %0, %%smid;" : "=r"(t)); x[0] = t;'),
    "indirect call": ("call", "typedef float (*F)(float);\n", "F f = (F)(size_t)x[1]; x[0] = f(x[2]);"),
    "table of functions": (
        "call",
        "typedef float (*F)(float);\n__device__ __noinline__ float a(float v) { return v * v; }\n"
        "__device__ __noinline__ float b(float v) { return v + 1; }\n",
        "F f = n ? a : b; x[0] = f(x[2]);",
    ),
    "second kernel": ("export", 'extern "C" __global__ void other(float *x) { x[0] = 1; }\n', "x[0] = 2;"),
}


@needs_nvcc
@pytest.mark.parametrize("name", REFUSED)
def test_refuses(name: str, tmp_path: Path) -> None:
    rule, before, body = REFUSED[name]
    found = cubin_policy(cubin(f"{before}{HEAD}{body}\n}}\n", tmp_path), ["k"])
    assert rule in {d.kind for d in found}, found


@needs_nvcc
@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "sm_100"])
@pytest.mark.parametrize("name", ["reduce_cg", "reduce_cub", "trig_table"])
def test_an_honest_object_passes(name: str, arch: str, tmp_path: Path) -> None:
    assert cubin_policy(cubin(CUDA[name], tmp_path, arch=arch), [name]) == ()


@needs_nvcc
def test_clocks_and_pointers_are_seen_on_every_architecture(tmp_path: Path) -> None:
    clock = f"{HEAD}x[0] = clock64();\n}}\n"
    _, before, body = REFUSED["table of functions"]
    pointer = f"{before}{HEAD}{body}\n}}\n"
    for arch in ("sm_75", "sm_86", "sm_100", "sm_120"):
        for source, rule in ((clock, "instruction"), (pointer, "call")):
            found = cubin_policy(cubin(source, tmp_path, arch=arch), ["k"])
            assert rule in {d.kind for d in found}, (arch, found)


@needs_nvcc
def test_the_exports_are_the_plans(tmp_path: Path) -> None:
    path = cubin(f"{HEAD}x[0] = n;\n}}\n", tmp_path)
    assert cubin_policy(path, ["k"]) == ()
    assert [d.kind for d in cubin_policy(path, ["other"])] == ["export", "export"]
    assert [d.message for d in cubin_policy(path, [])] == ["kernel 'k' is in it: only  may be"]


@needs_nvcc
def test_relocatable_code_is_refused(tmp_path: Path) -> None:
    source = f"__device__ float outside(float);\n{HEAD}x[0] = outside(x[1]);\n}}\n"
    found = cubin_policy(cubin(source, tmp_path, "-rdc=true"), ["k"])
    assert "symbol" in {d.kind for d in found}, found


def recorded() -> bytes:
    """A cubin of nvcc 13.0 for sm_90: an honest kernel `k` with a division and a switch."""
    return lzma.decompress((DATA / "honest_sm90.cubin.xz").read_bytes())


def test_a_recorded_object_passes() -> None:
    data = recorded()
    assert architecture(elf.read(data)) == 90
    assert cubin_bytes_policy(data, ["k"]) == ()
    assert {d.kind for d in cubin_bytes_policy(data, ["j"])} == {"export"}


def patched(instruction: int, high: int) -> bytes:
    """The recorded object with another last instruction."""
    data = bytearray(recorded())
    text = next(s for s in elf.read(bytes(data)).sections if s.name == ".text.k")
    struct.pack_into("<QQ", data, text.offset + text.size - 16, instruction, high)
    return bytes(data)


@pytest.mark.parametrize(
    ("low", "high", "rule"),
    [
        (0x0000000000067805, 0x000FE20000015000, "instruction"),  # CS2R R6, SR_CLOCKLO
        (0x0000000000047805, 0x001FCC0000015200, "instruction"),  # CS2R R4, SR_GLOBALTIMERLO
        (0x000000000A007343, 0x003FEA0003C00000, "call"),  # CALL.ABS.NOINC R10
        (0xFFFFFFFC069C7344, 0x023FEA0003C3FFFF, "call"),  # CALL.REL.NOINC R6
        (0x0000000000037919, 0x000E220000000000, ""),  # S2R R3, SR_LANEID
        (0x0000000000147944, 0x000FEA0003C00000, ""),  # CALL.REL.NOINC to a place
    ],
)
def test_an_instruction_is_read(low: int, high: int, rule: str) -> None:
    assert {d.kind for d in cubin_bytes_policy(patched(low, high), ["k"])} == ({rule} if rule else set())


def test_only_a_plain_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(recorded())
    (tmp_path / "link").symlink_to(tmp_path / "real")
    assert cubin_policy(tmp_path / "real", ["k"]) == ()
    for name in ("link", "none"):
        assert [d.kind for d in cubin_policy(tmp_path / name, ["k"])] == ["object"]


def test_the_architecture_is_read_by_both_conventions() -> None:
    data = recorded()
    older = data[:7] + b"\x33" + data[8:48] + struct.pack("<I", 0x5A0D5A) + data[52:]
    unknown = data[:7] + b"\x00" + data[8:]
    assert architecture(elf.read(older)) == 90 and cubin_bytes_policy(older, ["k"]) == ()
    assert architecture(elf.read(unknown)) == 0
    assert [d.kind for d in cubin_bytes_policy(unknown, ["k"])] == ["object"]


def test_broken_bytes_are_refused() -> None:
    data = recorded()
    for bad in (b"", b"\x7fELF", data[:64], data[: len(data) // 2], data[:18] + b"\x3e\x00" + data[20:], b"x" * 4096):
        assert [d.kind for d in cubin_bytes_policy(bad, ["k"])] == ["object"], bad[:20]
    for at in range(0, len(data), 97):
        cubin_bytes_policy(data[:at] + b"\xff" + data[at + 1 :], ["k"])
