"""Reads what Linux says about a processor: functions over text, so that a recorded machine reads like this one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kernelcrew.record import Record

X86_VENDORS = {"AuthenticAMD": "amd", "GenuineIntel": "intel", "HygonGenuine": "hygon", "CentaurHauls": "centaur"}
ARM_IMPLEMENTERS = {
    "41": "Arm", "42": "Broadcom", "43": "Cavium", "46": "Fujitsu", "48": "HiSilicon", "4e": "NVIDIA", "51": "Qualcomm",
    "61": "Apple", "c0": "Ampere",
}
"""Implementer byte of MIDR_EL1 (Arm Architecture Reference Manual, section MIDR_EL1)."""
FEATURES = (
    "sse2", "sse4_1", "avx", "avx2", "fma", "f16c", "avx512f", "avx512dq", "avx512bw", "avx512vl", "avx512_bf16",
    "avx512_fp16", "amx_tile", "neon", "fphp", "sve", "sve2", "bf16",
)
"""Instruction sets that a kernel's speed may rest on, in the order they are shown."""
GUEST_WORDS = ("kvm", "qemu", "vmware", "virtualbox", "virtual machine", "bochs", "xen", "google compute engine")
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}


class Processor(Record):
    """One logical processor of /proc/cpuinfo."""

    id: str
    """The platform id."""
    name: str
    """The vendor's model name, or implementer and part."""
    features: tuple[str, ...]
    """Those of FEATURES that it has."""
    vector_bytes: int
    """Widest vector register; 16 for SVE, whose length stands elsewhere."""
    hypervisor: bool
    """Whether it says that it is a guest's (x86 only)."""


class CacheEntry(Record):
    """One folder `cpuN/cache/indexM` of sysfs, as text."""

    level: str
    """1, 2, 3."""
    type: str
    """Data, Instruction or Unified."""
    size: str
    """`32K` and the like."""


def read_processor(cpuinfo: str, arch: str, number: int = 0) -> Processor:
    """The logical processor `number` of a /proc/cpuinfo text; the first one if it has no such. `arch` is `uname -m`."""
    blocks = [_fields(block) for block in cpuinfo.strip().split("\n\n")]
    fields = next((b for b in blocks if b.get("processor") == str(number)), blocks[0])
    if "vendor_id" in fields and "cpu family" in fields:
        return _x86(fields)
    if "CPU implementer" in fields:
        return _arm(fields)
    name = fields.get("model name") or fields.get("uarch") or fields.get("cpu") or arch
    return Processor(id=f"cpu-{arch}", name=name, features=(), vector_bytes=16, hypervisor=False)


def read_caches(entries: Iterable[CacheEntry]) -> dict[str, int]:
    """Bytes of L1d, L2 and L3 from sysfs; a level that is not told is left out."""
    found: dict[str, int] = {}
    for entry in entries:
        if entry.type == "Instruction":
            continue
        size = read_size(entry.size)
        name = "L1d" if entry.level == "1" else f"L{entry.level}"
        if size and name in ("L1d", "L2", "L3"):
            found[name] = size
    return dict(sorted(found.items()))


def read_size(text: str) -> int:
    """`32K` as bytes; 0 for what is no size."""
    number = text.strip().removesuffix("B").rstrip("KMG")
    unit = text.strip().removesuffix("B")[len(number):]
    return int(number) * UNITS[unit] if number.isdigit() and unit in UNITS else 0


def is_guest(processor: Processor, firmware: str) -> bool:
    """Whether this is a virtual machine: the processor's own flag, else the firmware's product names."""
    words = firmware.lower()
    if "amazon ec2" in words:
        return "metal" not in words
    return processor.hypervisor or any(word in words for word in GUEST_WORDS)


def _fields(block: str) -> dict[str, str]:
    pairs = (line.partition(":") for line in block.splitlines() if ":" in line)
    return {key.strip(): value.strip() for key, _, value in pairs}


def _known(words: Iterable[str]) -> tuple[str, ...]:
    present = set(words)
    return tuple(feature for feature in FEATURES if feature in present)


def _x86(fields: Mapping[str, str]) -> Processor:
    flags = fields.get("flags", "").split()
    vendor = X86_VENDORS.get(fields["vendor_id"], fields["vendor_id"].lower())
    width = 64 if "avx512f" in flags else 32 if "avx" in flags else 16
    return Processor(
        id=f"cpu-{vendor}-{fields['cpu family']}-{fields.get('model', '0')}", name=fields.get("model name", vendor),
        features=_known(flags), vector_bytes=width, hypervisor="hypervisor" in flags,
    )


def _arm(fields: Mapping[str, str]) -> Processor:
    words = fields.get("Features", "").split()
    if "asimd" in words:
        words.append("neon")
    implementer = fields["CPU implementer"].lower().removeprefix("0x")
    part = fields.get("CPU part", "0x0").lower().removeprefix("0x")
    name = fields.get("model name") or f"{ARM_IMPLEMENTERS.get(implementer, implementer)} part {part}"
    return Processor(
        id=f"cpu-arm-{implementer}-{part}", name=name, features=_known(words), vector_bytes=16, hypervisor=False
    )
