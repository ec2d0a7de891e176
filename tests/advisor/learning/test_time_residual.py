"""What runs say of step times: against the whole covariance of all rows, written out by numpy."""

from math import exp, sqrt

import numpy as np
import pytest
from msgspec.structs import replace

from advisor.answer.evaluation import TimeBreakdown
from advisor.frameworks.megatron.setting import parse_setting
from advisor.job.job import Job
from advisor.learning.time_residual import (
    BAND,
    WIDTHS,
    Shares,
    TimeResidual,
    TimeRow,
    setting_sigma,
)
from advisor.plan.recompute_plan import words_of
from tests.advisor.conftest import JOB

NONE, MLP, MOE = map(parse_setting, ("none", "selective:mlp", "selective:moe_act"))
OTHER = replace(JOB, config=replace(JOB.config, global_batch_size=64))
THIRD = replace(JOB, config=replace(JOB.config, global_batch_size=128))
LEAN: Shares = (1.0, 0.0, 0.1, 0.0, 0.0)
FULL: Shares = (1.0, 0.2, 0.08, 0.02, 0.0)


def row(job: Job, setting, of: Shares, error: float, processes: int = 1) -> TimeRow:
    return TimeRow(
        job=job,
        setting=setting,
        words=words_of(setting),
        shares=of,
        error=error,
        processes=processes,
    )


ROWS = (row(JOB, NONE, LEAN, 0.14), row(JOB, MLP, FULL, 0.18), row(OTHER, NONE, LEAN, 0.1, 4))
RESIDUAL = TimeResidual(rows=ROWS, band=0.12)


def kernel(one: TimeRow, two: TimeRow, base: float) -> float:
    sigmas = (base, *WIDTHS.terms)
    found = sum(a * b * s**2 for a, b, s in zip(one.shares, two.shares, sigmas, strict=True))
    same_job = one.job == two.job
    found += WIDTHS.job**2 * same_job
    return found + setting_sigma(one.words) ** 2 * (same_job and one.setting == two.setting)


@pytest.mark.parametrize(
    "asked",
    [
        row(JOB, NONE, LEAN, 0.0),  # just this was run
        row(OTHER, MLP, FULL, 0.0),  # its job was
        row(THIRD, MLP, FULL, 0.0),  # jobs like it
    ],
)
def test_an_estimate_is_the_normal_distribution_given_the_rows(asked: TimeRow) -> None:
    base = RESIDUAL.base_sigma
    whole = np.array([[kernel(a, b, base) for b in ROWS] for a in ROWS])
    whole += np.diag([one.variance for one in ROWS])
    across = np.array([kernel(asked, one, base) for one in ROWS])
    mean = across @ np.linalg.solve(whole, [one.error for one in ROWS])
    variance = kernel(asked, asked, base) - across @ np.linalg.solve(whole, across)
    found = RESIDUAL.of_job(asked.job).estimate(asked.setting, asked.words, asked.shares)
    assert found.log_factor == pytest.approx(mean)
    assert found.sigma == pytest.approx(sqrt(variance))


def test_before_any_run_the_band_is_the_shipped_one() -> None:
    rows = tuple(replace(one, processes=1) for one in ROWS)
    base = TimeResidual(rows=rows, band=0.12).base_sigma
    least = min(kernel(one, one, base) for one in rows)
    assert BAND * sqrt(least) == pytest.approx(0.12)


def test_what_no_run_did_keeps_its_shipped_time_and_width() -> None:
    times = RESIDUAL.of_job(THIRD)
    known = times.estimate(MLP, words_of(MLP), FULL)
    unknown = times.estimate(MOE, words_of(MOE), FULL)
    assert unknown.log_factor == pytest.approx(known.log_factor - FULL[1] * times.posterior.mean[1])
    assert unknown.sigma > known.sigma


def test_terms_sum_to_the_moved_step_and_keep_their_proportion() -> None:
    time = TimeBreakdown(
        forward=3.0,
        backward=6.0,
        recompute=2.0,
        exposed_communication=1.0,
        pipeline_bubble=0.5,
        optimizer=0.5,
    )
    times = RESIDUAL.of_job(JOB)
    moved = times.corrected(time, words_of(MLP), 16.0)
    assert moved.total == pytest.approx(16.0)
    assert moved.backward / moved.forward == pytest.approx(2.0)
    assert moved.recompute / moved.forward == pytest.approx(
        time.recompute / time.forward * exp(times.posterior.mean[1])
    )


def test_no_setting_is_faster_than_the_bound() -> None:
    for job in (JOB, OTHER, THIRD):
        times = RESIDUAL.of_job(job)
        for share in (0.0, 0.1, 0.5, 0.9):
            of = (1.0, share, 0.9 - share, 0.0, 0.0)
            for setting in (NONE, MLP, MOE):
                found = times.estimate(setting, words_of(setting), of)
                if setting not in times.rows:
                    assert exp(found.log_factor) >= times.least_factor * (1 - 1e-12)
        for one in times.rows.values():
            found = times.estimate(one.setting, one.words, one.shares)
            assert exp(found.log_factor) >= times.least_factor * (1 - 1e-12)
