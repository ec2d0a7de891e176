import pytest
from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.hardware.calibration import load_calibration
from advisor.hardware.catalogue import load_gpu
from advisor.job.job import Job, JobConfig
from advisor.search.evaluate import Evaluator
from harness.rehearsal.prediction import difference, explained, predicted_stages
from harness.trial.trial import Device
from tests.harness.backends.megatron_core.workloads import LLAMA
from tests.harness.rehearsal.toys import GIB, LAYOUT, PEAKS

CONFIG = JobConfig(seq_length=32, micro_batch_size=1, global_batch_size=8)
JOB = Job(model=LLAMA, layout=LAYOUT, config=CONFIG, gpu=load_gpu("H100"), num_gpus=8)


def evaluator(job: Job = JOB) -> Evaluator:
    return Evaluator(job, load_calibration(job.gpu, None))


def test_phases_stand_on_what_lives_from_step_to_step() -> None:
    first, last = predicted_stages(evaluator(), "none", (0, 1), Device.FAKE)
    static = first.weights + first.gradients + first.optimizer
    assert first.gradients == 2 * first.weights  # fp32 next to bf16
    assert first.optimizer == 3 * first.weights  # 12 bytes over two data-parallel ranks
    assert static < first.forward <= first.backward == first.peak
    assert first.activations == first.backward - static
    assert (first.stage, last.stage) == (0, 1)


def test_sixteen_bit_gradients_are_copied_for_the_optimizer() -> None:
    narrow = replace(JOB, config=replace(CONFIG, main_grads_dtype=DType.BF16))
    (wide,) = predicted_stages(evaluator(), "none", (0,), Device.FAKE)
    (copied,) = predicted_stages(evaluator(narrow), "none", (0,), Device.FAKE)
    buffers = wide.optimizer_step - wide.weights - wide.gradients - wide.optimizer
    static = copied.weights + copied.gradients + copied.optimizer
    assert copied.optimizer_step == static + buffers + copied.optimizer // 3


def test_workspaces_are_a_gpus() -> None:
    (fake,) = predicted_stages(evaluator(), "none", (0,), Device.FAKE)
    (cuda,) = predicted_stages(evaluator(), "none", (0,), Device.CUDA)
    assert cuda.peak - fake.peak >= 32 * 2**20  # Transformer Engine's GEMM workspace on Hopper
    assert cuda.weights == fake.weights


def test_only_a_difference_worth_it_is_explained() -> None:
    assert difference(PEAKS, PEAKS) == 0
    near = replace(PEAKS, backward=PEAKS.backward + GIB // 10)
    assert difference(near, PEAKS) == pytest.approx(0.1 / 12)
    assert explained(near, PEAKS) == ""
    assert explained(replace(PEAKS, backward=13 * GIB), PEAKS) == "activations"
    more = replace(PEAKS, gradients=4 * GIB, forward=12 * GIB, backward=14 * GIB)
    assert explained(more, PEAKS) == "gradients"
    assert explained(replace(PEAKS, optimizer_step=15 * GIB), PEAKS) == "optimizer step"
