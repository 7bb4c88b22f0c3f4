"""Timing decisions on a simulated clock whose truth is known. Nothing here is timed."""

from __future__ import annotations

import json
import math
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from kernelcrew.errors import HarnessError
from kernelcrew.kernels.nouns import Axis, Backend, Contract, Cost, Distribution, Operator, Shape, Tensor, Tolerance
from kernelcrew.tools.hoststate import HostReading, between, cache_bytes, cpu_ns, read_host
from kernelcrew.tools.nouns import AlphaPlan, Build, Timing
from kernelcrew.tools.timing import Bench
from kernelcrew.tools.timing_blocks import Heat, Sampled, calls_for, clock_trouble, raw_text
from kernelcrew.tools.timing_sequence import begin

TimeOf = Callable[[Build, Shape], float]


@dataclass
class SimulatedLab:
    """Times are `true_us(build, shape)` times lognormal noise: `pair_sd` new for each sample, `block_sd` for each
    contender, shape and block (the placement effect, which is lasting within a block and meaningless)."""

    true_us: TimeOf
    rng: random.Random
    pair_sd: float = 0.01
    block_sd: float = 0.003
    disturbed_share: float = 0.0
    wrong: Mapping[str, str] = field(default_factory=dict)
    """Build identity to what is wrong with its timed outputs."""
    wrong_strictly: Mapping[str, str] = field(default_factory=dict)
    """The same, seen only by the float64 reference."""
    lying: frozenset[str] = frozenset()
    """Build identities whose worker clock runs slow."""
    clock: float = 0.0
    stands: int = 0
    heats: list[tuple[int, str, tuple[str, ...]]] = field(default_factory=list)
    """Stand, shape key and order of every heat."""

    @contextmanager
    def stand(self, builds: Mapping[str, Build], trusted: Sequence[str]) -> Iterator[SimulatedStand]:
        self.stands += 1
        self.clock += 0.02 * len(builds)
        yield SimulatedStand(self, dict(builds), tuple(trusted), self.stands)

    def now(self) -> float:
        return self.clock

    def host(self) -> HostReading:
        return HostReading(load1=0.5, total=100 * self.clock, idle=50 * self.clock, steal=0.0)

    def ring_bytes(self, shape: Shape) -> int:
        return 4 * shape.axes["n"]

    def close(self) -> None:
        self.heats.clear()


@dataclass
class SimulatedStand:
    lab: SimulatedLab
    builds: dict[str, Build]
    trusted: tuple[str, ...]
    number: int
    placement: dict[tuple[str, str], float] = field(default_factory=dict)

    def heat(self, shape: Shape, order: Sequence[str]) -> Heat:
        lab = self.lab
        lab.heats.append((self.number, shape.key, tuple(order)))
        samples = []
        for name in order:
            build = self.builds[name]
            key = (name, shape.key)
            if key not in self.placement:
                self.placement[key] = lab.rng.lognormvariate(0.0, lab.block_sd)
            call_us = lab.true_us(build, shape) * self.placement[key] * lab.rng.lognormvariate(0.0, lab.pair_sd)
            calls = max(1, round(1500 / call_us))
            elapsed = calls * call_us
            lab.clock += elapsed / 1e6
            worker = elapsed * (0.5 if build.identity in lab.lying else 1.0) - 9
            samples.append(Sampled(name=name, calls=calls, elapsed_us=elapsed, worker_us=worker))
        spoilt = "preempted" if lab.rng.random() < lab.disturbed_share else ""
        wrong = {n: lab.wrong[b.identity] for n in order if (b := self.builds[n]).identity in lab.wrong}
        return Heat(samples=tuple(samples), spoilt=spoilt, wrong=wrong)

    def strict(self, shape: Shape, names: Sequence[str]) -> dict[str, str]:
        judged = {n: self.builds[n].identity for n in names if n not in self.trusted}
        return {n: bad for n, identity in judged.items() if (bad := self.lab.wrong_strictly.get(identity))}


def build_of(identity: str) -> Build:
    """A build by name only."""
    return Build(status="ok", identity=identity, artifact=f"/nowhere/{identity}", artifact_hash=f"hash-{identity}")


def small_operator(shapes: Sequence[Shape] | None = None, folder: Path = Path("/nowhere")) -> Operator:
    """A sum over rows with four classes of two shapes, and one held-out shape."""
    chosen = shapes or [
        Shape(axes={"rows": rows, "n": n}, shape_class=name)
        for name, rows, n in (
            ("main", 64, 1024), ("main", 32, 4096), ("short", 4096, 8), ("short", 1024, 32),
            ("long", 1, 65536), ("long", 2, 131072), ("tail", 31, 1021), ("tail", 7, 333),
        )
    ] + [Shape(axes={"rows": 16, "n": 2048}, shape_class="main", role="held_out")]
    return Operator(
        name="rowsum", version=1, summary="sum of rows", folder=folder,
        axes=(Axis(name="rows"), Axis(name="n")),
        tensors=(Tensor(name="x", role="in", dims=("rows", "n")), Tensor(name="y", role="out", dims=("rows",))),
        contract=Contract(),
        backends={"c": Backend(entry="rowsum", args=("x", "y", "rows", "n"), source="kernel.c", base_flags=("-O2",))},
        cost=Cost(flops="rows * n", bytes="4 * rows * (n + 1)"),
        distributions=(Distribution(name="uniform", kind="uniform", low=0.0, high=1.0),),
        timing_distribution="uniform",
        tolerances=(Tolerance(error="4 + sqrt(n)", bias="4", deviation="4 + sqrt(n)", reason="for tests"),),
        shapes=tuple(chosen),
    )


PLAN = AlphaPlan(confirmations=4, classes=4)
START, NEW = build_of("start"), build_of("new")


def gains(by_identity: Mapping[str, float], by_shape: Mapping[tuple[str, str], float] | None = None) -> TimeOf:
    """True times: 100 us over the build's gain, or over its gain at one shape."""

    def true_us(build: Build, shape: Shape) -> float:
        gain = by_identity.get(build.identity, 1.0)
        return 100.0 / (by_shape or {}).get((build.identity, shape.key), gain)

    return true_us


def bench_on(true_us: TimeOf, seed: int = 1, **more: object) -> tuple[Bench, SimulatedLab]:
    lab = SimulatedLab(true_us, random.Random(seed), **more)  # type: ignore[arg-type]
    return Bench(operator=small_operator(), lab=lab, rng=random.Random(seed + 1000)), lab


def confirm(bench: Bench, start: Build = START, deadline_s: float = 1e6, held_out: bool = False) -> Timing:
    incumbent = START if start is START else build_of("incumbent")
    return bench.confirm(NEW, incumbent, start, PLAN, deadline_s, include_held_out=held_out)


def answers(timing: Timing) -> dict[str, str]:
    return {c.shape_class: c.answer for c in timing.classes}


def test_a_true_gain_of_ten_percent_is_accepted_on_every_class() -> None:
    bench, _ = bench_on(gains({"new": 1.10}))
    timing = confirm(bench)
    assert timing.status == "decided"
    assert set(answers(timing).values()) == {"faster"}
    assert {s.answer for s in timing.shapes} == {s.answer_start for s in timing.shapes} == {"not slower"}
    assert timing.threshold == 1600
    assert all(c.e_value >= 1600 for c in timing.classes)
    assert all(c.ratio == pytest.approx(1.10, abs=0.02) for c in timing.classes)


def test_the_same_kernel_is_never_called_faster() -> None:
    for seed in range(15):
        timing = confirm(bench_on(gains({}), seed)[0])
        assert timing.status == "decided"
        assert "faster" not in answers(timing).values()


def decisions(truth: float, sd: float, count: int, odd: float | None = None) -> tuple[int, int]:
    """Of `count` simulated confirmations, those with any class faster, and those with any shape slower.

    `truth` is the log ratio of every shape, `odd` that of the last one when given.
    """
    rng = random.Random(11)
    shapes = small_operator().timed()
    true = dict.fromkeys([s.key for s in shapes], truth) | ({} if odd is None else {shapes[-1].key: odd})
    faster = slower = 0
    for _ in range(count):
        progress = begin(shapes, PLAN, 0.01, {s.key: 0.02 for s in shapes}, with_start=False)
        while not progress.over:
            progress = progress.after({s.key: rng.gauss(true[s.key], sd) for s in shapes if progress.needs(s)[0]}, {})
        faster += progress.faster
        slower += bool(progress.slower)
    return faster, slower


def test_hundreds_of_decisions_on_the_same_kernel_accept_and_refute_nothing() -> None:
    assert decisions(truth=0.0, sd=0.004, count=300) == (0, 0)


def test_a_gain_that_equals_the_margin_is_accepted_within_alpha() -> None:
    faster, _ = decisions(truth=math.log(1.01), sd=0.004, count=300)
    assert faster <= 4


def test_a_gain_of_twice_the_margin_is_found_nearly_always() -> None:
    faster, _ = decisions(truth=math.log(1.02), sd=0.004, count=100)
    assert faster >= 95


def test_a_loss_beyond_the_margin_is_found_nearly_always() -> None:
    assert decisions(truth=math.log(1.05), sd=0.004, count=100, odd=math.log(0.97))[1] >= 95
    assert decisions(truth=math.log(0.97), sd=0.004, count=100) == (0, 100)


def test_a_loss_that_equals_the_margin_is_passed_as_rarely_as_said() -> None:
    shapes = small_operator().timed()
    rng = random.Random(5)
    passed = 0
    for _ in range(400):
        progress = begin(shapes[:1], PLAN, 0.01, {shapes[0].key: 0.02}, with_start=False)
        for _ in range(40):
            progress = progress.after({shapes[0].key: rng.gauss(-math.log(1.02), 0.004)}, {})
        passed += progress.shapes[shapes[0].key].answer == "not slower"
    assert passed / 400 <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 400)


def test_a_class_that_gains_while_one_of_its_shapes_loses_four_percent_has_a_slower_shape() -> None:
    bench, _ = bench_on(gains({"new": 1.2}, {("new", "rows=32,n=4096"): 0.96}), block_sd=0.001, pair_sd=0.004)
    timing = confirm(bench)
    slow = {s.shape for s in timing.shapes if s.answer == "slower"}
    assert slow == {"rows=32,n=4096"}
    assert answers(timing)["main"] == "faster"
    assert timing.status == "decided"


def test_a_loss_beyond_five_percent_is_never_passed_however_wide_the_noise() -> None:
    for seed in range(5):
        bench, _ = bench_on(gains({"new": 1.3}, {("new", "rows=32,n=4096"): 0.9}), seed, block_sd=0.02)
        by_key = {s.shape: s for s in confirm(bench).shapes}
        lost = by_key["rows=32,n=4096"]
        assert lost.ratio < 0.95
        assert lost.answer in ("slower", "unknown")


def test_the_incumbent_wins_ties_soon() -> None:
    bench, lab = bench_on(gains({"new": 1.0}))
    bench.noise(START)
    before = lab.stands
    timing = confirm(bench)
    assert timing.status == "decided"
    assert lab.stands - before <= 8 + bench.pace.estimate_blocks
    assert "faster" not in answers(timing).values()


def test_losses_that_the_incumbent_tolerated_do_not_add_up_against_the_start() -> None:
    truth = gains({"new": 1.10, "incumbent": 1.0, "start": 1.0}, {("start", "rows=7,n=333"): 1.2})
    bench, lab = bench_on(truth)
    timing = confirm(bench, start=build_of("start0"))
    assert {s.answer_start for s in timing.shapes} == {"not slower"}
    bench, lab = bench_on(gains({"new": 1.10, "old": 1.0}, {("old", "rows=7,n=333"): 1.2}))
    timing = confirm(bench, start=build_of("old"))
    by_key = {s.shape: s for s in timing.shapes}
    assert by_key["rows=7,n=333"].answer == "not slower"
    assert by_key["rows=7,n=333"].answer_start == "slower"
    assert any("start" in order for _, _, order in lab.heats)


def test_the_start_is_left_out_of_blocks_once_it_is_answered() -> None:
    bench, lab = bench_on(gains({"new": 1.10}))
    confirm(bench, start=build_of("old"))
    last = max(stand for stand, _, _ in lab.heats)
    assert all("start" not in order for stand, _, order in lab.heats if stand == last)


def test_estimates_come_from_blocks_after_the_decision() -> None:
    kept: list[str] = []
    lab = SimulatedLab(gains({"new": 1.10}), random.Random(1))
    bench = Bench(operator=small_operator(), lab=lab, rng=random.Random(2))
    bench.keep = lambda text: kept.append(text) or "hash"
    timing = confirm(bench)
    phases = [b["phase"] for b in json.loads(kept[-1])["blocks"]]
    assert phases.count("estimate") == bench.pace.estimate_blocks
    assert phases == sorted(phases)
    assert {len(s.blocks) for s in timing.shapes} == {bench.pace.estimate_blocks}
    assert timing.blocks == len(phases)
    assert timing.samples == "hash"


def test_blocks_have_fresh_workers_random_order_and_abba_pairs() -> None:
    bench, lab = bench_on(gains({"new": 1.10}))
    confirm(bench)
    by_stand: dict[int, list[tuple[str, tuple[str, ...]]]] = {}
    for stand, key, order in lab.heats:
        by_stand.setdefault(stand, []).append((key, order))
    sequences = [tuple(dict.fromkeys(key for key, _ in heats)) for heats in by_stand.values()]
    assert len(set(sequences)) > len(sequences) / 2
    for heats in by_stand.values():
        for key in {k for k, _ in heats}:
            orders = [order for k, order in heats if k == key]
            assert all(a == tuple(reversed(b)) for a, b in zip(orders[::2], orders[1::2], strict=True))


def test_a_wrong_timed_output_makes_the_timing_invalid() -> None:
    for fault in ({"wrong": {"new": "slot 3 holds the poison"}}, {"wrong_strictly": {"new": "error 90, limit 12"}}):
        bench, _ = bench_on(gains({"new": 5.0}), **fault)
        bench.noise(START)
        timing = confirm(bench)
        assert timing.status == "invalid"
        assert next(iter(next(iter(fault.values())).values())) in timing.reason
        assert timing.classes == ()
        assert bench.screen(NEW, START).status == "invalid"


def test_a_wrong_baseline_is_our_failure_and_not_the_candidates() -> None:
    bench, _ = bench_on(gains({"new": 1.1}), wrong={"start": "slot 0 differs"})
    with pytest.raises(HarnessError, match="slot 0 differs"):
        confirm(bench)


def test_a_worker_whose_clock_lies_is_never_decided_and_a_rare_hiccup_is() -> None:
    bench, _ = bench_on(gains({"new": 1.1}), lying=frozenset({"new"}))
    bench.noise(START)
    timing = confirm(bench)
    assert timing.status == "noisy" and timing.reason
    assert "clock" in timing.reason
    assert clock_trouble([], "a", "b") == ""


def sampled(elapsed_us: float, worker_us: float, cpu_us: float = -1.0, name: str = "a") -> Sampled:
    return Sampled(name=name, calls=10, elapsed_us=elapsed_us, worker_us=worker_us, cpu_us=cpu_us)


def test_a_sample_is_disturbed_when_time_was_taken_from_it_and_lies_when_it_hides_its_own() -> None:
    quiet, preempted, late = sampled(1500, 1490, 1510), sampled(5500, 5490, 1510), sampled(5500, 1490, 1510)
    liar, unknown = sampled(1500, 700, 1510), sampled(1500, 700)
    assert [s.disturbed for s in (quiet, preempted, late, liar, unknown)] == [False, True, True, False, True]
    assert [s.clocks_agree for s in (quiet, preempted, late, liar, unknown)] == [True, True, True, False, False]


def test_a_disturbed_heat_is_read_by_processor_time_throughout_or_not_at_all() -> None:
    quiet, preempted = sampled(1500, 1490, 1510), sampled(5500, 5490, 3000, name="b")
    heat = Heat(samples=(quiet, preempted))
    assert (heat.call_us("a"), heat.call_us("b")) == (151.0, 300.0)
    assert Heat(samples=(quiet,)).call_us("a") == 150.0
    blind = Heat(samples=(sampled(1500, 1490), sampled(5500, 1490, name="b")))
    assert not blind.counts
    assert blind.call_us("a") is None
    assert Heat(samples=(quiet,), spoilt="too short").call_us("a") is None


def test_a_gain_above_the_roofline_is_invalid() -> None:
    bench, _ = bench_on(gains({"new": 4.0}))
    bench.ceilings = {"rows=64,n=1024": 40.0}
    assert confirm(bench).status == "invalid"
    bench.ceilings = {"rows=64,n=1024": 26.0}
    assert confirm(bench).status == "decided"


def test_a_gain_beyond_tenfold_is_flagged() -> None:
    flagged = confirm(bench_on(gains({"new": 12.0}))[0])
    assert flagged.host["suspicious"] > 10 and "flagged for a person" in flagged.reason
    usual = confirm(bench_on(gains({"new": 4.0}))[0])
    assert usual.host["suspicious"] == 0 and not usual.reason


@pytest.mark.parametrize(("gain", "says", "status"), [(12.0, "", "decided"), (12.0, "it is wrong", "invalid"),
                                                      (4.0, "it is wrong", "decided")])  # fmt: skip
def test_a_flagged_gain_is_verified_again(gain: float, says: str, status: str) -> None:
    bench, _ = bench_on(gains({"new": gain}))
    asked: list[str] = []
    bench.recheck = lambda build: asked.append(build.identity) or says  # type: ignore[func-returns-value]
    timing = confirm(bench)
    assert timing.status == status
    assert asked == (["new"] if gain > 10 else [])
    assert ("it is wrong" in timing.reason) is (status == "invalid")


def test_ceilings_are_measured_again_before_a_kernel_is_refused_for_one() -> None:
    bench, _ = bench_on(gains({"new": 4.0}))
    bench.ceilings = {"rows=64,n=1024": 40.0}
    bench.higher = lambda: {"rows=64,n=1024": 26.0}
    assert confirm(bench).status == "decided"
    bench.higher = lambda: {"rows=64,n=1024": 40.0}
    bench.ceilings = {"rows=64,n=1024": 40.0}
    assert "above the roofline" in confirm(bench).reason


def test_the_pre_flight_keeps_its_samples_and_the_seed_of_the_inputs() -> None:
    bench, _ = bench_on(gains({}))
    kept: dict[str, str] = {}
    bench.keep = lambda text: kept.setdefault(str(len(kept)), text) and str(len(kept) - 1)
    bench.seed = "00ff"
    noise = bench.noise(START)
    blocks = json.loads(kept[noise.samples])["blocks"]
    assert len(blocks) == bench.pace.noise_blocks and blocks[0]["phase"] == "aa"
    assert noise.input_seed == confirm(bench).input_seed == "00ff"


def test_a_host_that_disturbs_most_pairs_is_noisy() -> None:
    bench, _ = bench_on(gains({"new": 1.3}), disturbed_share=0.7)
    noise = bench.noise(START)
    assert not noise.quiet
    assert "disturbed" in noise.reason
    timing = confirm(bench)
    assert timing.status == "noisy"
    assert timing.host["discarded"] > timing.host["pairs"] / 2


def test_a_host_with_wide_blocks_decides_nothing_small_and_says_so() -> None:
    bench, _ = bench_on(gains({"new": 1.03}), block_sd=0.15)
    noise = bench.noise(START)
    assert not noise.quiet
    assert noise.reason.startswith("too noisy")
    timing = confirm(bench)
    assert "faster" not in answers(timing).values()


def test_few_disturbed_pairs_are_replaced_and_change_no_decision() -> None:
    bench, _ = bench_on(gains({"new": 1.10}), disturbed_share=0.05)
    timing = confirm(bench)
    assert timing.status == "decided"
    assert timing.host["discarded"] > 0
    assert set(answers(timing).values()) == {"faster"}


def test_a_quiet_host_is_called_quiet() -> None:
    noise = bench_on(gains({}))[0].noise(START)
    assert noise.quiet
    assert noise.aa_sd < 0.01


def test_the_deadline_ends_it_undecided_with_the_reason() -> None:
    bench, lab = bench_on(gains({"new": 1.10}))
    bench.noise(START)
    began = lab.now()
    timing = confirm(bench, deadline_s=1.5)
    assert timing.status == "undecided"
    assert "time was up" in timing.reason
    assert lab.now() - began < 2.0
    assert {s.answer for s in timing.shapes} == {"unknown"}
    assert all(s.blocks for s in timing.shapes)


def test_spent_blocks_end_it_undecided() -> None:
    bench, _ = bench_on(gains({"new": 1.10}))
    timing = bench.confirm(NEW, START, START, PLAN.model_copy(update={"max_blocks": 5}), 1e6)
    assert "faster" not in answers(timing).values()
    assert timing.status == "undecided"
    assert "5 blocks" in timing.reason


def test_held_out_shapes_are_asked_when_wanted_and_stand_in_no_class() -> None:
    bench, _ = bench_on(gains({"new": 1.10}, {("new", "rows=16,n=2048"): 0.8}))
    assert "rows=16,n=2048" not in {s.shape for s in confirm(bench).shapes}
    timing = confirm(bench, held_out=True)
    held = next(s for s in timing.shapes if s.shape == "rows=16,n=2048")
    assert held.answer == "slower"
    assert next(c for c in timing.classes if c.shape_class == "main").ratio == pytest.approx(1.10, abs=0.02)


def test_a_screen_answers_by_interval_and_never_decides() -> None:
    bench, _ = bench_on(gains({"new": 1.5}, {("new", "rows=7,n=333"): 0.7}))
    timing = bench.screen(NEW, START)
    assert (timing.grade, timing.status) == ("screen", "undecided")
    assert answers(timing)["main"] == "faster"
    by_key = {s.shape: s for s in timing.shapes}
    assert by_key["rows=7,n=333"].answer == "slower"
    assert by_key["rows=64,n=1024"].answer == "not slower"
    assert by_key["rows=64,n=1024"].candidate_us == pytest.approx(66.7, rel=0.03)
    assert by_key["rows=64,n=1024"].baseline_us == pytest.approx(100, rel=0.03)


def test_many_candidates_share_blocks_and_one_wrong_one_stops_no_other() -> None:
    bench, lab = bench_on(gains({"a": 1.5, "b": 1.1, "c": 2.0}), wrong={"b": "slot 1 is wrong"})
    bench.noise(START)
    before = lab.stands
    found = bench.screen_many([build_of(n) for n in "abc"], START)
    assert [t.candidate for t in found] == ["a", "b", "c"]
    assert [t.status for t in found] == ["undecided", "invalid", "undecided"]
    assert found[0].classes[0].ratio == pytest.approx(1.5, rel=0.03)
    assert found[2].classes[0].ratio == pytest.approx(2.0, rel=0.03)
    assert lab.stands - before == bench.pace.screen_blocks


def test_more_candidates_than_fit_one_block_are_taken_in_groups() -> None:
    bench, _ = bench_on(gains({f"k{i}": 1 + i / 10 for i in range(7)}))
    found = bench.screen_many([build_of(f"k{i}") for i in range(7)], START)
    assert [round(t.classes[0].ratio, 1) for t in found] == [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6]


def test_a_screen_of_chosen_shapes_runs_those_alone() -> None:
    bench, _ = bench_on(gains({"new": 1.5}))
    chosen = bench.operator.timed()[:2]
    timing = bench.screen(NEW, START, chosen)
    assert [s.shape for s in timing.shapes] == [s.key for s in chosen]
    assert [c.shape_class for c in timing.classes] == ["main"]


def test_call_times_are_medians_by_shape() -> None:
    bench, _ = bench_on(gains({}, {("start", "rows=7,n=333"): 50.0}))
    times = bench.call_times(START)
    assert set(times) == {s.key for s in bench.operator.timed()}
    assert times["rows=7,n=333"] == pytest.approx(2.0, rel=0.03)
    assert times["rows=64,n=1024"] == pytest.approx(100.0, rel=0.03)


def test_calls_are_shared_within_a_factor_of_four_and_counted_alone_beyond() -> None:
    assert calls_for({"a": 10.0, "b": 30.0}, slots=4, sample_us=1000) == {"a": 100, "b": 100}
    assert calls_for({"a": 10.0, "b": 50.0}, slots=4, sample_us=1000) == {"a": 100, "b": 20}
    assert calls_for({"a": 10.0}, slots=8, sample_us=1000) == {"a": 104}
    assert calls_for({"a": 10.0, "b": 9000.0}, slots=4, sample_us=1000) == {"a": 100, "b": 4}


def test_raw_samples_can_be_read_again() -> None:
    bench, _ = bench_on(gains({"new": 1.1}))
    kept: list[str] = []
    bench.keep = lambda text: kept.append(text) or "h"
    bench.screen(NEW, START)
    data = json.loads(kept[-1])
    assert data["builds"] == {"candidate1": "hash-new", "baseline": "hash-start"}
    name, calls, elapsed, _, _ = data["blocks"][0]["shapes"]["rows=7,n=333"][0]["s"][0]
    assert name in ("candidate1", "baseline")
    assert elapsed / calls == pytest.approx(100, rel=0.2)
    assert raw_text([], {}) == '{"fields":["name","calls","elapsed_us","worker_us","cpu_us"],"builds":{},"blocks":[]}'


def test_host_state_reads_what_proc_says(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("cpu  1 1 1 1 0 0 0 0 0 0\ncpu1 10 0 10 60 0 0 0 20 0 0\n")
    (tmp_path / "loadavg").write_text("1.25 0.5 0.1 1/100 42\n")
    reading = read_host(1, tmp_path)
    assert (reading.load1, reading.total, reading.idle, reading.steal) == (1.25, 100, 60, 20)
    use = between(HostReading(), reading)
    assert (use.steal_share, use.busy_share) == (pytest.approx(0.2), pytest.approx(0.4))
    assert read_host(1, tmp_path / "nowhere") == HostReading()


def test_processor_time_of_a_process_grows_with_its_work_and_is_unknown_for_none() -> None:
    before = cpu_ns(os.getpid())
    assert sum(range(300_000)) > 0
    assert cpu_ns(os.getpid()) > before >= 0
    assert cpu_ns(2**22 + 1) == -1


def test_cache_sizes_by_level(tmp_path: Path) -> None:
    rows = [("1", "Data", "32K"), ("1", "Instruction", "32K"), ("3", "Unified", "16M")]
    for index, (level, kind, size) in enumerate(rows):
        folder = tmp_path / "cpu0" / "cache" / f"index{index}"
        folder.mkdir(parents=True)
        for name, text in (("level", level), ("type", kind), ("size", size)):
            (folder / name).write_text(text + "\n")
    assert cache_bytes(0, tmp_path) == {1: 32 << 10, 3: 16 << 20}
