"""What a setting costs: intervals that cover what they claim, in noise as machines make it, and honest refusals."""

from __future__ import annotations

import dataclasses
import functools
import math
import zlib
from collections.abc import Callable, Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import timing_noise
from samebits.overhead.statistics import (
    BLOCKS_NEEDED,
    FINEST,
    MOST_BLOCKS,
    SPREAD_ASSUMED,
    Estimate,
    autocorrelation,
    block_ratios,
    blocks_autocorrelation,
    blocks_for,
    blocks_to_decide,
    decide,
    detectable,
    drift,
    estimate,
    half_width,
    stragglers,
)
from samebits.spec.verdicts import Verdict
from timing_noise import Design, Noise, of_setting

Floats = NDArray[np.float64]
EXPERIMENTS = 1000
COVERED = 0.93
"""Of a nominal 95 %: 1,000 experiments with exactly 95 % fall below it once in 500."""
EFFECTS = (0.0, 2.0, 5.0, 15.0)
HARSH = {
    "heavy tails": Noise(tails=3),
    "steps much alike": Noise(memory=0.9),
    "ten times the drift": Noise(drift=0.1),
    "a curved drift": Noise(curve=0.03),
    "a restless machine": Noise(walk=0.02),
    "unlike processes": Noise(process=0.01),
    "ten times the stragglers": Noise(stragglers=0.1),
    "a quiet machine": Noise(step=0.001, walk=1e-4, process=1e-4, stragglers=0),
}
RATIOS = st.lists(st.floats(-13, 13), min_size=1, max_size=12)
PERCENT = st.floats(0.01, 50)
SECONDS = st.lists(st.tuples(*[st.floats(0.01, 10)] * 4), min_size=1, max_size=8)


def seed(*values: object) -> int:
    """Another one for each cell."""
    return zlib.crc32(repr(values).encode())


@functools.cache
def medians(design: Design) -> Floats:
    return timing_noise.medians(design, EXPERIMENTS)


def ratios(design: Design, runs: Floats, setting: int = 1) -> list[Floats]:
    """d of each experiment."""
    pairs = zip(of_setting(design, runs, 0), of_setting(design, runs, setting), strict=True)
    return [block_ratios(reference, candidate) for reference, candidate in pairs]


def estimates(design: Design, setting: int = 1) -> list[Estimate]:
    return [estimate(d) for d in ratios(design, medians(design), setting)]


def drawn(blocks: int, effect: float, spread: float) -> list[Estimate]:
    """Of experiments whose d are exactly normal. effect, spread: percent."""
    random = np.random.default_rng(seed(blocks, effect, spread))
    return [
        estimate(d)
        for d in random.normal(math.log1p(effect / 100), math.log1p(spread / 100), (2 * EXPERIMENTS, blocks))
    ]


def share(found: Iterable[bool]) -> float:
    return float(np.mean(list(found)))


def coverage(found: Iterable[Estimate], truth: float) -> float:
    return share(one.interval is not None and one.interval.low <= truth <= one.interval.high for one in found)


def excludes_0(found: Estimate) -> bool:
    return found.interval is not None and not found.interval.low <= 0 <= found.interval.high


def spread_of(found: Iterable[Estimate]) -> float:
    """Percent, of many experiments together."""
    return math.sqrt(np.mean([one.interval.spread**2 for one in found if one.interval]))


def scattered(blocks: int, mean: float, spread: float) -> Estimate:
    """With exactly this mean and sample standard deviation of d."""
    unit = np.linspace(-1, 1, blocks)
    return estimate(mean + spread * unit / unit.std(ddof=1))


def palindrome(times: Callable[[int, int], float], blocks: int, order: str = "ABBA") -> dict[str, Floats]:
    """Seconds of each setting, shape (blocks, 2). times: of the run's place in the experiment, and of its setting."""
    runs = [(which, times(place, ord(which) - ord("A"))) for place, which in enumerate(order * blocks)]
    return {name: np.array([time for which, time in runs if which == name]).reshape(blocks, 2) for name in set(order)}


@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("blocks", [2, 3, 4, 6, 8, 10, 12])
def test_an_interval_of_95_percent_covers_the_truth_in_at_least_93_of_100_experiments(
    blocks: int, effect: float
) -> None:
    found = estimates(Design(blocks=blocks, effects=(effect,), seed=seed(blocks, effect)))
    assert COVERED <= coverage(found, effect) <= 0.97


@pytest.mark.parametrize("noise", HARSH)
@pytest.mark.parametrize("blocks", [4, 8, 12])
def test_it_covers_on_machines_that_are_worse_and_better(noise: str, blocks: int) -> None:
    found = estimates(Design(blocks=blocks, effects=(2.0,), noise=HARSH[noise], seed=seed(noise, blocks)))
    assert coverage(found, 2) >= COVERED


@pytest.mark.parametrize("setting", [1, 2, 3])
@pytest.mark.parametrize("blocks", [2, 4, 8])
def test_it_covers_each_candidate_of_a_palindrome_of_four_settings(blocks: int, setting: int) -> None:
    design = Design(blocks=blocks, effects=(2.0, 5.0, 15.0), seed=seed(blocks))
    assert coverage(estimates(design, setting), design.effects[setting - 1]) >= COVERED


@pytest.mark.parametrize("steps", [20, 400])
def test_it_covers_with_few_steps_a_run_and_with_many(steps: int) -> None:
    found = estimates(Design(blocks=6, effects=(2.0,), steps=steps, seed=seed(steps)))
    assert coverage(found, 2) >= COVERED


@pytest.mark.parametrize("blocks", [2, 4, 8, 12])
def test_the_interval_of_the_mean_ratio_covers_too(blocks: int) -> None:
    design = Design(blocks=blocks, effects=(2.0,), seed=seed("mean", blocks))
    means = timing_noise.step_times(design, EXPERIMENTS).mean(axis=-1)
    assert coverage([estimate(d) for d in ratios(design, means)], 2) >= COVERED


def test_a_setting_against_itself_shows_no_difference_in_at_least_93_of_100_experiments() -> None:
    found = estimates(Design(blocks=8, seed=seed("A/A")))
    assert share(not excludes_0(one) for one in found) >= COVERED
    assert share(decide(one, 0) == "fail" for one in found) <= 0.04


@pytest.mark.parametrize("effect", [2.0, 5.0])
def test_a_slowdown_that_was_put_in_is_found_again(effect: float) -> None:
    found = estimates(Design(blocks=10, effects=(effect,), seed=seed("put in", effect)))
    assert np.mean([one.percent for one in found]) == pytest.approx(effect, abs=0.03)
    assert share(excludes_0(one) for one in found) == 1
    assert share(abs(one.percent - effect) < 0.6 for one in found) > 0.99
    assert share(decide(one, effect - 1.2) == "fail" for one in found) > 0.99
    assert share(decide(one, effect + 1.2) == "pass" for one in found) > 0.99


def bootstrap_coverage(resampled: Floats, truth: float) -> float:
    """Of percentile intervals. resampled: log ratios, shape (experiments, resamples). truth: percent."""
    low, high = np.quantile(resampled, [0.025, 0.975], axis=1)
    return float(np.mean((low <= math.log1p(truth / 100)) & (math.log1p(truth / 100) <= high)))


def resampled_means(values: Floats, resamples: int = 1000) -> Floats:
    """values: shape (experiments, units)."""
    size = values.shape[-1]
    weights = np.random.default_rng(7).multinomial(size, np.full(size, 1 / size), resamples) / size
    return np.asarray(values @ weights.T)


def resampled_medians(reference: Floats, candidate: Floats, resamples: int = 100) -> Floats:
    """Log ratio of the medians of all steps. Both: shape (experiments, steps)."""
    draws = np.random.default_rng(7).integers(0, reference.shape[1], (resamples, 2, reference.shape[1]))
    drawn = [np.median(candidate[:, one], axis=1) - np.median(reference[:, other], axis=1) for one, other in draws]
    return np.stack(drawn, axis=1)


def test_resampling_blocks_or_pairs_of_runs_covers_too_little_and_is_therefore_not_used() -> None:
    """The same mean log ratio, with percentiles of a bootstrap in place of Student's t, from the same experiments."""
    for blocks, by_block, by_pair in [(2, 0.60, 0.85), (4, 0.82, 0.90), (8, 0.91, 0.93)]:
        design = Design(blocks=blocks, effects=(2.0,), seed=seed("bootstrap", blocks))
        logs = np.log(medians(design))
        pairs = np.concatenate([logs[..., 1] - logs[..., 0], logs[..., 2] - logs[..., 3]], axis=1)
        assert bootstrap_coverage(resampled_means(np.array(ratios(design, medians(design)))), 2) < by_block
        assert bootstrap_coverage(resampled_means(pairs), 2) < by_pair
        assert coverage(estimates(design), 2) >= COVERED


def test_resampling_steps_covers_too_little_and_the_less_the_more_steps_there_are() -> None:
    covered = []
    for steps in (50, 200):
        design = Design(blocks=4, effects=(2.0,), steps=steps, seed=seed("steps", steps))
        logs = np.log(timing_noise.step_times(design, 200))
        of_run = [np.concatenate([logs[:, :, run] for run in runs], axis=-1) for runs in ([0, 3], [1, 2])]
        reference, candidate = (steps_of.reshape(200, -1) for steps_of in of_run)
        covered.append(bootstrap_coverage(resampled_medians(reference, candidate), 2))
    assert covered[1] < covered[0] - 0.05 < 0.85


def test_students_own_data_give_the_published_interval() -> None:
    """Cushny and Peebles 1905, as Student 1908 used them and R's `t.test(extra ~ group, paired)` prints them."""
    found = estimate([1.2, 2.4, 1.3, 1.3, 0.0, 1.0, 1.8, 0.8, 4.6, 1.4])
    assert found.interval is not None
    logs = [math.log1p(percent / 100) for percent in (found.percent, found.interval.low, found.interval.high)]
    assert logs == pytest.approx([1.58, 0.7001142, 2.4598858], abs=1e-7)
    assert math.log1p(found.interval.half_width / 100) == pytest.approx(0.8798858, abs=1e-7)
    assert math.log1p(found.interval.spread / 100) == pytest.approx(1.229995, abs=1e-6)


def test_d_is_the_log_ratio_of_the_two_settings_of_a_block() -> None:
    d = block_ratios([[1.0, 4.0], [2.0, 2.0]], [[2.0, 8.0], [2.0, 8.0]])
    assert d == pytest.approx([math.log(2), math.log(2)])


def test_one_block_gives_a_ratio_and_no_interval() -> None:
    assert estimate([math.log(1.02)]) == Estimate(percent=pytest.approx(2), blocks=1, interval=None)


def test_blocks_that_agree_to_the_last_tick_of_a_clock_give_no_interval_and_decide_nothing() -> None:
    for d in ([0.02] * 8, [0.1 + 0.2, 0.3] * 4, [0.02, 0.02 + FINEST / 10] * 4):
        found = estimate(d)
        assert found.interval is None
        assert decide(found, 50) == decide(found, 0) == "inconclusive"
        assert blocks_to_decide(found, 50) is None


@given(RATIOS)
def test_every_number_of_an_estimate_is_finite(d: list[float]) -> None:
    found = estimate(d)
    assert math.isfinite(found.percent)
    if found.interval:
        assert all(math.isfinite(number) for number in dataclasses.astuple(found.interval))
        assert found.interval.low <= found.percent <= found.interval.high
        assert found.interval.spread > 0
        assert found.interval.detectable > found.interval.half_width > 0


@given(SECONDS, st.floats(1e-3, 1e3))
def test_the_unit_of_time_does_not_matter(runs: list[tuple[float, ...]], unit: float) -> None:
    times = np.array(runs)
    assert block_ratios(times[:, :2] * unit, times[:, 2:] * unit) == pytest.approx(
        block_ratios(times[:, :2], times[:, 2:]), abs=1e-12
    )


@given(SECONDS)
def test_swapping_the_settings_turns_the_sign_and_the_order_within_a_block_is_nothing(
    runs: list[tuple[float, ...]],
) -> None:
    times = np.array(runs)
    d = block_ratios(times[:, :2], times[:, 2:])
    assert block_ratios(times[:, 2:], times[:, :2]) == pytest.approx(-d, abs=1e-12)
    assert block_ratios(times[:, 1::-1], times[:, :1:-1]) == pytest.approx(d, abs=1e-12)


@pytest.mark.parametrize(("order", "candidate"), [("ABBA", "B"), ("ABCDDCBA", "B"), ("ABCDDCBA", "D")])
@given(st.floats(-0.01, 0.01), st.integers(1, 12))
def test_a_linear_drift_cancels(order: str, candidate: str, slope: float, blocks: int) -> None:
    times = palindrome(lambda place, setting: math.exp(slope * place) * 1.05**setting, blocks, order)
    steps = ord(candidate) - ord("A")
    assert block_ratios(times["A"], times[candidate]) == pytest.approx(steps * math.log(1.05), abs=1e-12)


@pytest.mark.parametrize("blocks", [1, 4, 12])
def test_of_a_quadratic_drift_a_part_is_left_that_shrinks_with_the_square_of_the_blocks(blocks: int) -> None:
    runs = 4 * blocks
    times = palindrome(lambda place, _: math.exp(0.03 * (place / (runs - 1)) ** 2), blocks)
    left = estimate(block_ratios(times["A"], times["B"])).percent
    assert left == pytest.approx(-2 * 3 / (runs - 1) ** 2, rel=0.01)


def test_stragglers_of_one_setting_show_in_the_mean_and_hardly_in_the_median() -> None:
    design = Design(blocks=8, seed=seed("stragglers"))
    times = timing_noise.step_times(design, 1)
    times[:, :, [1, 2], ::20] *= 2
    by_median, by_mean = (
        estimate(ratios(design, statistic(times, axis=-1))[0]).percent for statistic in (np.median, np.mean)
    )
    assert abs(by_median) < 0.8
    assert by_mean == pytest.approx(5, abs=2)


@pytest.mark.parametrize("blocks", [2, 3, 4, 8, 12])
def test_the_detectable_effect_is_detected_in_80_of_100_experiments(blocks: int) -> None:
    found = drawn(blocks, detectable(blocks, 0.6), 0.6)
    assert share(excludes_0(one) for one in found) == pytest.approx(0.80, abs=0.027)


def test_the_detectable_effect_is_detected_as_often_in_the_noise_of_machines() -> None:
    spread = spread_of(estimates(Design(blocks=8, seed=seed("spread"))))
    effect = detectable(8, spread)
    found = estimates(Design(blocks=8, effects=(effect,), seed=seed("power")))
    assert share(excludes_0(one) for one in found) == pytest.approx(0.80, abs=0.04)


def test_an_estimate_states_the_detectable_effect_of_its_own_spread() -> None:
    found = estimate([0.01, 0.02, 0.03, 0.04, 0.025])
    assert found.interval is not None
    assert found.interval.detectable == detectable(5, found.interval.spread)


@pytest.mark.parametrize("blocks", [4, 8, 12])
def test_a_cost_at_the_limit_passes_or_fails_falsely_in_one_of_40_experiments(blocks: int) -> None:
    found = drawn(blocks, 2, 0.6)
    for verdict in ("pass", "fail"):
        assert share(decide(one, 2) == verdict for one in found) == pytest.approx(0.025, abs=0.011)
    design = Design(blocks=blocks, effects=(2.0,), seed=seed("limit", blocks))
    for verdict in ("pass", "fail"):
        assert share(decide(one, 2) == verdict for one in estimates(design)) <= 0.04


@pytest.mark.parametrize(
    ("limit", "verdict"), [(4.9, "pass"), (3.1, "pass"), (2.9, "inconclusive"), (1.1, "inconclusive"), (0.9, "fail")]
)
def test_the_verdict_is_that_of_the_whole_interval(limit: float, verdict: Verdict) -> None:
    found = interval_from_1_to_3()
    assert decide(found, limit) == verdict
    assert decide(dataclasses.replace(found, blocks=BLOCKS_NEEDED - 1), limit) == "inconclusive"


def test_an_interval_that_ends_at_the_limit_passes_and_one_that_starts_there_does_not_fail() -> None:
    found = interval_from_1_to_3()
    assert found.interval is not None
    assert decide(found, found.interval.high) == "pass"
    assert decide(found, found.interval.low) == "inconclusive"


def interval_from_1_to_3() -> Estimate:
    found = scattered(6, (math.log(1.01) + math.log(1.03)) / 2, (math.log(1.03) - math.log(1.01)) / 2 / 1.049437)
    assert found.interval is not None
    assert (found.interval.low, found.interval.high) == pytest.approx((1, 3), abs=1e-4)
    return found


@given(RATIOS, st.floats(-50, 100), st.floats(0, 100))
def test_a_higher_limit_is_never_harder_to_meet(d: list[float], limit: float, more: float) -> None:
    ranked: list[Verdict] = ["fail", "inconclusive", "pass"]
    found = estimate(d)
    assert ranked.index(decide(found, limit)) <= ranked.index(decide(found, limit + more))


@given(st.integers(2, 12), st.floats(-0.1, 0.3), st.floats(1e-4, 0.1), st.floats(-5, 20))
def test_blocks_to_decide_would_decide_and_one_fewer_would_not(
    blocks: int, mean: float, spread: float, limit: float
) -> None:
    found = scattered(blocks, mean, spread)
    enough = blocks_to_decide(found, limit)
    if enough is None:
        assert decide(scattered(MOST_BLOCKS, mean, spread), limit) == "inconclusive"
        return
    assert enough >= max(blocks, BLOCKS_NEEDED)
    assert decide(scattered(enough, mean, spread), limit) != "inconclusive"
    if enough > max(blocks, BLOCKS_NEEDED):
        assert decide(scattered(enough - 1, mean, spread), limit) == "inconclusive"


def test_blocks_to_decide_is_none_where_no_plan_helps() -> None:
    assert blocks_to_decide(estimate([0.02]), 1) is None
    assert blocks_to_decide(scattered(8, math.log(1.02), 0.01), 2) is None
    assert blocks_to_decide(scattered(8, math.log(1.02), 0.01), 2.05) is None


@pytest.mark.parametrize("width", [0.25, 0.4, 0.55, 1.0])
def test_planned_blocks_keep_the_half_width_in_nine_of_ten_experiments(width: float) -> None:
    blocks = blocks_for(width, SPREAD_ASSUMED)
    kept = share(
        one.interval is not None and one.interval.half_width <= width for one in drawn(blocks, 3, SPREAD_ASSUMED)
    )
    assert kept >= 0.88
    assert half_width(blocks, SPREAD_ASSUMED) <= width
    assert blocks == BLOCKS_NEEDED or half_width(blocks - 1, SPREAD_ASSUMED) > width


@pytest.mark.parametrize("blocks", [4, 10])
@pytest.mark.parametrize("assurance", [0.5, 0.9, 0.99])
def test_the_half_width_is_kept_as_often_as_assured(blocks: int, assurance: float) -> None:
    width = half_width(blocks, 0.6, assurance)
    kept = share(one.interval is not None and one.interval.half_width <= width for one in drawn(blocks, 0, 0.6))
    assert kept == pytest.approx(assurance, abs=0.035)


def test_a_plan_from_the_assumed_spread_keeps_its_promise_in_the_noise_of_machines() -> None:
    blocks = blocks_for(0.5)
    found = estimates(Design(blocks=blocks, seed=seed("plan")))
    assert share(one.interval is not None and one.interval.half_width <= 0.5 for one in found) >= 0.88
    assert spread_of(found) == pytest.approx(SPREAD_ASSUMED, rel=0.1)


def test_more_blocks_help_and_more_steps_hardly() -> None:
    widths = {
        (blocks, steps): np.median(
            [
                one.interval.half_width
                for one in estimates(Design(blocks=blocks, steps=steps, seed=seed(blocks, steps)))
                if one.interval
            ]
        )
        for blocks, steps in [(4, 100), (8, 100), (8, 400)]
    }
    assert widths[8, 100] == pytest.approx(0.45, abs=0.03)
    assert widths[4, 100] > 1.7 * widths[8, 100]
    assert widths[8, 400] > 0.7 * widths[8, 100]


def test_the_planned_half_width_is_that_of_the_tables() -> None:
    """t(0.975; 9) = 2.262157, chi2(0.9; 9) = 14.68366."""
    width = 2.262157 * math.sqrt(14.68366 / 9 / 10)
    assert math.log1p(half_width(10, 0.5) / 100) == pytest.approx(width * math.log1p(0.005), rel=1e-6)


@given(PERCENT, st.floats(0.01, 10), st.floats(1, 3), st.floats(0.5, 0.95), st.floats(0, 0.04))
def test_a_wider_spread_a_narrower_interval_or_more_assurance_never_needs_fewer_blocks(
    width: float, spread: float, more: float, assurance: float, surer: float
) -> None:
    def blocks(width: float, spread: float, assurance: float) -> int:
        try:
            return blocks_for(width, spread, assurance)
        except ValueError:
            return MOST_BLOCKS + 1

    planned = blocks(width, spread, assurance)
    assert planned <= blocks(width, spread * more, assurance)
    assert planned <= blocks(width / more, spread, assurance)
    assert planned <= blocks(width, spread, assurance + surer)
    if planned <= MOST_BLOCKS:
        assert planned >= BLOCKS_NEEDED
        assert half_width(planned, spread, assurance) <= width * (1 + 1e-9)


@settings(max_examples=50)
@given(st.floats(0.01, 10), st.integers(2, 40))
def test_more_blocks_detect_less(spread: float, blocks: int) -> None:
    assert detectable(blocks + 1, spread) < detectable(blocks, spread) < detectable(blocks, spread * 1.1)


@pytest.mark.parametrize("order", ["ABBA", "ABBAABBA", "ABBAAB", "ABCCBAABCCBA"])
def test_the_drift_is_found_beside_the_effect_of_the_settings(order: str) -> None:
    runs = len(order)
    cost = {"A": 0.2, "B": 0.3, "C": 0.1}
    times = [cost[which] * 1.01 ** (place / (runs - 1)) for place, which in enumerate(order)]
    assert drift(times, order) == pytest.approx(1)


def test_the_drift_of_noisy_runs_is_found_on_average() -> None:
    design = Design(blocks=8, effects=(5.0,), noise=Noise(drift=math.log(1.05)), seed=seed("drift"))
    found = [drift(runs.ravel(), ["A", "B", "B", "A"] * 8) for runs in medians(design)]
    assert np.mean(found) == pytest.approx(5, abs=0.3)


def test_steps_of_a_process_are_correlated_as_the_machine_makes_them() -> None:
    design = Design(blocks=4, steps=400, noise=Noise(stragglers=0), seed=seed("steps"))
    runs = timing_noise.step_times(design, 10).reshape(-1, 400)
    assert np.median([autocorrelation(run) or 0.0 for run in runs]) == pytest.approx(0.3, abs=0.02)


def test_the_autocorrelation_of_alternating_steps_is_that_by_hand() -> None:
    assert autocorrelation([1.0, 2.0, 1.0, 2.0]) == pytest.approx(-0.75)
    assert autocorrelation([1.0, 1.0, 2.0, 2.0]) == pytest.approx(0.25)


@pytest.mark.parametrize("steps", [[1.0], [1.0, 2.0], [0.1] * 50])
def test_too_few_steps_or_equal_ones_have_no_autocorrelation(steps: list[float]) -> None:
    assert autocorrelation(steps) is None


def test_blocks_that_follow_each_other_show_beyond_the_bound_and_independent_ones_stay_within() -> None:
    found = blocks_autocorrelation([0.01, 0.012, 0.014, 0.02, 0.022, 0.024, 0.03, 0.032, 0.034])
    assert found is not None
    assert found.bound == pytest.approx(2 / 3)
    assert found.lag1 > 0.6
    design = Design(blocks=12, seed=seed("blocks"))
    checked = [blocks_autocorrelation(d) for d in ratios(design, medians(design))]
    assert share(one is not None and abs(one.lag1) <= one.bound for one in checked) >= COVERED


@pytest.mark.parametrize("d", [[0.01, 0.02, 0.03, 0.01, 0.02], [0.02] * 8, [0.1 + 0.2, 0.3] * 4])
def test_few_blocks_or_equal_ones_have_no_autocorrelation(d: list[float]) -> None:
    assert blocks_autocorrelation(d) is None


def test_a_straggler_takes_more_than_half_as_long_again_as_the_median() -> None:
    assert stragglers([2.0, 2.0, 2.0, 3.0, 3.1, 9.0, 0.1]) == 2
    assert stragglers([1.0]) == 0


BLOCK = [[1.0, 1.0]]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: block_ratios([[1.0, 0.0]], BLOCK), r"reference: a time is 0 s, must be positive"),
        (lambda: block_ratios(BLOCK, [[1.0, -2.0]]), r"candidate: a time is -2 s, must be positive"),
        (lambda: block_ratios(BLOCK, [[math.nan, 1.0]]), r"candidate: a time is nan s"),
        (lambda: block_ratios([[math.inf, 1.0]], BLOCK), r"reference: a time is inf s"),
        (lambda: block_ratios([], []), r"reference: no times"),
        (lambda: block_ratios([1.0, 1.0], [1.0, 1.0]), r"shapes \(2,\) and \(2,\): must be \(blocks, 2\)"),
        (lambda: block_ratios([[1.0] * 3], [[1.0] * 3]), r"shapes \(1, 3\) and \(1, 3\): must be \(blocks, 2\)"),
        (lambda: block_ratios(BLOCK, BLOCK * 2), r"shapes \(1, 2\) and \(2, 2\): must be \(blocks, 2\)"),
        (lambda: block_ratios(BLOCK, [[2e6, 2e6]]), r"from 1 s to 2e\+06 s: .* all in seconds"),
        (lambda: estimate([]), r"shape \(0,\), must be \(blocks,\)"),
        (lambda: estimate([[0.1]]), r"shape \(1, 1\), must be \(blocks,\)"),
        (lambda: estimate([0.1, math.nan]), r"are nan to nan"),
        (lambda: estimate([0.1, 14.0]), r"are 0.1 to 14, must be within"),
        (lambda: decide(estimate([0.1]), math.nan), r"limit is nan %"),
        (lambda: decide(estimate([0.1]), -100), r"limit is -100 %, must be finite and above -100"),
        (lambda: blocks_to_decide(estimate([0.1]), math.inf), r"limit is inf %"),
        (lambda: detectable(1, 0.5), r"1 blocks: 2 are needed"),
        (lambda: detectable(4, 0), r"spread is 0 %, must be above 0"),
        (lambda: half_width(1, 0.5), r"1 blocks: 2 are needed"),
        (lambda: half_width(4, math.nan), r"spread is nan %"),
        (lambda: half_width(4, math.inf), r"spread is inf %"),
        (lambda: half_width(2, 1e300), r"no finite percentage"),
        (lambda: half_width(4, 0.5, 0.4), r"assurance is 0.4, must be from 0.5 to below 1"),
        (lambda: half_width(4, 0.5, 1.0), r"assurance is 1, must be from 0.5 to below 1"),
        (lambda: blocks_for(0, 0.5), r"half-width is 0 %, must be above 0"),
        (lambda: blocks_for(0.001, 0.5), r"0.001 % needs more than 1000 blocks .* ask for 0.032 % or more"),
        (lambda: drift([1.0, 2.0], ["A", "B", "B"]), r"shape \(2,\), must be \(3,\)"),
        (lambda: drift([1.0, 2.0, 0.0], "ABB"), r"runs: a time is 0 s"),
        (lambda: drift([1.0, 2.0, 1e9, 1.0], "ABBA"), r"are all in seconds"),
        (lambda: drift([1.0, 2.0], "AB"), r"too few to tell drift from settings"),
        (lambda: drift([1.0, 2.0, 2.0], "ABB"), r"too few to tell drift from settings"),
        (lambda: autocorrelation([[1.0, 2.0]]), r"steps: times have shape \(1, 2\)"),
        (lambda: autocorrelation([]), r"steps: no times"),
        (lambda: stragglers([1.0, -1.0]), r"steps: a time is -1 s"),
        (lambda: blocks_autocorrelation([]), r"must be \(blocks,\)"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_value_and_the_rule(call: Callable[[], object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
