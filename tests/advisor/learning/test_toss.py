"""Which pair is a toss: different work, a small difference next to what is known of it."""

from math import log, sqrt

import pytest
from msgspec.structs import replace

from advisor.answer.answer import Measured, RankedEvaluation
from advisor.frameworks.megatron.setting import parse_setting
from advisor.job.job import Job
from advisor.learning.time_residual import BAND, WIDTHS, below
from advisor.learning.toss import likeliest_toss
from tests.advisor.conftest import JOB, evaluation

OTHER = replace(JOB, config=replace(JOB.config, micro_batch_size=2))
BOTH_SETTINGS = sqrt(2) * WIDTHS.setting
BOTH_JOBS = sqrt(2 * WIDTHS.setting**2 + 2 * WIDTHS.job**2)


def row(rank: int, spec: str, seconds: float, job: Job = JOB, **changes) -> RankedEvaluation:
    made = evaluation(parse_setting(spec), 60, 0.0, job=job)
    longer = seconds / made.step_time_seconds
    time = made.time_seconds
    parts = {name: getattr(time, name) * longer for name in time.__struct_fields__}
    made = replace(made, time_seconds=type(time)(**parts))
    return RankedEvaluation(rank=rank, evaluation=made, **changes)


FIRST = row(1, "selective:mlp", 10.0)


def test_settings_of_one_job_that_do_different_work() -> None:
    toss = likeliest_toss([FIRST, row(2, "full:block:4", 10.005)])
    assert toss.mean == pytest.approx(log(1.0005))
    assert toss.sigma == pytest.approx(BOTH_SETTINGS)
    assert toss.probability == pytest.approx(below(-(log(1.0005) + 0.01) / BOTH_SETTINGS))
    assert f"±{BAND * BOTH_SETTINGS * 100:.1f} %" in toss.why


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (row(2, "full:block:4", 10.3), "the difference is known"),
        (row(2, "selective:mlp,moe_act", 10.005), "it does the same, and more"),
        (row(2, "none", 10.005), "the first does the same, and more"),
        (row(2, "full:block:4", 10.0), "it is the same step"),
        (replace(row(2, "full:block:4", 10.005), dominated_by=1), "it is dominated"),
        (replace(row(2, "full:block:4", 10.005), folded=True), "no page shows it"),
    ],
)
def test_no_toss(other: RankedEvaluation, why: str) -> None:
    assert likeliest_toss([FIRST, other]) is None, why


def test_rows_of_other_jobs_are_less_known_and_only_their_fastest_counts() -> None:
    rows = [FIRST, row(2, "selective:mlp", 10.1, OTHER), row(3, "none", 10.15, OTHER)]
    toss = likeliest_toss(rows)
    assert toss.second is rows[1]
    assert toss.sigma == pytest.approx(BOTH_JOBS)
    assert likeliest_toss([FIRST, row(2, "selective:mlp", 11.0, OTHER)]) is None


def test_what_was_measured_is_no_toss() -> None:
    seen = Measured(trials=1, step_time_seconds=10.0)
    rows = [row(1, "selective:mlp", 10.0, measured=seen), row(2, "full:block:4", 10.005)]
    assert likeliest_toss(rows) is not None
    rows[1] = replace(rows[1], measured=seen)
    assert likeliest_toss(rows) is None


def test_where_nothing_fits_there_is_no_choice() -> None:
    tight = replace(FIRST, evaluation=replace(FIRST.evaluation, fit_probability=0.3))
    assert likeliest_toss([tight, row(2, "full:block:4", 10.005)]) is None
    assert likeliest_toss([]) is None


def test_the_same_work_in_other_chunks_is_no_toss() -> None:
    chunked = replace(JOB, layout=replace(JOB.layout, virtual_pipeline_model_parallel_size=2))
    masked = replace(chunked, config=replace(JOB.config, create_attention_mask=False))
    two = replace(masked, config=replace(masked.config, expandable_segments=True))
    found = [likeliest_toss([FIRST, row(2, "selective:mlp", 10.005, job)]) for job in (masked, two)]
    assert [toss is None for toss in found] == [True, False]
