"""An answer says where published runs of its kind lie on one side of what is predicted."""

import pytest
from msgspec.structs import replace

from advisor.answer.answer import Answer
from advisor.base.dtypes import Precision
from advisor.hardware.calibration import Calibration, JobClass, KnownError, Layers, load_calibration
from advisor.hardware.catalogue import load_gpu
from advisor.job.job import Job
from advisor.request.given import Given
from advisor.request.request import Request
from advisor.request.resolve import resolve_given
from advisor.search import step_time_band
from advisor.search.advise import advise
from tests.advisor.conftest import CALIBRATION

DENSE = JobClass(gpu="H100-SXM-80GB", precision=Precision.BF16, layers=Layers.DENSE)
OFF = KnownError(of=DENSE, rows=4, mean=-0.246, low=-0.317, high=-0.205)


@pytest.fixture
def off() -> Calibration:
    return replace(CALIBRATION, known_errors=(OFF,))


def test_a_job_has_the_class_of_its_gpu_precision_and_layers(tight: Answer) -> None:
    assert step_time_band.job_class(tight.job) == DENSE
    layout = replace(tight.job.layout, tensor_model_parallel_size=8, pipeline_model_parallel_size=2)
    exposed = replace(DENSE, exposed_tensor_parallelism=True)
    assert step_time_band.job_class(replace(tight.job, layout=layout)) == exposed
    overlapped = replace(layout, tp_comm_overlap=True)
    assert step_time_band.job_class(replace(tight.job, layout=overlapped)) == DENSE


def test_it_is_known_of_its_own_class_alone(tight: Answer, off: Calibration) -> None:
    job: Job = tight.job
    assert step_time_band.known_error(job, off) == OFF
    other = replace(job, config=replace(job.config, precision=Precision.FP8_CURRENT))
    assert step_time_band.known_error(other, off) is None
    assert step_time_band.known_error(job, CALIBRATION) is None


def test_a_gain_that_rests_on_few_pairs_has_a_wide_band(tight: Answer, off: Calibration) -> None:
    assert step_time_band.unproven_gains(tight.job) == ()
    assert step_time_band.step_time_error(tight.job, off) == off.step_time_error, "dense: as before"
    lent = resolve_given(Given(model="qwen3_30b_a3b", gpus="16xH100"))
    assert lent.layout is not None
    job = lent.job(lent.layout)
    off = replace(off, experts_step_time_error=0.19)
    assert step_time_band.unproven_gains(job) == ("EP overlap", "HybridEP", "CUDA graphs")
    assert step_time_band.step_time_error(job, off) == step_time_band.EXCHANGE_ERROR
    alone = replace(job, layout=replace(job.layout, overlap_moe_expert_parallel_comm=False))
    assert step_time_band.step_time_error(alone, off) == 0.19
    known = replace(off, known_errors=(replace(OFF, of=step_time_band.job_class(job)),))
    assert step_time_band.step_time_error(alone, known) == pytest.approx(1 / (1 - 0.317) - 1)
    words = "DeepEP (2 pairs, of which none changes nothing else)"
    assert step_time_band.GAINS[1].words == words


def test_words() -> None:
    assert OFF.description == "25 % too fast on average (20 to 32 %)"
    slow = replace(OFF, mean=0.18, low=0.145, high=0.207)
    assert slow.description == "18 % too slow on average (14 to 21 %)"
    assert OFF.of.description == "dense layers in bf16 on H100-SXM-80GB"
    wide = replace(DENSE, eager=True, exposed_tensor_parallelism=True)
    assert wide.description == (
        "dense layers of plain torch in bf16 on H100-SXM-80GB, TP 8 or more without overlap"
    )


def test_an_answer_says_what_the_calibration_knows() -> None:
    for name in ("A100-SXM-80GB", "H100-SXM-80GB", "GB200-186GB"):
        for error in load_calibration(load_gpu(name)).known_errors:
            assert error.rows >= 3
            assert error.low <= error.mean <= error.high
            assert error.low * error.high > 0
    quiet = advise(Request(model="llama3_70b", gpus="32xH100", recompute=("none",)))
    assert quiet.calibration.known_error == ""
