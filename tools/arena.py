"""Rings of buffers that the parent owns and a worker maps: inputs to read, outputs to fill.

A ring is one sealed memory file with `slots` copies of an operator's inputs or outputs. Three layouts:

    guarded   each tensor of each slot lies on pages of its own, its last byte at the end of a page, and the page behind
              it cannot be touched in the worker; what lies before it on its pages is filled with canaries
    packed    slots lie close together, each tensor between canaries at a random offset, one guard at either end: for
              timing, where a page of its own for each small tensor would be measured as well
    windowed  packed, and each tensor is followed by 64 KiB that belong to it: a worker reads it from another line in
              each pass over the ring but the last (see `Worker.batch`), so that no pass sees what an earlier one saw

Nothing beyond the 4-byte alignment of the contract is promised in the guarded layout; the packed one keeps offsets to
multiples of `step_bytes`.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from kernelcrew.kernels.expr import parse
from kernelcrew.kernels.nouns import Operator, Tensor
from kernelcrew.record import Record

PAGE = mmap.PAGESIZE
LINE = 64
Layout = Literal["guarded", "packed", "windowed"]
WINDOWS = 1024
"""Lines that a tensor of a windowed ring may begin at: 64 KiB more a tensor, and few samples make more passes."""
DTYPES: dict[str, Any] = {"float32": np.float32, "float64": np.float64, "int32": np.int32}
POISONS: dict[str, dict[str, int]] = {
    "nan": {"float32": 0x7FC0DEAD, "float64": 0x7FF80000DEADDEAD, "int32": 0x7FC0DEAD},
    "large": {"float32": 0x7E967699, "float64": 0x7E37E43C8800759C, "int32": 0x7E967699},
}
"""Bit patterns: a quiet NaN with a payload, and a large finite value (1e38; 1e300) that is wrong but not special."""
_BITS: dict[str, Any] = {"float32": np.uint32, "float64": np.uint64, "int32": np.uint32}


class Placement(Record):
    """Where one tensor lies in a ring; slot `s` adds `s * stride_bytes` to every offset."""

    name: str
    """The tensor's name."""
    dtype: str
    """Element type."""
    dims: tuple[int, ...]
    """Extents for the ring's axes."""
    offset_bytes: int
    """First byte, in slot 0."""
    size_bytes: int
    """Bytes of the tensor; 0 is allowed."""
    slack_bytes: int = 0
    """Bytes behind it that belong to its later windows (packed inputs)."""
    segment_bytes: tuple[int, int]
    """First byte and length of the whole pages that the worker maps for it in slot 0 (guarded layout)."""


class Plan(Record):
    """The layout of a ring in numbers: what the worker is told."""

    guarded: bool
    """Whether each tensor has pages and a guard of its own."""
    total_bytes: int
    """Size of the memory file, guards included."""
    stride_bytes: int
    """From one slot to the next."""
    placements: tuple[Placement, ...]
    """One a tensor, in the operator's order."""


class Ring(ABC):
    """A memory file with `slots` copies of some tensors. A context manager; views outlive `close`."""

    ROLES: ClassVar[tuple[str, ...]] = ()
    """Roles of the tensors that lie in it."""

    def __init__(
        self, operator: Operator, axes: Mapping[str, int], slots: int, *, layout: Layout = "guarded",
        rng: np.random.Generator | None = None, step_bytes: int = LINE,
    ) -> None:
        """`axes` gives each axis a value. `rng` places a packed ring (system randomness when None).

        Raises ValueError for fewer than one slot or a `step_bytes` that is not a multiple of 4 dividing 64.
        """
        if slots < 1:
            raise ValueError(f"a ring has at least one slot, not {slots}")
        if step_bytes % 4 or LINE % step_bytes:
            raise ValueError(f"step_bytes is a multiple of 4 that divides {LINE}, not {step_bytes}")
        self.axes = dict(axes)
        self.slots = slots
        self.windows = WINDOWS if layout == "windowed" else 1
        tensors = [t for t in operator.tensors if t.role in self.ROLES]
        sized = [(t, _dims(t, axes)) for t in tensors]
        random = rng if rng is not None else np.random.default_rng()
        self.plan = _guarded(sized, slots) if layout == "guarded" else (
            _packed(sized, slots, random, step_bytes, (self.windows - 1) * LINE)
        )
        self._fd = os.memfd_create("ring", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self._fd, self.plan.total_bytes)
        # A worker that could shrink the file would turn the parent's next read into a bus error.
        fcntl.fcntl(self._fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        self._memory = mmap.mmap(self._fd, self.plan.total_bytes)

    @property
    def size_bytes(self) -> int:
        """Bytes of all tensors in all slots: what decides the cache level that the ring fits in."""
        return self.slots * sum(p.size_bytes for p in self.plan.placements)

    def views(self, slot: int) -> dict[str, NDArray[Any]]:
        """The tensors of one slot, by name, as arrays over the shared memory."""
        if not 0 <= slot < self.slots:
            raise IndexError(f"slot {slot} of {self.slots}")
        return {p.name: self.stacked(p.name)[slot] for p in self.plan.placements}

    def stacked(self, name: str) -> NDArray[Any]:
        """One tensor of all slots as a strided array of shape (slots, *dims) over the shared memory."""
        place = self._place(name)
        return self._array(DTYPES[place.dtype], place)

    def fillings(self, slot: int) -> list[NDArray[Any]]:
        """Each tensor of one slot, flat, together with what its later windows read: what is to be filled for timing."""
        found = []
        for place in self.plan.placements:
            dtype = np.dtype(DTYPES[place.dtype])
            count = (place.size_bytes + place.slack_bytes) // dtype.itemsize
            start = place.offset_bytes + slot * self.plan.stride_bytes
            found.append(np.ndarray((count,), dtype=dtype, buffer=self._memory, offset=start))
        return found

    @abstractmethod
    def worker_fd(self) -> int:
        """A new descriptor to hand to a worker; the caller closes it."""

    def close(self) -> None:
        """Close the file. The memory goes at once, or with the last view of it where one is still held."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            with suppress(BufferError):
                self._memory.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_fd", -1) >= 0:
            self.close()

    def _place(self, name: str) -> Placement:
        return next(p for p in self.plan.placements if p.name == name)

    def _array(self, dtype: Any, place: Placement) -> NDArray[Any]:
        item = np.dtype(dtype).itemsize
        inner = [item]
        for extent in reversed(place.dims[1:]):
            inner.insert(0, inner[0] * max(extent, 1))
        strides = (self.plan.stride_bytes, *(inner if place.dims else ()))
        shape = (self.slots, *place.dims)
        return np.ndarray(shape, dtype=dtype, buffer=self._memory, offset=place.offset_bytes, strides=strides)

    def _bytes(self, start: int, length: int) -> NDArray[np.uint8]:
        """(slots, length) bytes that begin at `start` in slot 0."""
        strides = (self.plan.stride_bytes, 1)
        return np.ndarray((self.slots, length), dtype=np.uint8, buffer=self._memory, offset=start, strides=strides)


class InputRing(Ring):
    """The `in` tensors. A worker gets a read-only descriptor, so that it can neither write nor unprotect them."""

    ROLES = ("in",)

    def worker_fd(self) -> int:
        return os.open(f"/proc/self/fd/{self._fd}", os.O_RDONLY | os.O_CLOEXEC)


class OutputRing(Ring):
    """The `out` and `inout` tensors, between canaries.

    An `inout` tensor is read from and written to the output slot of its call: fill it in every slot that a batch will
    use, and make no more calls than there are slots.
    """

    ROLES = ("out", "inout")

    def __init__(
        self, operator: Operator, axes: Mapping[str, int], slots: int, *, layout: Layout = "guarded",
        rng: np.random.Generator | None = None, step_bytes: int = LINE,
    ) -> None:
        """As for `Ring`; canaries are set, outputs are zero until `poison`."""
        super().__init__(operator, axes, slots, layout=layout, rng=rng, step_bytes=step_bytes)
        self._outputs = tuple(t.name for t in operator.tensors if t.role == "out")
        self._gaps = _gaps(self.plan)
        random = rng if rng is not None else np.random.default_rng()
        self._canary = random.integers(1, 255, PAGE, dtype=np.uint8, endpoint=True)
        for _, start, length in self._gaps:
            self._bytes(start, length)[:] = self._pattern(length)

    def worker_fd(self) -> int:
        return os.dup(self._fd)

    def poison(self, kind: str = "nan") -> None:
        """Fill every `out` tensor of every slot with a pattern of POISONS that no honest kernel leaves behind."""
        for name in self._outputs:
            place = self._place(name)
            self._array(_BITS[place.dtype], place)[...] = POISONS[kind][place.dtype]

    def damage(self) -> str:
        """'' when every canary is whole, else which tensor's surroundings were written to."""
        for name, start, length in self._gaps:
            wrong = self._bytes(start, length) != self._pattern(length)
            if wrong.any():
                slot, byte = (int(i) for i in np.argwhere(wrong)[-1])
                return f"bytes {_relation(self._place(name), start + byte)} '{name}' in slot {slot} were overwritten"
        return ""

    def outputs_of(self, calls: int, first_rotation: int) -> dict[int, int]:
        """As the function of that name, for this ring's slots."""
        return outputs_of(self.slots, calls, first_rotation)

    def _pattern(self, length: int) -> NDArray[np.uint8]:
        return np.resize(self._canary, length)


def outputs_of(slots: int, calls: int, first_rotation: int) -> dict[int, int]:
    """Output slot to the input slot whose answer it must hold after a batch; slots that no call wrote are absent.

    Call c reads input slot c mod R and writes output slot (c + first_rotation + c // R) mod R. From one pass over the
    ring to the next each output slot gets another input, so with R > 1 no call finds its own answer waiting there.
    """
    return {
        (call + first_rotation + call // slots) % slots: call % slots
        for call in range(max(0, calls - 2 * slots), calls)
    }


def _dims(tensor: Tensor, axes: Mapping[str, int]) -> tuple[int, ...]:
    return tuple(max(0, int(parse(text).value(axes))) for text in tensor.dims)


def _size(tensor: Tensor, dims: Sequence[int]) -> int:
    count = int(np.dtype(DTYPES[tensor.dtype]).itemsize)
    for extent in dims:
        count *= extent
    return count


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def _guarded(sized: Sequence[tuple[Tensor, tuple[int, ...]]], slots: int) -> Plan:
    places = []
    cursor = PAGE
    for tensor, dims in sized:
        size = _size(tensor, dims)
        length = max(PAGE, _round_up(size, PAGE))
        places.append(
            Placement(
                name=tensor.name, dtype=tensor.dtype, dims=dims, offset_bytes=cursor + length - size, size_bytes=size,
                segment_bytes=(cursor, length),
            )
        )
        cursor += length + PAGE
    stride = max(cursor - PAGE, PAGE)
    return Plan(guarded=True, total_bytes=PAGE + slots * stride, stride_bytes=stride, placements=tuple(places))


def _packed(
    sized: Sequence[tuple[Tensor, tuple[int, ...]]], slots: int, rng: np.random.Generator, step_bytes: int, slack: int
) -> Plan:
    places = []
    first = PAGE + LINE * int(rng.integers(1, PAGE // LINE))
    cursor = first
    for tensor, dims in sized:
        size = _size(tensor, dims)
        offset = cursor + step_bytes * int(rng.integers(LINE // step_bytes))
        places.append(
            Placement(
                name=tensor.name, dtype=tensor.dtype, dims=dims, offset_bytes=offset, size_bytes=size,
                slack_bytes=slack, segment_bytes=(0, 0),
            )
        )
        cursor = _round_up(offset + size + slack, LINE) + LINE
    stride = max(cursor - first, LINE)
    total = _round_up(first + slots * stride, PAGE) + PAGE
    return Plan(guarded=False, total_bytes=total, stride_bytes=stride, placements=tuple(places))


def _gaps(plan: Plan) -> list[tuple[str, int, int]]:
    """Tensor, first byte and length, in slot 0, of each stretch that a worker can write and must not."""
    gaps = []
    for index, place in enumerate(plan.placements):
        if plan.guarded:
            start = place.segment_bytes[0]
            gaps.append((place.name, start, place.offset_bytes - start))
            continue
        following = plan.placements[index + 1].offset_bytes if index + 1 < len(plan.placements) else (
            plan.placements[0].offset_bytes + plan.stride_bytes - LINE
        )
        if index == 0:
            gaps.append((place.name, place.offset_bytes - LINE, LINE))
        end = place.offset_bytes + place.size_bytes
        gaps.append((place.name, end, following - end))
    return [(name, start, length) for name, start, length in gaps if length > 0]


def _relation(place: Placement, byte: int) -> str:
    return "before" if byte < place.offset_bytes else "after"
