"""Speed of the advisor: settings evaluated per second, and the whole main job in one process.

Run by `make bench`; figures are for comparison within one run, nothing asserts a time.
"""

from typing import Any

from advisor.frameworks.megatron.candidates import enumerate_settings
from advisor.frameworks.megatron.revisions import resolve_revision
from advisor.frameworks.megatron.rules import check
from advisor.frameworks.megatron.setting import parse_setting
from advisor.hardware.calibration import load_calibration
from advisor.request.request import Request, SearchScope
from advisor.request.resolve import resolve
from advisor.search.advise import advise
from advisor.search.evaluate import Evaluator


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


def test_bench_main_job(benchmark: Any) -> None:
    advice = benchmark(lambda: advise(Request(model="llama3_70b", gpus="32xH100")))
    benchmark.extra_info["settings"] = advice.evaluated


def test_bench_rules_of_one_setting(benchmark: Any) -> None:
    resolution = resolve(Request(model="llama3_70b", gpus="32xH100"))
    assert resolution.layout is not None
    job = resolution.job(resolution.layout)
    revision, setting = resolve_revision(job.config.framework), parse_setting("selective:mlp")
    assert benchmark(lambda: check(setting, job, revision)) == ()
