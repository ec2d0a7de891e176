"""What a search keeps of the jobs that it has looked at."""

from types import SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from advisor.frameworks.megatron.setting import NONE, Method, full
from advisor.hardware.calibration import load_calibration
from advisor.job.job import Job
from advisor.request.request import Request
from advisor.request.resolve import resolve
from advisor.search.evaluate import Evaluator
from advisor.search.found import BestFound, Climb, Looked, Searched
from tests.advisor.search.test_near_changes import job_of

JOB = job_of()
CALIBRATION = load_calibration(JOB.gpu)


def hopeless(at_least_seconds: float, fixed_bytes: int = 1) -> Any:
    """An evaluator of a job whose weights alone are too large."""
    job = replace(JOB, config=replace(JOB.config, memory_budget_bytes=int(at_least_seconds * 1e9)))
    memory = SimpleNamespace(fixed_bytes=fixed_bytes)
    return SimpleNamespace(
        job=job, is_hopeless=True, at_least_seconds=at_least_seconds, memory=memory
    )


def short_of(found: BestFound) -> list[float]:
    jobs: tuple[Job, ...] = found.searched(whole=True).short
    return [(job.config.memory_budget_bytes or 0) / 1e9 for job in jobs]


def test_jobs_short_of_memory_are_kept_where_they_may_beat_the_first() -> None:
    found = BestFound(CALIBRATION, ())
    for seconds in (3.0, 1.0, 2.0, 2.5):
        assert found.look_at(hopeless(seconds)) == Looked(unfit=True, short=True)
    assert (found.looked, found.unfit, found.evaluated, found.fits) == (4, 4, 0, False)
    assert short_of(found) == [1.0, 2.0, 2.5, 3.0]
    found.first = 2.5
    assert found.fits
    assert short_of(found) == [1.0, 2.0], "what takes as long is no faster"
    for number in range(10):
        found.look_at(hopeless(4.0 + number))
    found.first = 100.0
    assert len(short_of(found)) == 8


def test_the_fastest_setting_that_fits_is_kept_and_sets_the_limit() -> None:
    found = BestFound(CALIBRATION, (full(Method.UNIFORM, 1), NONE), within=0.5)
    evaluator = Evaluator(JOB, CALIBRATION)
    assert found.look_at(evaluator) == Looked(unfit=False, short=False)
    best = found.best
    assert best is not None
    assert best.setting == NONE
    assert found.first == best.step_time_seconds == evaluator.seconds(NONE)
    assert found.limit == found.first * 1.5
    assert (found.looked, found.unfit, found.evaluated) == (1, 0, 1), "the slower is not looked at"


def test_rows_that_fit_come_first_and_known_layouts_stay() -> None:
    own = Evaluator(JOB, CALIBRATION).evaluate(NONE)
    other = job_of(pp=4, vpp=1)
    late = replace(own, job=other, fit_probability=0.0)
    searched = Searched(evaluations=(late, own), evaluated=2)
    assert searched.best is own
    assert searched.first_rows(()) == [own]
    assert searched.first_rows((other,)) == [own, late]


@pytest.mark.parametrize("options", [False, True])
def test_a_climb_changes_options_where_options_are_searched(options: bool) -> None:
    """TP collectives can overlap the products of the job and of its neighbours with TP."""
    given = {"tensor_model_parallel_size": 2, "pipeline_model_parallel_size": 1}
    resolution = resolve(Request(model="llama3_8b", gpus="8xH800", takes_recipe=False, **given))
    assert resolution.layout is not None
    free = replace(resolution, layout_fields={})
    climb = Climb(free, CALIBRATION, BestFound(CALIBRATION, ()), options=options)
    near = list(climb._near(resolution.job(resolution.layout)))
    assert {2, 4} <= {job.layout.tensor_model_parallel_size for job in near}
    assert any(job.layout.tp_comm_overlap for job in near) == options
    given_too = replace(free, layout_fields={"tp_comm_overlap": True})
    climb = Climb(given_too, CALIBRATION, BestFound(CALIBRATION, ()), options=False)
    near = list(climb._near(resolution.job(resolution.layout)))
    cut = [job.layout for job in near if job.layout.sequence_parallel]
    assert cut
    assert all(layout.tp_comm_overlap for layout in cut)
