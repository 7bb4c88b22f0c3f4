"""Rings: layout, views, poison, canaries and the rotation of slots."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from kernelcrew.tools.arena import PAGE, InputRing, OutputRing, outputs_of

sys.path.insert(0, str(Path(__file__).parent))
import worker_kit as kit

AXES = {"n": 1000, "k": 1}


@pytest.mark.parametrize("layout", ["guarded", "packed"])
@pytest.mark.parametrize("size", [0, 1, 1000, 1024, 5000])
def test_slots_are_apart_and_inside_the_guards(layout: str, size: int) -> None:
    with InputRing(kit.operator(), {"n": size, "k": 0}, 3, layout=layout) as ring:  # type: ignore[arg-type]
        place = ring.plan.placements[0]
        assert place.offset_bytes >= PAGE and place.offset_bytes % 4 == 0
        assert place.offset_bytes + 2 * ring.plan.stride_bytes + 4 * size <= ring.plan.total_bytes - PAGE
        for slot in range(3):
            assert ring.views(slot)["x"].shape == (size,)
            ring.views(slot)["x"][:] = slot + 1
        assert [set(ring.views(s)["x"].tolist()) for s in range(3)] == [{s + 1.0} if size else set() for s in range(3)]
        assert ring.size_bytes == 3 * 4 * size


def test_guarded_tensors_end_at_a_page() -> None:
    with OutputRing(kit.operator(), AXES, 2) as ring:
        place = ring.plan.placements[0]
        assert (place.offset_bytes + place.size_bytes) % PAGE == 0
        assert place.segment_bytes == (PAGE, PAGE)


def test_packed_placement_varies_and_keeps_its_step() -> None:
    rings = [InputRing(kit.operator(), AXES, 2, layout="packed", rng=np.random.default_rng(seed)) for seed in range(20)]
    offsets = {ring.plan.placements[0].offset_bytes for ring in rings}
    assert len(offsets) > 5 and all(offset % 64 == 0 for offset in offsets)
    fine = {
        InputRing(kit.operator(), AXES, 2, layout="packed", step_bytes=4).plan.placements[0].offset_bytes % 64
        for _ in range(20)
    }
    assert len(fine) > 3 and all(offset % 4 == 0 for offset in fine)


@pytest.mark.parametrize("kind", ["nan", "large"])
def test_poison_fills_every_slot(kind: str) -> None:
    with OutputRing(kit.operator(), AXES, 3) as ring:
        ring.stacked("y")[...] = 1.0
        ring.poison(kind)
        values = ring.stacked("y")
        assert np.isnan(values).all() if kind == "nan" else (np.isfinite(values) & (values > 9e37)).all()
        assert ring.damage() == ""


@pytest.mark.parametrize("layout", ["guarded", "packed"])
@pytest.mark.parametrize("shift", [-1, 1])
def test_damage_names_the_tensor_and_slot(layout: str, shift: int) -> None:
    with OutputRing(kit.operator(), AXES, 3, layout=layout) as ring:  # type: ignore[arg-type]
        place = ring.plan.placements[0]
        edge = place.offset_bytes - 1 if shift < 0 else place.offset_bytes + place.size_bytes
        ring._bytes(edge, 1)[1] ^= 1
        if layout == "guarded" and shift > 0:
            assert ring.damage() == ""  # Behind it lies the guard, which no worker can touch.
        else:
            side = "before" if shift < 0 else "after"
            assert ring.damage() in {f"bytes {side} 'y' in slot {s} were overwritten" for s in (0, 1, 2)}


def test_a_worker_cannot_write_inputs_or_change_the_size() -> None:
    with InputRing(kit.operator(), AXES, 1) as inputs, OutputRing(kit.operator(), AXES, 1) as outputs:
        for ring, error in ((inputs, (PermissionError, OSError)), (outputs, (PermissionError,))):
            descriptor = ring.worker_fd()
            with pytest.raises(error):
                os.ftruncate(descriptor, 0)
            os.close(descriptor)
        descriptor = inputs.worker_fd()
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.write(descriptor, b"x")
        os.close(descriptor)


@pytest.mark.parametrize("slots", [1, 2, 3, 7])
@pytest.mark.parametrize("first", [0, 1, 5])
def test_rotation_never_offers_a_call_its_own_answer(slots: int, first: int) -> None:
    held: dict[int, int] = {}
    for call in range(5 * slots + 3):
        source, target = call % slots, (call + first + call // slots) % slots
        if slots > 1:
            assert held.get(target) != source
        held[target] = source
        assert outputs_of(slots, call + 1, first) == held


def test_bad_rings_are_refused() -> None:
    with pytest.raises(ValueError, match="at least one slot"):
        InputRing(kit.operator(), AXES, 0)
    with pytest.raises(ValueError, match="multiple of 4"):
        InputRing(kit.operator(), AXES, 1, layout="packed", step_bytes=6)
    with InputRing(kit.operator(), AXES, 2) as ring, pytest.raises(IndexError):
        ring.views(2)
