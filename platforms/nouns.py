"""What a machine can do: the nouns of this room."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from kernelcrew.record import Record, hash_of


class Peak(Record):
    """One ceiling of a machine, with where the figure comes from."""

    name: Literal["read", "copy", "fma", "add_latency"]
    """Streaming read, streaming copy (bytes read plus written), fused multiply-add, or one add of a serial chain."""
    level: str
    """L1, L2, L3, memory; `core` for fma out of registers and for add_latency."""
    value: float
    """GB/s, GFLOP/s for fma, ns for add_latency, on one core."""
    unit: Literal["GB/s", "GFLOP/s", "ns"]
    """Unit of `value`."""
    footprint_bytes: int = 0
    """Bytes that the loop ran over."""
    spread: float = 0.0
    """How far the median repeat lay from the best one, as a share of the best: what the host did meanwhile."""
    source: str
    """`measured here` or the document."""
    date: str
    """ISO day."""


class Figure(Record):
    """One documented number of a platform, with where it comes from."""

    value: float
    """The number."""
    unit: str
    """`B`, `flop/cycle`, `B/cycle`."""
    source: str
    """The document, and what the number holds for."""
    date: str
    """ISO day on which it was noted."""


class Toolchain(Record):
    """The compiler that candidates are built with."""

    name: str
    """gcc."""
    path: str
    """Where it was found."""
    version: str
    """Full version."""
    major: int
    """Major version."""
    target: str
    """What -march=native resolves to."""


class Fingerprint(Record):
    """What changes answers without changing the platform's id."""

    cores: int
    """Cores that this process may use."""
    caches: dict[str, int]
    """Bytes of L1d and L2 a core, and L3 shared."""
    compiler_major: int
    """Major version of the compiler."""
    virtual: bool
    """Inside a virtual machine."""
    kernel: str
    """Operating system release."""


class Platform(Record):
    """One kind of machine."""

    id: str
    """`cpu-amd-25-17` and the like."""
    readable: str
    """`AMD EPYC, Zen 4 (Genoa)`, or the vendor's model name."""
    kind: Literal["cpu", "gpu"] = "cpu"
    """What candidates run on."""
    features: tuple[str, ...] = ()
    """Instruction sets that matter: avx2, fma, avx512f, neon, ..."""
    vector_bytes: int = 16
    """Widest vector register."""
    caches: dict[str, int] = Field(default_factory=dict)
    """Bytes: L1d, L2, L3."""
    figures: dict[str, Figure] = Field(default_factory=dict)
    """Documented numbers by name: vector_bytes, fp32_flops_per_cycle, load_bytes_per_cycle, L1d, L2."""
    peaks: tuple[Peak, ...] = ()
    """Datasheet or measured. Several footprints of one level may be there; the best one stands first."""
    here: bool = False
    """Whether it is this machine."""
    source: str = ""
    """Where the entry comes from, with date."""

    def peak(self, name: str, level: str) -> Peak | None:
        return next((p for p in self.peaks if p.name == name and p.level == level), None)

    def ceiling(self, name: str, footprint_bytes: float) -> Peak | None:
        """The peak that a loop over `footprint_bytes` cannot beat: the best of what was measured from the largest
        footprint that is not above it upwards, since bandwidth falls as footprints grow."""
        sized = [p for p in self.peaks if p.name == name and p.footprint_bytes > 0 and p.level != "core"]
        if not sized:
            return None
        smallest = min(p.footprint_bytes for p in sized)
        floor = max((p.footprint_bytes for p in sized if p.footprint_bytes <= footprint_bytes), default=smallest)
        return max((p for p in sized if p.footprint_bytes >= floor), key=lambda p: p.value)

    def level_of(self, footprint_bytes: float) -> str:
        """The smallest cache level that `footprint_bytes` plus 10 % fit in, else `memory`."""
        for level in ("L1", "L2", "L3"):
            if footprint_bytes * 1.1 <= self.caches.get("L1d" if level == "L1" else level, 0):
                return level
        return "memory"


class Machine(Record):
    """This machine: platform, fingerprint and toolchain together, as a run is locked to them."""

    platform: Platform
    """What it is."""
    fingerprint: Fingerprint
    """What else changes answers."""
    toolchain: Toolchain
    """The compiler."""

    def circumstances(self) -> str:
        """Hash of what must be equal for a refuted change to stay refuted: platform, compiler, cores and caches."""
        return hash_of(self.platform.id, self.fingerprint.model_dump(mode="json", exclude={"kernel"}))
