"""Speed of the advisor: settings evaluated per second, and the whole main job in one process.

Run by `make bench`; figures are for comparison within one run, nothing asserts a time.
"""

import sys
from resource import RUSAGE_CHILDREN, getrusage
from subprocess import DEVNULL, run
from time import monotonic
from typing import Any

from advisor.frameworks.megatron.candidates import enumerate_settings
from advisor.frameworks.megatron.revisions import resolve_revision
from advisor.frameworks.megatron.rules.engine import check
from advisor.frameworks.megatron.setting import parse_setting
from advisor.hardware.calibration import load_calibration
from advisor.request.request import Request, SearchScope
from advisor.request.resolve import resolve
from advisor.search.advise import advise
from advisor.search.evaluate import Evaluator
from advisor.search.layout_search import Search
from tests.advisor.search.exhaustive import best_of_all, same_row
from tests.advisor.search.random_requests import random_requests
from tests.advisor.search.small_jobs import THIRTY, small
from tests.advisor.search.test_never_worse import never_worse


def test_bench_settings_of_one_job(benchmark: Any) -> None:
    resolution = resolve(Request(model="llama3_70b", gpus="32xH100"))
    assert resolution.layout is not None
    job = resolution.job(resolution.layout)
    settings = enumerate_settings(job, resolve_revision(job.config.framework))
    evaluator = Evaluator(job, load_calibration(job.gpu))

    def evaluate_all() -> int:
        return len([evaluator.evaluate(setting) for setting in settings])

    benchmark.extra_info["settings"] = benchmark(evaluate_all)


def test_bench_search_over_layouts(benchmark: Any) -> None:
    request = Request(model="llama3_70b", gpus="32xH100", search=SearchScope.LAYOUT)
    advice = benchmark(lambda: advise(request))
    benchmark.extra_info["settings"] = advice.evaluated


def test_bench_a_search_of_many_gpus(benchmark: Any) -> None:
    """The whole process, its memory with it: every legal layout evaluated or excluded by a bound.
    Asked for: 2 s and 4 s on two quiet cores, below 300 MiB."""
    figures = {}
    for model, gpus in (("llama3_405b", "1024xH100"), ("deepseek_v3", "2048xH100")):
        arguments = ["--model", model, "--gpus", gpus, "--search", "layout", "--format", "csv"]
        start = monotonic()
        run([sys.executable, "-m", "advisor.cli.main", *arguments], check=True, stdout=DEVNULL)
        seconds = monotonic() - start
        largest = getrusage(RUSAGE_CHILDREN).ru_maxrss // 1024
        figures[f"{model} {gpus}"] = f"{seconds:.1f} s, {largest} MiB"
    benchmark.extra_info.update(figures)
    print(figures)
    benchmark.pedantic(lambda: None)


def test_200_random_requests_are_never_answered_worse_by_a_search(benchmark: Any) -> None:
    worse = [request for request in random_requests(200) if not never_worse(request)]
    assert worse == []
    benchmark.pedantic(lambda: None)


def test_30_small_jobs_have_the_same_best_row_as_everything_that_flags_can_say(benchmark) -> None:
    other = []
    for fields in THIRTY:
        wanted = small(**fields)
        calibration = load_calibration(wanted.gpu)
        found = Search(wanted, calibration, options=True).run().best
        if not same_row(found, best_of_all(wanted, calibration)):
            other.append(fields)
    assert other == []
    benchmark.pedantic(lambda: None)


def test_bench_main_job(benchmark: Any) -> None:
    advice = benchmark(lambda: advise(Request(model="llama3_70b", gpus="32xH100")))
    benchmark.extra_info["settings"] = advice.evaluated


def test_bench_rules_of_one_setting(benchmark: Any) -> None:
    resolution = resolve(Request(model="llama3_70b", gpus="32xH100"))
    assert resolution.layout is not None
    job = resolution.job(resolution.layout)
    revision, setting = resolve_revision(job.config.framework), parse_setting("selective:mlp")
    assert benchmark(lambda: check(setting, job, revision)) == ()
