"""Machines are recognised from recorded texts; the compiler's own words are read the same way."""

from __future__ import annotations

import os

import pytest

from kernelcrew.errors import MissingTool, UserMistake
from kernelcrew.platforms import detect as module
from kernelcrew.platforms.cpuinfo import CacheEntry, is_guest, read_caches, read_processor, read_size
from kernelcrew.platforms.detect import Sighting, detect, parse_toolchain, recognise

AMD = """processor\t: 0
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 17
model name\t: AMD EPYC 9B14
stepping\t: 1
cache size\t: 1024 KB
flags\t\t: fpu sse sse2 ht fma sse4_1 avx f16c hypervisor avx2 avx512f avx512dq avx512bw avx512vl avx512_bf16

processor\t: 1
vendor_id\t: AuthenticAMD
cpu family\t: 25
model\t\t: 17
model name\t: AMD EPYC 9B14
flags\t\t: fpu sse sse2
"""
INTEL = """processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 85
model name\t: Intel(R) Xeon(R) Gold 6226 CPU @ 2.70GHz
flags\t\t: fpu sse sse2 sse4_1 fma avx avx2 avx512f avx512dq
"""
OLD_INTEL = """processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 23
model name\t: Intel(R) Core(TM)2 Duo CPU E8400 @ 3.00GHz
flags\t\t: fpu sse sse2 sse4_1
"""
ARM = """processor\t: 0
BogoMIPS\t: 2100.00
Features\t: fp asimd evtstrm aes fphp asimdhp sve bf16
CPU implementer\t: 0x41
CPU architecture: 8
CPU variant\t: 0x1
CPU part\t: 0xd40
CPU revision\t: 1
"""
RISCV = """processor\t: 0
hart\t\t: 1
isa\t\t: rv64imafdc
mmu\t\t: sv39
uarch\t\t: sifive,u74-mc
"""
GCC_HELP = """The following options are target specific:
  -m128bit-long-double        \t\t[enabled]
  -march=                     \t\tznver3
  -mtune=                     \t\tznver3
  Known valid arguments for -march= option:
"""
CACHES = (
    CacheEntry(level="1", type="Data", size="32K"), CacheEntry(level="1", type="Instruction", size="64K"),
    CacheEntry(level="2", type="Unified", size="1024K"), CacheEntry(level="3", type="Unified", size="32M"),
)
TOOLCHAIN = parse_toolchain("gcc", "gcc (Debian 12.2.0-14+deb12u1) 12.2.0", "12.2.0\n", GCC_HELP)


def seen(cpuinfo: str, arch: str = "x86_64", **more: object) -> Sighting:
    fields = {"cpuinfo": cpuinfo, "arch": arch, "kernel": "6.1.0", "caches": CACHES, "cpus": (0, 1), **more}
    return Sighting.model_validate(fields)


@pytest.mark.parametrize(
    ("text", "arch", "platform", "width", "some"),
    [
        (AMD, "x86_64", "cpu-amd-25-17", 64, {"avx2", "fma", "avx512f", "avx512_bf16"}),
        (INTEL, "x86_64", "cpu-intel-6-85", 64, {"avx2", "fma", "avx512f"}),
        (OLD_INTEL, "x86_64", "cpu-intel-6-23", 16, {"sse4_1"}),
        (ARM, "aarch64", "cpu-arm-41-d40", 16, {"neon", "sve", "bf16"}),
        (RISCV, "riscv64", "cpu-riscv64", 16, set()),
    ],
)
def test_a_processor_is_read_from_its_text(text: str, arch: str, platform: str, width: int, some: set[str]) -> None:
    processor = read_processor(text, arch)
    assert processor.id == platform
    assert processor.vector_bytes == width
    assert some <= set(processor.features)
    assert "ht" not in processor.features


def test_the_asked_for_processor_is_taken_and_a_missing_one_is_not_an_error() -> None:
    assert read_processor(AMD, "x86_64", 1).vector_bytes == 16
    assert read_processor(AMD, "x86_64", 7).vector_bytes == 64


def test_caches_leave_out_instructions_and_unreadable_sizes() -> None:
    assert read_caches(CACHES) == {"L1d": 32 << 10, "L2": 1 << 20, "L3": 32 << 20}
    assert read_caches([CacheEntry(level="1", type="Data", size="")]) == {}
    assert [read_size(text) for text in ("48K", "2M", "512", "fast", "")] == [48 << 10, 2 << 20, 512, 0, 0]


def test_guests_are_told_from_hosts() -> None:
    assert is_guest(read_processor(AMD, "x86_64"), "")
    assert not is_guest(read_processor(INTEL, "x86_64"), "Dell Inc. PowerEdge R640")
    arm = read_processor(ARM, "aarch64")
    assert is_guest(arm, "Amazon EC2 m7g.large")
    assert not is_guest(arm, "Amazon EC2 m7g.metal")
    assert is_guest(arm, "QEMU KVM Virtual Machine")


def test_a_known_machine_gets_its_readable_name_and_figures() -> None:
    machine = recognise(seen(AMD), TOOLCHAIN)
    assert machine.platform.here
    assert "Zen 4" in machine.platform.readable
    assert machine.platform.figures["fp32_flops_per_cycle"].value == 32
    assert machine.platform.caches == machine.fingerprint.caches == {"L1d": 32 << 10, "L2": 1 << 20, "L3": 32 << 20}
    assert machine.fingerprint.cores == 2
    assert machine.fingerprint.virtual
    assert machine.fingerprint.compiler_major == 12


def test_an_unknown_machine_is_known_by_its_own_texts() -> None:
    machine = recognise(seen(OLD_INTEL), TOOLCHAIN)
    assert machine.platform.id == "cpu-intel-6-23"
    assert "E8400" in machine.platform.readable
    assert machine.platform.figures == {}
    assert not machine.fingerprint.virtual


def test_the_table_fills_in_caches_that_a_container_hides() -> None:
    assert recognise(seen(AMD, caches=()), TOOLCHAIN).platform.caches == {"L1d": 32 << 10, "L2": 1 << 20}
    assert recognise(seen(OLD_INTEL, caches=()), TOOLCHAIN).platform.caches == {}


def test_an_sve_register_has_the_length_that_the_system_tells() -> None:
    assert recognise(seen(ARM, "aarch64", sve_bytes="32"), TOOLCHAIN).platform.vector_bytes == 32
    assert recognise(seen(ARM, "aarch64"), TOOLCHAIN).platform.vector_bytes == 16


def test_circumstances_follow_the_compiler_and_not_the_kernel_release() -> None:
    machine = recognise(seen(AMD), TOOLCHAIN)
    newer = parse_toolchain("gcc", "gcc 13.3.0", "13.3.0\n", GCC_HELP)
    assert machine.circumstances() == recognise(seen(AMD, kernel="6.9.9"), TOOLCHAIN).circumstances()
    assert machine.circumstances() != recognise(seen(AMD), newer).circumstances()


def test_a_toolchain_is_read_from_the_compilers_words() -> None:
    assert (TOOLCHAIN.version, TOOLCHAIN.major, TOOLCHAIN.target) == ("12.2.0", 12, "znver3")
    silent = parse_toolchain("gcc", "gcc (X) 9.4.0", "", "")
    assert (silent.version, silent.target) == ("9.4.0", "unknown")


def test_a_missing_compiler_says_what_installs_it() -> None:
    with pytest.raises(MissingTool, match="apt-get install gcc"):
        detect("no-such-compiler")


def test_a_program_that_is_no_gcc_is_refused() -> None:
    with pytest.raises(UserMistake, match="is not GCC"):
        detect("true")


def test_this_machine_is_recognised() -> None:
    machine = detect("gcc")
    assert machine.platform.id.startswith("cpu-")
    assert machine.fingerprint.cores == len(os.sched_getaffinity(0))
    assert machine.toolchain.major >= 9
    assert machine.toolchain.target != "unknown"
    assert module.look().cpuinfo
