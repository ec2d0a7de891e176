"""A search is never worse than the usual answer, nor than any recipe's layout."""

import pytest
from msgspec.structs import replace

from advisor.answer.evaluation import Evaluation
from advisor.base.errors import UserError
from advisor.frameworks.registry import parts_of
from advisor.hardware.calibration import load_calibration
from advisor.request.request import Request, SearchScope
from advisor.request.resolve import resolve
from advisor.search import rank_layouts
from advisor.search.advise import advise
from advisor.search.evaluate import Evaluator
from advisor.search.layouts import known_jobs, seeds
from advisor.search.rank_layouts import SURE
from tests.advisor.search.random_requests import random_requests

pytestmark = pytest.mark.slow


def fastest_sure(rows: list[Evaluation]) -> float | None:
    """Step time of the fastest of `rows` that is sure to fit, its allocator simulated."""
    for row in sorted(rows, key=lambda one: one.step_time_seconds):
        if row.fit_probability > 0.5 and row.simulated.fit_probability >= SURE:
            return row.step_time_seconds
    return None


def compare(request: Request) -> tuple[float | None, float | None] | None:
    """Seconds of the search's row 1 and of the best of the usual answer and the recipes' layouts,
    of rows that are sure to fit; None where no framework runs the job."""
    try:
        usual = advise(request)
        found = advise(replace(request, search=SearchScope.LAYOUT))
    except UserError:
        return None
    rows = [candidate.evaluation for candidate in usual.candidates]
    resolution = resolve(request)
    calibration = load_calibration(resolution.gpu)
    for job in known_jobs(resolution):
        settings = parts_of(job.config.framework).settings.candidates(job)
        rows += map(Evaluator(job, calibration).evaluate, settings)
    searched = [candidate.evaluation for candidate in found.candidates]
    return fastest_sure(searched), fastest_sure(rows)


def never_worse(request: Request) -> bool:
    """Whether the search fits where another answer does, and is not slower."""
    found = compare(request)
    if found is None:
        return True
    searched, known = found
    return known is None or (searched is not None and searched <= known * (1 + 1e-9))


@pytest.mark.parametrize(
    "request_", list(random_requests(3, seed=5)), ids=lambda r: f"{r.model}-{r.gpus}-{r.framework}"
)
def test_a_search_is_never_worse_than_the_usual_answer_or_a_recipe(request_: Request) -> None:
    assert never_worse(request_)


def test_nor_than_what_is_found_near_the_usual_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """However early it ends."""
    monkeypatch.setattr(rank_layouts, "_EFFORT", 0.0)
    request = Request(model="qwen3_next_80b_a3b", gpus="32xH100")
    near = advise(request).fastest_found.candidate.evaluation
    found = advise(replace(request, search=SearchScope.LAYOUT))
    assert not found.search.whole
    assert found.candidates[0].evaluation.step_time_seconds <= near.step_time_seconds


def test_recipes_for_other_gpus_are_seeds_as_far_as_they_have_what_is_given() -> None:
    request = Request(model="deepseek_v3", gpus="256xH800", expert_model_parallel_size=32)
    jobs = seeds(resolve(request))
    assert jobs
    assert {job.layout.expert_model_parallel_size for job in jobs} == {32}


def test_no_option_comes_with_the_layout_of_a_recipe_unless_it_is_given() -> None:
    request = Request(model="deepseek_v3", gpus="256xH800")
    options = {job.layout.tp_comm_overlap for job in seeds(resolve(request))}
    given = resolve(replace(request, overrides=("layout.tp_comm_overlap=true",)))
    jobs = seeds(given)
    assert options == {False}
    assert {job.layout.tp_comm_overlap for job in jobs if job.layout.sequence_parallel} == {True}
