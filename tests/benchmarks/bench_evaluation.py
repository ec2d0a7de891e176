"""What one evaluation costs: the first of a process, a further one, and a search over layouts.

Run by `make bench`. Calls of Python functions are counted next to the seconds: they are the same on
every machine and in every run, so that two commits can be compared; nothing asserts them.
"""

import subprocess
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from advisor.frameworks.registry import parts_of
from advisor.hardware.calibration import load_calibration
from advisor.job.job import Job
from advisor.request.request import Request, SearchScope
from advisor.request.resolve import resolve
from advisor.search.advise import advise
from advisor.search.evaluate import Evaluator
from advisor.search.layout_search import Search

CASES = {
    "llama3_8b": ("8xH100", "megatron_lm"),
    "llama3_70b": ("32xH100", "megatron_lm"),
    "llama3_405b": ("1024xH100", "megatron_lm"),
    "qwen3_30b_a3b": ("16xH100", "megatron_lm"),
    "deepseek_v3": ("1024xH100", "megatron_lm"),
    "llama3_70b under FSDP2": ("64xH100", "torchtitan"),
}
FIRST = "from tests.benchmarks import bench_evaluation as b; print(b.calls(b.one(b.job_of({!r}))))"


def job_of(case: str) -> Job:
    """On the layout of a recipe, or the best one."""
    gpus, framework = CASES[case]
    found = resolve(Request(model=case.split()[0], gpus=gpus, framework=framework))
    if found.layout is not None:
        return found.job(found.layout)
    return Search(found, load_calibration(found.gpu)).run().best.job


def one(job: Job) -> Callable[[], Any]:
    """The setting in the middle of the candidates, by an evaluator of its own."""
    calibration, settings = (
        load_calibration(job.gpu),
        parts_of(job.config.framework).settings.candidates,
    )
    setting = settings(job)[len(settings(job)) // 2]
    return lambda: Evaluator(job, calibration).evaluate(setting)


def calls(work: Callable[[], Any]) -> int:
    """Python functions that `work` calls."""
    number = 0

    def count(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal number
        number += event == "call"

    sys.setprofile(count)
    work()
    sys.setprofile(None)
    return number


@pytest.mark.parametrize("case", CASES)
def test_bench_evaluation(benchmark: Any, case: str) -> None:
    job = job_of(case)
    evaluate = one(job)
    first = subprocess.check_output([sys.executable, "-c", FIRST.format(case)], text=True)
    benchmark(evaluate)
    benchmark.extra_info |= {"calls, first": int(first), "calls, further": calls(evaluate)}


@pytest.mark.parametrize(
    ("model", "gpus"), [("qwen3_30b_a3b", "16xH100"), ("deepseek_v3", "2048xH100")]
)
def test_bench_search_with_experts(benchmark: Any, model: str, gpus: str) -> None:
    request = Request(model=model, gpus=gpus, search=SearchScope.LAYOUT)
    advice = benchmark.pedantic(advise, args=(request,), rounds=1)
    benchmark.extra_info["settings"] = advice.evaluated
