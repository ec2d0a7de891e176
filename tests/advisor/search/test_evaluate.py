"""Evaluator: sums, stages, times, and what a setting changes."""

import pytest
from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.frameworks.megatron.setting import NONE, Method, full, selective
from advisor.hardware.calibration import load_calibration
from advisor.job.job import Job
from advisor.job.layout import ParallelLayout
from advisor.models.layer_kind import DENSE
from advisor.search.evaluate import Evaluator, evaluate
from tests.advisor.jobs import evaluator_of, experiment_job


@pytest.fixture(scope="module")
def job() -> Job:
    return experiment_job()


@pytest.fixture(scope="module")
def evaluator(job: Job) -> Evaluator:
    return evaluator_of(job)


SETTINGS = (
    NONE,
    selective("core_attn"),
    selective("mlp"),
    selective("core_attn", "mlp"),
    full(Method.UNIFORM, 1),
    full(Method.UNIFORM, 4),
    full(Method.BLOCK, 2),
)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: s.spec)
def test_components_sum_to_the_reserved_peak_of_every_stage(evaluator, setting) -> None:
    evaluation = evaluator.evaluate(setting)
    assert len(evaluation.stages) == 4
    for stage in evaluation.stages:
        assert stage.memory_bytes.total == stage.peak_reserved_bytes
        assert stage.peak_allocated_bytes < stage.peak_reserved_bytes
    assert evaluation.peak.peak_reserved_bytes == max(
        stage.peak_reserved_bytes for stage in evaluation.stages
    )


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: s.spec)
def test_hardware_flops_are_model_flops_and_replays(evaluator, setting) -> None:
    evaluation = evaluator.evaluate(setting)
    assert (evaluation.hfu > evaluation.mfu) == (setting != NONE)


@pytest.mark.parametrize(("error", "low"), [(0.25, 0.75), (1.0, 0.5)])
def test_a_wide_band_has_ends_as_far_off_as_factors(job, error, low) -> None:
    calibration = replace(load_calibration(job.gpu), own_errors=(), step_time_error=error)
    row = evaluate(job, NONE, calibration)
    assert row.step_time_low_seconds == pytest.approx(low * row.step_time_seconds)
    assert row.step_time_high_seconds == pytest.approx((1 + error) * row.step_time_seconds)


def test_full_uniform_one_replays_every_layer_once(evaluator, job) -> None:
    evaluation = evaluator.evaluate(full(Method.UNIFORM, 1))
    tokens = job.config.global_batch_size * job.config.seq_length
    h, f, d = 8192, 28672, 128
    linear = 2 * (h * (64 + 16) * d + 64 * d * h + 3 * h * f)
    attention = 2 * job.config.seq_length * 64 * d
    replayed = evaluation.detail.hardware_flops_per_step - evaluation.model_flops_per_step
    assert replayed == tokens * 80 * (linear + attention)


def test_overhead_is_against_none_on_the_same_job(evaluator) -> None:
    none, mlp = evaluator.evaluate(NONE), evaluator.evaluate(selective("mlp"))
    assert none.recompute_overhead == 0.0
    ratio = mlp.step_time_seconds / none.step_time_seconds
    assert mlp.recompute_overhead == pytest.approx(ratio - 1)


def test_core_attn_under_transformer_engine_costs_memory(evaluator) -> None:
    """The checkpoint keeps the whole mixed QKV that the module would have let go."""
    none, core = evaluator.evaluate(NONE), evaluator.evaluate(selective("core_attn"))
    assert core.peak.peak_allocated_bytes > none.peak.peak_allocated_bytes
    assert core.detail.saved_bytes_per_layer[DENSE] > none.detail.saved_bytes_per_layer[DENSE]


def test_earlier_stages_hold_more(evaluator) -> None:
    in_flight = [stage.in_flight_microbatches for stage in evaluator.evaluate(NONE).stages]
    assert in_flight == sorted(in_flight, reverse=True)


def test_sharding_the_optimizer_saves_exactly_its_share(job) -> None:
    calibration = load_calibration(job.gpu)
    whole = replace(job, layout=replace(job.layout, use_distributed_optimizer=False))
    sharded = evaluate(job, NONE, calibration).stages[0].memory_bytes
    unsharded = evaluate(whole, NONE, calibration).stages[0].memory_bytes
    assert unsharded.optimizer == 2 * sharded.optimizer
    assert unsharded.weights == sharded.weights


def test_fp32_main_gradients_double_the_gradient_buffer(job) -> None:
    calibration = load_calibration(job.gpu)
    wide = replace(job, config=replace(job.config, main_grads_dtype=DType.FP32))
    narrow_bytes = evaluate(job, NONE, calibration).stages[1].memory_bytes.gradients
    assert evaluate(wide, NONE, calibration).stages[1].memory_bytes.gradients == 2 * narrow_bytes


def test_a_smaller_budget_lowers_the_probability(job) -> None:
    calibration = load_calibration(job.gpu)
    probabilities = []
    for gib in (80, 72, 60):
        config = replace(job.config, memory_budget_bytes=gib * 2**30)
        probabilities.append(
            evaluate(replace(job, config=config), NONE, calibration).fit_probability
        )
    assert probabilities == sorted(probabilities, reverse=True)
    assert probabilities[0] > 0.99
    assert probabilities[-1] < 0.01


def test_bubble_shrinks_with_virtual_stages(job) -> None:
    calibration = load_calibration(job.gpu)
    bubbles = []
    for vpp in (1, 5, 10):
        layout: ParallelLayout = replace(job.layout, virtual_pipeline_model_parallel_size=vpp)
        time = evaluate(replace(job, layout=layout), NONE, calibration).time_seconds
        bubbles.append(time.pipeline_bubble)
    assert bubbles[0] > bubbles[1] > bubbles[2]
    assert bubbles[0] == pytest.approx(5 * bubbles[1], rel=0.05)  # ends weigh on the pace alike
