"""A sweep on a SIMULATED device, 50 seeds: the table of docs/sweeps.md."""

from statistics import mean

import pytest

from tests.harness.sweeps import simulated

SEEDS = range(50)
MOST_TRIALS = 100  # of TPE: what it finds later counts as found then
GIVEN = 5  # of the advisor's best, to the TPE that is given some
LIKELY = 0.9


@pytest.mark.parametrize(
    "overrides", [simulated.ONE_GPU, simulated.LAYOUTS], ids=["one GPU", "layouts of 8 GPUs"]
)
@pytest.mark.parametrize("error", simulated.ERRORS)
def test_bench_trials_until_the_best(benchmark, overrides, error) -> None:
    """The bar: at most half the trials of TPE alone. TPE that is given the advisor's best has no
    bar: docs/sweeps.md says where it is as good."""
    expected, room = simulated.expected_of(*overrides)

    def device(seed: int) -> simulated.SimulatedDevice:
        return simulated.SimulatedDevice(expected, room, simulated.ERRORS[error], seed)

    swept = benchmark.pedantic(
        lambda: [simulated.sweep(expected, device(seed)) for seed in SEEDS], rounds=1, iterations=1
    )
    first = next(point for point, one in expected.items() if one.rank == 1)
    regrets = []
    for one in map(device, SEEDS):
        safe = [p for p in one.legal if (expected[p].fit_probability or 0.0) >= LIKELY]
        if one.fits(first):
            best = min(one.seconds[point] for point in safe if one.fits(point))
            regrets.append(one.seconds[first] / best - 1)
    ours = [one.trials if one.found is None else one.found for one in swept]
    alone, told = (
        [simulated.search_with_tpe(expected, device(s), s, MOST_TRIALS, given) for s in SEEDS]
        for given in (0, GIVEN)
    )
    benchmark.extra_info.update(
        points=sum(not one.skip for one in expected.values()),
        trials_until_best=round(mean(ours), 1),
        trials_of_tpe=round(mean(alone), 1),
        trials_of_tpe_given_our_best=round(mean(told), 1),
        sooner_than_tpe_given_our_best=sum(a < b for a, b in zip(ours, told, strict=True)),
        later_than_tpe_given_our_best=sum(a > b for a, b in zip(ours, told, strict=True)),
        best_not_run=sum(one.found is None for one in swept),
        first_choice_does_not_fit=len(SEEDS) - len(regrets),
        first_choice_regret_percent=round(100 * mean(regrets), 2),
        last_choice_regret_percent=round(100 * mean(one.regret for one in swept), 2),
        trials_until_the_end=round(mean(one.trials for one in swept), 1),
        settled=sum(one.why == "settled" for one in swept),
    )
    print(f"{overrides[0]} {error}: {benchmark.extra_info}")
    assert mean(ours) <= 0.5 * mean(alone)
