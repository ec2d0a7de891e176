"""Megatron-LM and Bridge: every figure of every line, and lines that are damaged."""

import math

import pytest

from harness.logs.readers.frameworks import MEGATRON
from harness.logs.records import Argument, LoggedPeak, LoggedStep, Mark, Record, Throughput
from tests.harness.logs import lines


def read(line: str) -> tuple[Record, ...]:
    return MEGATRON.read(" ".join(line.split()))


@pytest.mark.parametrize(
    "stamp", ["2026-01-15 10:20:31", "2026-01-15 10:20:31.123456"], ids=["to 0.15", "from 0.16"]
)
def test_the_iteration_line(stamp: str) -> None:
    step, batch = read(lines.megatron(10, 500, ms=40.1, stamp=stamp))
    assert batch == Argument(name="global_batch_size", value="32")
    assert step == LoggedStep(
        number=10, total=500, seconds=0.0401, tflops_per_gpu=412.3, loss=8.123456
    )


def test_eight_digits_leave_no_blank() -> None:
    step, _ = read(lines.megatron(12345678, 87654321))
    assert (step.number, step.total) == (12345678, 87654321)


def test_without_log_throughput_and_with_metrics_of_experts() -> None:
    extra = " load_balancing_loss: 1.012345E+00 | mtp_1 loss: 9.123456E+00 | no pair here |"
    step, _ = read(lines.megatron(10, tflops=None, extra=extra))
    assert (step.tflops_per_gpu, step.loss) == (None, 8.123456)
    # Megatron-DeepSpeed's word for throughput
    text = lines.megatron(3).replace("throughput per GPU (TFLOP/s/GPU)", "TFLOPs")
    assert read(text)[0].tflops_per_gpu == 412.3


def test_a_skipped_iteration_has_no_loss() -> None:
    step, _ = read(lines.megatron(3, loss=None, skipped=1, norm=math.inf))
    assert step.loss is None


NO_NUMBERS = {
    "printed as INF": {"loss": math.inf},
    "not printed": {"loss": math.nan, "norm": math.nan},
    "counted": {"loss": None, "nans": 1},
}


@pytest.mark.parametrize("name", NO_NUMBERS)
def test_a_loss_that_is_no_number(name: str) -> None:
    step, _ = read(lines.megatron(3, **NO_NUMBERS[name]))
    assert not math.isfinite(step.loss)


@pytest.mark.parametrize(
    "damage",
    [
        (" | learning", "[Rank 0] (after 2 iterations) memory | learning"),
        ("1234.5", "12x4.5"),
        ("1234.5", "nan"),
        ("1234.5", "0.0"),
        ("412.3", "41[rank1]: hello"),
        (" | loss scale", " | consumed samples:  7 | loss scale"),
        (":   0 |\n", ":   0\n"),
        ("elapsed time per iteration (ms)", "elapsed"),
    ],
)
def test_a_damaged_line_says_nothing(damage: tuple[str, str]) -> None:
    line = lines.megatron(10)
    assert damage[0] in line
    assert read(line.replace(*damage)) == ()


def test_of_two_lines_in_one_the_whole_one_counts() -> None:
    glued = lines.megatron(9, ms=1.0)[:70] + lines.megatron(10, ms=2.0)
    step, _ = read(glued)
    assert (step.number, step.seconds) == (10, 0.002)


@pytest.mark.parametrize(
    ("tail", "peak"),
    [("", 55210.5), ("", 55210.1234567), (" | total device memory used: 60000.00", 55210.5)],
    ids=["two decimals", "raw floats to 0.15", "with the device"],
)
def test_the_memory_line_is_in_mebibytes(tail: str, peak: float) -> None:
    line = lines.megatron_memory(3, 2, peak, 58112.0, tail)
    assert read(line) == (
        LoggedPeak(number=2, rank=3, allocated=round(peak * 2**20), reserved=58112 * 2**20),
    )


def test_the_peak_before_the_optimizer_exists_is_none() -> None:
    assert read(lines.megatron_memory(0, 1, 15210.5, 58112.0)) == ()


def test_a_memory_line_of_two_ranks_says_nothing() -> None:
    line = lines.megatron_memory(0, 2, 1.0, 2.0).strip() + lines.megatron_memory(4, 2, 1.0, 2.0)
    assert read(line) == (LoggedPeak(number=2, rank=4, allocated=2**20, reserved=2 * 2**20),)


def test_bridge_writes_decimal_gigabytes() -> None:
    line = lines.bridge_memory(5, 2, 55.21, 58.112)
    assert read(line) == (
        LoggedPeak(number=2, rank=5, allocated=55_210_000_000, reserved=58_112_000_000),
    )
    assert read(line.replace("0.51", "0.5[Rank 1]")) == ()


def test_bridge_gpu_utilization_is_model_tflops() -> None:
    assert read(lines.bridge_step(1.23, 412.3)) == (Throughput(seconds=1.23, tflops_per_gpu=412.3),)


def test_frame_and_arguments() -> None:
    assert read("using world size: 32, data-parallel size: 2, context-parallel size: 1,") == (
        Mark.START,
        Argument(name="world_size", value="32"),
    )
    assert read("  recompute_modules ............................... ['mlp']") == (
        Argument(name="recompute_modules", value="['mlp']"),
    )
    assert read("[exiting program at iteration 10] datetime: 2026-01-15 10:20:31") == (Mark.END,)


@pytest.mark.parametrize(
    "line",
    [
        " validation loss at iteration 100 | lm loss value: 2.345678E+00 | lm loss PPL: 1.0E+01 |",
        "Theoretical memory footprints: weight and optimizer=35123.00 MB, activation=20100.00 MB",
        "    forward-backward ...............................: (1200.10, 1210.30)",
        lines.nemo(10),
    ],
)
def test_lines_that_are_something_else(line: str) -> None:
    assert not any(isinstance(r, LoggedStep | LoggedPeak | Throughput) for r in read(line))
