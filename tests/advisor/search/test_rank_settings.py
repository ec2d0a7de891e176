"""Words of the best that was found on other layouts."""

from msgspec.structs import replace

from advisor.answer.evaluation import Evaluation
from advisor.frameworks.megatron.setting import NONE, Method, full
from advisor.search.rank_settings import other_job
from tests.advisor.jobs import evaluator_of
from tests.advisor.search.test_near_changes import job_of

FULL = full(Method.UNIFORM, 1)


def test_a_remedy_on_another_layout_names_degrees_and_what_else_differs() -> None:
    job = job_of()
    own = evaluator_of(job).evaluate(NONE)
    wider = replace(job.layout, tensor_model_parallel_size=4, data_parallel_size=1)
    other = replace(own, job=replace(job, layout=wider))
    words = other_job(other, own).change
    assert words.startswith("TP 4")
    assert "DP 1" in words
    assert "micro batch" not in words
    batch = replace(other.job, config=replace(job.config, micro_batch_size=4))
    assert "DP 1, micro batch 4" in other_job(replace(other, job=batch), own).change


def test_its_effects_are_differences_from_the_first_row() -> None:
    job = job_of()
    own: Evaluation = evaluator_of(job).evaluate(NONE)
    less = replace(
        own,
        peak_reserved_bytes=own.peak_reserved_bytes - 100,
        time_seconds=replace(own.time_seconds, host=own.time_seconds.host + 2.0),
    )
    remedy = other_job(less, own)
    assert (remedy.effect_bytes, round(remedy.effect_seconds, 9)) == (-100, 2.0)
    assert "recompute" not in remedy.change
    assert other_job(replace(less, setting=FULL), own).change.endswith(f"with {FULL.spec}")
    again = other_job(less, replace(own, setting=FULL))
    assert again.change.endswith("without recompute")
