"""The statistics against what theory says of them."""

from __future__ import annotations

import math
import random

import pytest

from kernelcrew.tools.estats import (
    STOP,
    EProcess,
    Interval,
    beats,
    by_interval,
    class_statistic,
    deviation,
    faster_margin,
    geometric_mean,
    holds,
    hurts,
    interval,
    lag1,
    median_log_ratio,
    not_slower_margin,
    t975,
)


def _run(wins: str) -> EProcess:
    process = EProcess()
    for letter in wins:
        process = process.after(letter == "w")
    return process


def test_evidence_grows_by_wins_and_falls_by_losses() -> None:
    assert _run("www").value == pytest.approx(1.8**3)
    assert _run("wwl").value == pytest.approx(1.8**2 * 0.2)
    assert (_run("wwl").wins, _run("wwl").losses) == (2, 1)


def test_a_fair_game_has_factor_one_on_average() -> None:
    fair = 0.5 * EProcess().after(True).value + 0.5 * EProcess().after(False).value
    assert fair == pytest.approx(1.0)


def test_thirteen_wins_reach_four_confirmations_of_four_classes_at_one_percent() -> None:
    assert not _run("w" * 12).reached(4 * 4 / 0.01)
    assert _run("w" * 13).reached(4 * 4 / 0.01)


def test_six_wins_show_a_shape_not_slower() -> None:
    assert not _run("w" * 5).reached(20)
    assert _run("w" * 6).reached(20)


def test_five_losses_are_hopeless_and_four_are_not() -> None:
    assert _run("lllll").hopeless
    assert not _run("llll").hopeless
    assert _run("lllll").value < STOP


def test_a_threshold_is_out_of_reach_when_even_wins_would_not_do() -> None:
    assert _run("l").out_of_reach(20, blocks_left=5)
    assert not _run("l").out_of_reach(20, blocks_left=12)


def test_fair_coins_reach_the_threshold_as_rarely_as_ville_says() -> None:
    rng = random.Random(7)
    accepted = 0
    for _ in range(4000):
        process = EProcess()
        for _ in range(40):
            process = process.after(rng.random() < 0.5)
            if process.reached(100) or process.hopeless:
                break
        accepted += process.reached(100)
    assert accepted / 4000 <= 0.01 + 3 * math.sqrt(0.01 * 0.99 / 4000)
    assert accepted > 0


def test_median_log_ratio_is_above_zero_when_the_candidate_is_faster() -> None:
    assert median_log_ratio([10, 10, 30], [5, 5, 5]) == pytest.approx(math.log(2))
    assert median_log_ratio([5], [10]) == pytest.approx(-math.log(2))


def test_class_statistic_needs_every_member() -> None:
    assert class_statistic({"a": 0.1, "b": 0.3}, ["a", "b"]) == pytest.approx(0.2)
    assert class_statistic({"a": 0.1}, ["a", "b"]) is None
    assert class_statistic({}, []) is None


def test_deviation_counts_a_lasting_difference_as_noise() -> None:
    assert deviation([0.02, 0.02, 0.02]) == pytest.approx(0.02)
    assert deviation([0.01, -0.01]) == pytest.approx(0.01)
    assert deviation([]) == 0.0


def test_interval_is_students() -> None:
    found = interval([0.1, 0.2, 0.3, 0.4])
    assert found.mean == pytest.approx(0.25)
    assert found.high - found.mean == pytest.approx(3.182 * 0.1290994 / 2, rel=1e-4)
    assert found.mean - found.low == pytest.approx(found.high - found.mean)


def test_one_block_borrows_the_noise_of_the_preflight_and_none_says_nothing() -> None:
    one = interval([0.1], least_sd=0.01)
    assert (one.low, one.high) == (pytest.approx(0.1 - 0.12706), pytest.approx(0.1 + 0.12706))
    nothing = interval([])
    assert by_interval(nothing, 0.01, 0.02) == "unknown"


def test_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = random.Random(3)
    covered = 0
    for _ in range(2000):
        found = interval([rng.gauss(0.05, 0.01) for _ in range(4)])
        covered += found.low <= 0.05 <= found.high
    assert 0.93 < covered / 2000 < 0.97


def test_t_quantiles_fall_towards_the_normal_one() -> None:
    values = [t975(n) for n in range(1, 60)]
    assert values == sorted(values, reverse=True)
    assert t975(1) == pytest.approx(12.706)
    assert t975(60) == pytest.approx(2.000, abs=1e-3)


def test_geometric_mean() -> None:
    assert geometric_mean([2.0, 8.0]) == pytest.approx(4.0)
    assert geometric_mean([]) == 1.0


def test_margins_have_floors_grow_with_noise_and_the_loss_has_a_lid() -> None:
    assert faster_margin(0.0) == 0.01
    assert faster_margin(0.02) == pytest.approx(math.expm1(0.06))
    assert not_slower_margin(0.0) == 0.02
    assert not_slower_margin(0.01) == pytest.approx(math.expm1(0.03))
    assert not_slower_margin(0.2) == 0.05


def test_a_launch_of_two_microseconds_is_forgiven_a_fifth_of_one_and_a_batched_call_is_not() -> None:
    assert not_slower_margin(0.0, call_us=2.0, floor_us=0.2) == pytest.approx(0.1)
    assert not_slower_margin(0.0, call_us=2.0) == 0.02


def test_blocks_are_won_beyond_the_margin_only() -> None:
    assert beats(math.log(1.011), 0.01)
    assert not beats(math.log(1.009), 0.01)
    assert holds(math.log(0.985), 0.02)
    assert not holds(math.log(0.975), 0.02)


@pytest.mark.parametrize(
    ("low", "high", "answer"),
    [(0.03, 0.05, "faster"), (-0.01, 0.05, "not slower"), (-0.2, -0.05, "slower"), (-0.1, 0.1, "unknown")],
)
def test_answers_by_interval(low: float, high: float, answer: str) -> None:
    assert by_interval(Interval(mean=(low + high) / 2, low=low, high=high), 0.01, 0.02) == answer


def test_a_change_hurts_when_leaving_it_out_is_faster_beyond_noise() -> None:
    assert hurts([0.05, 0.051, 0.049], margin=0.01)
    assert not hurts([0.05, 0.2, -0.1], margin=0.01)
    assert not hurts([-0.05, -0.051, -0.049], margin=0.01)


def test_lag1_sees_a_trend_and_none_in_alternation() -> None:
    assert lag1([1, 2, 3, 4, 5, 6, 7, 8]) > 0.5
    assert lag1([1, -1, 1, -1, 1, -1]) < 0
    assert lag1([1, 1, 1]) == 0.0
