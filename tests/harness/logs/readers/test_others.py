"""NeMo, torchtitan, DeepSpeed and the Trainer: every figure, unit by unit."""

import math

import pytest

from advisor.base.lines import clean_line
from harness.logs import records
from harness.logs.readers import READERS
from tests.harness.logs import lines

GIB = 2**30


def read(framework: str, line: str) -> tuple[records.Record, ...]:
    return READERS[records.LogFramework(framework)].read(clean_line(line)[1])


def test_nemo_2_counts_from_zero() -> None:
    assert read("nemo", lines.nemo(10, 100)) == (
        records.LoggedStep(number=10, total=100, seconds=5.432, tflops_per_gpu=412.3, loss=8.123),
    )


def test_nemo_2_memory_is_in_bytes_of_four_digits() -> None:
    tail = f" | max_memory_reserved: {5.8212e10:.4} | max_memory_allocated: {5.5212e10:.4}"
    assert read("nemo", lines.nemo(10, tail=tail))[1] == records.LoggedPeak(
        number=10, allocated=55_210_000_000, reserved=58_210_000_000
    )


def test_nemo_1_writes_a_bar() -> None:
    assert read("nemo", lines.nemo_1(20)) == (
        records.LoggedStep(number=20, total=1000, seconds=3.41, loss=7.12),
    )


@pytest.mark.parametrize("colour", [True, False])
def test_torchtitan(colour: bool) -> None:
    step, peak = read("torchtitan", "[rank0]:" + lines.titan(10, colour=colour))
    assert step.stamp is not None
    assert (step.number, step.loss, step.tokens_per_second_per_gpu) == (10, 7.12345, 5762.0)
    assert step.tflops_per_gpu == 1264.11
    assert peak == records.LoggedPeak(number=10, reserved=round(55.21 * GIB))


def test_torchtitan_0_1_has_no_gradient_norm() -> None:
    text = lines.titan(10, colour=False).replace("grad_norm:  1.2345  ", "")
    assert "grad_norm" not in text
    assert len(read("torchtitan", text)) == 2


def test_torchtitan_of_a_rank_without_the_loss_and_a_gpu_without_a_peak() -> None:
    step, _ = read("torchtitan", lines.titan(10, loss=-1.0, mfu="N/A"))
    assert step.loss is None


def test_torchtitan_frame() -> None:
    assert read("torchtitan", lines.titan_says("Training starts at step 1")) == (
        records.Mark.START,
    )
    assert read("torchtitan", lines.titan_says("Training completed")) == (records.Mark.END,)
    validation = lines.titan(10).replace("step:", "validate step:")
    assert read("torchtitan", validation) == ()


def test_deepspeed_timer() -> None:
    talk, timer = lines.deepspeed(10).splitlines()
    assert read("deepspeed", talk) == ()
    step, peak = read("deepspeed", timer)
    assert (step.number, step.samples_per_second) == (10, 12.4001)
    assert peak == records.LoggedPeak(number=10, rank=0, allocated=round(55.21 * GIB))


@pytest.mark.parametrize("rate", ["-inf", "nan", "0.0", "12.4[rank1]"])
def test_deepspeed_without_a_rate(rate: str) -> None:
    assert read("deepspeed", lines.deepspeed(10).splitlines()[1].replace("12.4001", rate)) == ()


@pytest.mark.parametrize("more", ["", "aux: 0.1234 "])
def test_deepspeed_pipeline(more: str) -> None:
    line = f"steps: 10 loss: 7.1234 {more}iter time (s): 1.234 samples/sec: 25.934"
    assert read("deepspeed", line) == (records.LoggedStep(number=10, seconds=1.234, loss=7.1234),)


def test_deepspeed_usage_and_configuration() -> None:
    usage = "MA 21.03 GB         Max_MA 55.21 GB         CA 58.1 GB         Max_CA 58 GB "
    assert read("deepspeed", usage) == (
        records.LoggedPeak(number=0, rank=0, allocated=round(55.21 * GIB)),
    )
    line = "[2026-01-15 10:20:31,1] [INFO] [config.py:678:print]   train_batch_size ............. 8"
    assert read("deepspeed", line) == (records.Argument(name="train_batch_size", value="8"),)


@pytest.mark.parametrize(
    "line",
    [
        "[Rank 0] time (ms) | fwd_microstep: 0.27 | bwd_microstep: 8.77 | step_microstep: 12.19",
        "[Rank 0] time (ms) | pipe_send_output: 1.00 | pipe_recv_grad: 2.00",
        "[Rank 0] time (ms) | fwd: 12.84 | bwd: 9.69 | step: 12.2[Rank 1]",
        "[Rank 0] time (ms) | fwd: 12.84 | bwd: nan | step: 12.21",
        "[Rank 0] time (ms) | fwd: 0.00 | bwd: 0.00 | step: 0.00",
        "{'loss': 7.1, 'epoch': ",
        "{'loss': __import__('os').getcwd(), 'epoch': 1}",
        "{'eval_loss': 7.1, 'eval_runtime': 1.0, 'epoch': 1.0}",
        "{'loss': 7.1}",
    ],
)
def test_timers_of_no_whole_step_and_trainer_lines_that_say_nothing(line: str) -> None:
    assert read("deepspeed" if line[0] == "[" else "huggingface", line) == ()


def test_deepspeed_timers_of_a_pipeline_are_of_several_steps() -> None:
    line = "[Rank 0] time (ms) | batch_input: 0.16 | fwd_microstep: 0.68 | step_microstep: 3.36"
    assert read("deepspeed", line) == (records.Timers(seconds=None),)


@pytest.mark.parametrize(
    "line",
    [
        "{'loss': 7.1234, 'grad_norm': 1.2, 'learning_rate': 5e-05, 'epoch': 0.1}",
        "{'loss': '7.1234', 'grad_norm': '1.2', 'learning_rate': '5e-05', 'epoch': '0.1'}",
        "  2%|▏         | 20/1000 [01:10<57:30]{'loss': 7.1234, 'epoch': 0.1}",
    ],
    ids=["4.x", "5.x", "after a bar"],
)
def test_trainer_loss(line: str) -> None:
    assert read("huggingface", line) == (records.LoggedLoss(value=7.1234, epoch=0.1),)


def test_trainer_loss_that_is_nan() -> None:
    (loss,) = read("huggingface", "{'loss': nan, 'grad_norm': nan, 'epoch': 0.1}")
    assert math.isnan(loss.value)


def test_trainer_end() -> None:
    line = (
        "{'train_runtime': '123.4', 'train_samples_per_second': '12.35', "
        "'train_steps_per_second': '1.25', 'train_loss': '6.5', 'epoch': '1'}"
    )
    assert read("huggingface", line) == (records.WholeRun(seconds=0.8), records.Mark.END)
    rate = line.replace("{", "{'train_tokens_per_second': 1234.5, ")  # 4.x: of one rank
    assert read("huggingface", rate)[0] == records.WholeRun(
        seconds=0.8, tokens_per_second_per_gpu=1234.5
    )
    memory = "{'before_init_mem_gpu': 1000, 'init_mem_gpu_alloc_delta': 20000, "
    memory += "'train_mem_gpu_alloc_delta': 300000, 'train_mem_gpu_peaked_delta': 4000000, "
    assert read("huggingface", line.replace("{", memory)) == (
        records.WholeRun(seconds=0.8),
        records.LoggedPeak(number=0, allocated=4_321_000),
        records.Mark.END,
    )
    assert read("huggingface", line.replace("{", "{'train_mem_gpu_peaked_delta': 4000000, ")) == (
        records.WholeRun(seconds=0.8),
        records.Mark.END,
    )
