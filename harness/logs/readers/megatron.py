"""Megatron-LM and Megatron Bridge: the iteration line of the last rank, the memory lines of the
ranks whose data-parallel rank is 0, the arguments of rank 0.

Source: Megatron-LM core_r0.11 to main d98e8a64, megatron/training/training.py (training_log) and
utils.py (report_memory); Megatron Bridge main 067f987, training/utils/train_utils.py, and 0.3.1,
training/train.py (Job throughput, a mean since the job's start, in its progress.txt) and
pretrain.py (its end). "MB" is 2**20 bytes in Megatron-LM, "GB" 10**9 in Bridge.
"""

import math
import re
from decimal import Decimal
from typing import Final

from harness.logs.records import (
    COUNT,
    NUMBER,
    Argument,
    LoggedPeak,
    LoggedStep,
    LogReader,
    Mark,
    Record,
    Throughput,
    WholeRun,
    number,
    pairs,
    positive,
    scaled_bytes,
)

_MIB: Final = 2**20
_GB: Final = 10**9
_FIRST_WHOLE_PEAK: Final = 2
"""The peak after iteration 1 comes before the optimizer's state is there."""
# The last start on a line counts: of two lines written into one, only the second is whole.
_ITERATION: Final = re.compile(rf"^(?:.*\b)?iteration ({COUNT})/ ?({COUNT}) \| (.+) \|$")
_MEMORY: Final = re.compile(
    rf"(?:^|\[Rank ({COUNT})\] )\(after ({COUNT}) iterations\) memory \(MB\) \| "
    rf"allocated: {NUMBER} \| max allocated: ({NUMBER}) \| "
    rf"reserved: {NUMBER} \| max reserved: ({NUMBER})"
    rf"(?: \| total device memory used: {NUMBER})?$"
)
_BRIDGE_MEMORY: Final = re.compile(
    rf"(?:^|\[Rank ({COUNT})\] )\(after ({COUNT}) iterations\) memory \(GB\) \| (.+)$"
)
_BRIDGE_STEP: Final = re.compile(
    rf"\bStep Time : ({NUMBER})s GPU utilization: ({NUMBER})MODEL_TFLOP/s/GPU$"
)
_JOB: Final = re.compile(
    rf"\bJob throughput: ({NUMBER}) (?:MODEL_)?TFLOP/s/GPU Cumulative throughput: {NUMBER} "
    r"(?:MODEL_)?TFLOP/s/GPU(?: |$)"
)
_ARGUMENT: Final = re.compile(r"^(\w+) \.{2,} (.+)$")
_WORLD: Final = re.compile(r"^using world size: (\d+), data-parallel size: (\d+), ")
_EXIT: Final = re.compile(
    r"^\[(?:exiting program at iteration \d+|after training is done)\] datetime: "
)
_TIME: Final = "elapsed time per iteration (ms)"
_THROUGHPUT: Final = ("throughput per GPU (TFLOP/s/GPU)", "TFLOPs")  # Megatron-DeepSpeed's is short
_LOSS: Final = "lm loss"
_NAN: Final = "number of nan iterations"
_SKIPPED: Final = "number of skipped iterations"
_NORM: Final = "grad norm"
_BATCH: Final = "global batch size"
_NUMERIC: Final = (_TIME, *_THROUGHPUT, _LOSS, _NAN, _SKIPPED, _NORM, _BATCH, "consumed samples")


def _iteration(match: re.Match[str]) -> tuple[Record, ...]:
    """The averages over the log interval, and the batch: that of the line counts, since the printed
    arguments tell where a ramp ends, and Bridge prints none."""
    fields = pairs(match[3], " | ", ":") or {}
    damaged = any(number(fields[name]) is None for name in _NUMERIC if name in fields)
    if damaged or positive(fields.get(_TIME, "")) is None:
        return ()
    rate = next((positive(fields[name]) for name in _THROUGHPUT if name in fields), None)
    found = LoggedStep(
        number=int(match[1]),
        total=int(match[2]),
        seconds=float(Decimal(fields[_TIME]).scaleb(-3)),  # 40.1 ms are 0.0401 s
        tflops_per_gpu=rate,
        loss=_loss(fields),
    )
    batch = (Argument(name="global_batch_size", value=fields[_BATCH]),) if _BATCH in fields else ()
    return (found, *batch)


def _loss(fields: dict[str, str]) -> float | None:
    """A loss is printed where it is above zero: it is absent where the iteration was skipped, and
    where it is NaN, which the count of NaN iterations or the gradients then show."""
    if float(fields.get(_NAN, 0)) > 0:
        return math.nan
    if _LOSS in fields:
        return number(fields[_LOSS])
    skipped = float(fields.get(_SKIPPED, 0)) > 0
    return None if skipped or math.isfinite(float(fields.get(_NORM, 0))) else math.nan


def _peak(match: re.Match[str], allocated: str, reserved: str, unit: int) -> tuple[Record, ...]:
    """match: of the rank, if the line tells it, and the step."""
    sizes = scaled_bytes(allocated, unit), scaled_bytes(reserved, unit)
    if int(match[2]) < _FIRST_WHOLE_PEAK or None in sizes:
        return ()
    rank = None if match[1] is None else int(match[1])
    return (LoggedPeak(number=int(match[2]), rank=rank, allocated=sizes[0], reserved=sizes[1]),)


def _bridge_peak(match: re.Match[str]) -> tuple[Record, ...]:
    fields = pairs(match[3], " | ", ":") or {}
    sizes = [fields.get(f"mem-max-{which}-gigabytes", "") for which in ("allocated", "reserved")]
    damaged = any(number(value) is None for value in fields.values())
    return () if damaged else _peak(match, sizes[0], sizes[1], _GB)


def _bridge_step(match: re.Match[str]) -> tuple[Record, ...]:
    """ "GPU utilization" is model TFLOP/s, not per cent."""
    time, rate = positive(match[1]), positive(match[2])
    return () if time is None or rate is None else (Throughput(seconds=time, tflops_per_gpu=rate),)


def _job(match: re.Match[str]) -> tuple[Record, ...]:
    mean = positive(match[1])
    return () if mean is None else (WholeRun(tflops_per_gpu=mean),)


MEGATRON: Final = LogReader(
    ("iteration", "Step Time", "Job throughput", " ..", "using world size", "after training"),
    (
        (_ITERATION, _iteration),
        (_MEMORY, lambda match: _peak(match, match[3], match[4], _MIB)),
        (_BRIDGE_MEMORY, _bridge_peak),
        (_BRIDGE_STEP, _bridge_step),
        (_JOB, _job),
        (_ARGUMENT, lambda match: (Argument(name=match[1], value=match[2]),)),
        (_WORLD, lambda match: (Mark.START, Argument(name="world_size", value=match[1]))),
        (_EXIT, lambda _: (Mark.END,)),
    ),
)
"""Lines of Megatron-LM, Megatron Bridge and Megatron-DeepSpeed."""
