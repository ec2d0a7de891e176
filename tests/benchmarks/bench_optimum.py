"""Speed of `--search optimum`: points evaluated or excluded by a proven bound, against evaluating
them one by one.

Run by `make bench`; figures are for comparison within one run, nothing asserts a time.
"""

from time import perf_counter
from typing import Any

import pytest
from msgspec.structs import replace

from advisor.hardware.calibration import load_calibration
from advisor.request.request import Request, SearchScope
from advisor.search.advise import advise
from advisor.search.evaluate import Evaluator
from advisor.search.optimum.branches import branches

JOBS = (
    ("llama3_70b", "32xH100", "60GiB"),
    ("llama3_405b", "512xH100", "60GiB"),
    ("deepseek_v3", "1024xH100", "65GiB"),
)


@pytest.mark.parametrize(("model", "gpus", "budget"), JOBS)
def test_bench_optimum(benchmark: Any, model: str, gpus: str, budget: str) -> None:
    request = Request(model=model, gpus=gpus, memory_budget=budget)
    usual = advise(request)
    asked = replace(request, search=SearchScope.OPTIMUM)
    answer = benchmark.pedantic(lambda: advise(asked), rounds=1, iterations=1)
    optimum = answer.optimum
    seconds = benchmark.stats.stats.mean
    one_by_one = seconds_of_a_point(usual.job) * optimum.num_points
    benchmark.extra_info["points"] = float(optimum.num_points)
    benchmark.extra_info["evaluated"] = optimum.evaluated
    benchmark.extra_info["points a second"] = optimum.num_points / seconds
    benchmark.extra_info["times faster than one by one"] = one_by_one / seconds


def seconds_of_a_point(job: Any) -> float:
    """Of a plain evaluation, no allocator simulated: the mean over every setting of one split."""
    calibration = load_calibration(job.gpu)
    (branch, *_) = branches(job, calibration)
    settings = [setting for group in branch.decisions.groups for setting in group.settings]
    evaluator = Evaluator(job, calibration)
    begun = perf_counter()
    for setting in settings:
        evaluator.evaluate(setting)
    return (perf_counter() - begun) / len(settings)
