"""Megatron, NeMo, torchtitan, DeepSpeed, and Hugging Face's Trainer: what each line of their logs
says."""

import ast
import math
import re
from decimal import Decimal
from functools import partial
from typing import Any, Final

from advisor.base.limits import LARGEST
from harness.logs.records import (
    COUNT,
    NUMBER,
    Argument,
    LoggedLoss,
    LoggedPeak,
    LoggedStep,
    LogReader,
    Mark,
    Record,
    Throughput,
    Timers,
    WholeRun,
    number,
    pairs,
    positive,
    scaled_bytes,
    stamp,
)

_GIB: Final = 2**30

_NEMO_LINE: Final = re.compile(rf"\bTraining epoch \d+, iteration ({COUNT})/({COUNT}) \| (.+)$")
_NEMO_BAR: Final = re.compile(rf"\bEpoch \d+: [^\[]*\| ?({COUNT})/({COUNT}) \[[^\],]*, ([^\]]+)\]$")
_NEMO_SECONDS: Final = "train_step_timing in s"
_NEMO_LOSS: Final = "reduced_train_loss"
_NEMO_NUMERIC: Final = (_NEMO_SECONDS, _NEMO_LOSS, "global_step", "TFLOPS_per_GPU")
_ALLOCATED, _RESERVED = "max_memory_allocated", "max_memory_reserved"


def _nemo(first: int, separator: str, joint: str, match: re.Match[str]) -> tuple[Record, ...]:
    """A line whose steps count from `first`."""
    fields = pairs(match[3], separator, joint) or {}
    step, total = (int(match[group]) + 1 - first for group in (1, 2))
    seconds = positive(fields.get(_NEMO_SECONDS, ""))
    damaged = any(number(fields[name]) is None for name in _NEMO_NUMERIC if name in fields)
    if seconds is None or damaged:
        return ()
    loss = number(fields[_NEMO_LOSS]) if _NEMO_LOSS in fields else None
    rate = positive(fields.get("TFLOPS_per_GPU", ""))
    logged = LoggedStep(number=step, total=total, seconds=seconds, tflops_per_gpu=rate, loss=loss)
    sizes = [scaled_bytes(fields.get(name, ""), 1) for name in (_ALLOCATED, _RESERVED)]
    if sizes == [None, None]:
        return (logged,)
    return (logged, LoggedPeak(number=step, allocated=sizes[0], reserved=sizes[1]))


NEMO: Final = LogReader(
    (_NEMO_SECONDS,),
    ((_NEMO_LINE, partial(_nemo, 0, " | ", ":")), (_NEMO_BAR, partial(_nemo, 1, ", ", "="))),
)
"""NeMo 2 (Lightning's ProgressPrinter) and NeMo 1 (a tqdm bar).

Source: NVIDIA/NeMo 8cfedd72, nemo/lightning/pytorch/callbacks/progress_printer.py; iterations are
counted from 0, values have four significant digits, memory is in bytes."""


_TITAN_STEP: Final = re.compile(
    rf"\[titan\] (\S+ \S+) - \w+ - INFO - step: ({COUNT}) loss: ({NUMBER})"
    rf"(?: grad_norm: {NUMBER})? "
    r"memory: (\d+\.\d+)GiB\(\d+\.\d+%\) tps: ([\d,]+) tflops: ([\d,]+\.\d+) "
    r"mfu: (?:\d+\.\d+%|N/A)$"
)
_TITAN_FRAME: Final = re.compile(
    r"\[titan\] \S+ \S+ - \w+ - INFO - (Training starts at step \d+|Training completed)\.?(?:,|$)"
)
_ELSEWHERE: Final = -1.0


def _titan_step(match: re.Match[str]) -> tuple[Record, ...]:
    rate, tflops = (positive(match[group].replace(",", "")) for group in (5, 6))
    loss, reserved = number(match[3]), scaled_bytes(match[4], _GIB)
    if rate is None:
        return ()
    step = LoggedStep(
        number=int(match[2]),
        tokens_per_second_per_gpu=rate,
        tflops_per_gpu=tflops,
        loss=None if loss == _ELSEWHERE else loss,
        stamp=stamp(match[1]),
    )
    return (step, LoggedPeak(number=step.number, reserved=reserved))


TORCHTITAN: Final = LogReader(
    ("[titan]",),
    (
        (_TITAN_STEP, _titan_step),
        (_TITAN_FRAME, lambda match: (Mark.START if "starts" in match[1] else Mark.END,)),
    ),
    rf"\[titan\] \S+ \S+ - \w+ - INFO - +step: +({COUNT}) +loss: +[-\d.]+"
    r"(?: +grad_norm: +[-\d.]+)? +memory: +(\d+\.\d+)GiB\([\d.]+%\)"
    r" +tps: +[\d,]+ +tflops: +[\d,.]+ +mfu: +[\d.%N/A]+",
)
"""torchtitan's logger, of any rank that LOG_RANK selects. tps is tokens per second of one GPU,
memory the largest reserved since the last line, GiB.

Source: torchtitan 0.1.0 to 0.3.0, components/metrics.py (log) and trainer.py. A loss of -1 stands
for "not on this rank" under pipeline parallelism."""


_TIMER: Final = re.compile(
    rf"\[([\d-]+ [\d:,]+)\] \[INFO\] \[timer\.py:\d+:\w+\] epoch=\d+/micro_step=\d+/"
    rf"global_step=({COUNT}), RunningAvgSamplesPerSec={NUMBER}, CurrSamplesPerSec=({NUMBER}), "
    rf"MemAllocated={NUMBER}GB, MaxMemAllocated=({NUMBER})GB$"
)
_PIPELINE: Final = re.compile(
    rf"\bsteps: ({COUNT}) loss: ({NUMBER}) (?:\w+: {NUMBER} ){{0,99}}iter time \(s\): ({NUMBER}) "
    rf"samples/sec: ({NUMBER})$"
)
_USAGE: Final = re.compile(r"\bMA [\d.]+ GB Max_MA ([\d.]+) GB CA [\d.]+ GB Max_CA [\d.]+ GB$")
_DONE: Final = re.compile(r"\[launch\.py:\d+:main\] Process \d+ exits successfully\.$")
_WALL_CLOCK: Final = re.compile(
    rf"(?:^|\[Rank 0\] )time \(ms\)((?: \| \w+: {NUMBER})+)$"  # wall_clock_breakdown
)
_OF_A_STEP: Final = ("fwd", "bwd", "step")
_OF_A_PIPELINE: Final = "batch_input"
_CONFIGURED: Final = re.compile(r"\[config\.py:\d+:print\] (\w+) (?:\.+ )?(.+)$")


def _timer(match: re.Match[str]) -> tuple[Record, ...]:
    rate, allocated = positive(match[3]), scaled_bytes(match[4], _GIB)
    if rate is None or allocated is None:
        return ()
    step = LoggedStep(number=int(match[2]), samples_per_second=rate, stamp=stamp(match[1]))
    return (step, LoggedPeak(number=step.number, rank=0, allocated=allocated))


def _wall_clock(match: re.Match[str]) -> tuple[Record, ...]:
    """The timers of a whole step; those of its micro steps have other names, and one of them is of
    the pipeline engine alone, which resets its timers where it prints them."""
    fields = pairs(match[1], " | ", ":") or {}
    if _OF_A_PIPELINE in fields:
        return (Timers(seconds=None),)
    parts = [number(fields.get(name, "")) for name in _OF_A_STEP]
    known = [part for part in parts if part is not None and math.isfinite(part)]
    if len(known) < len(_OF_A_STEP) or not 0 < sum(known) <= LARGEST:
        return ()
    return (Timers(seconds=sum(known) / 1e3),)


def _pipeline(match: re.Match[str]) -> tuple[Record, ...]:
    step = LoggedStep(number=int(match[1]), seconds=positive(match[3]), loss=number(match[2]))
    return () if step.seconds is None else (step,)


DEEPSPEED: Final = LogReader(
    ("global_step=", "time (ms) |", "samples/sec:", "Max_MA", ":print]", "exits successfully"),
    (
        (_TIMER, _timer),
        (_WALL_CLOCK, _wall_clock),
        (_PIPELINE, _pipeline),
        (
            _USAGE,
            lambda match: (LoggedPeak(number=0, rank=0, allocated=scaled_bytes(match[1], _GIB)),),
        ),
        (_CONFIGURED, lambda match: (Argument(name=match[1], value=match[2]),)),
        (_DONE, lambda _: (Mark.END,)),
    ),
)
"""DeepSpeed's timers, its pipeline engine, see_memory_usage, the printed configuration, and how its
launcher ends, as rank 0 writes them.

Source: DeepSpeed 0.19.8, utils/timer.py (ThroughputTimer, SynchronizedWallClockTimer),
runtime/pipe/engine.py, runtime/utils.py, runtime/config.py (print), launcher/launch.py. Samples are
those of the global batch; "GB" is 2**30. CurrSamplesPerSec is of the last step alone. A long name
of the configuration leaves no dots before its value."""


_TRAINER_MEMORY: Final = (
    "before_init_mem_gpu",
    "init_mem_gpu_alloc_delta",
    "train_mem_gpu_alloc_delta",
    "train_mem_gpu_peaked_delta",
)
_DICTIONARY: Final = re.compile(r"(\{'[^{}]+\})$")


def _trainer(match: re.Match[str]) -> tuple[Record, ...]:
    values = _dictionary(match[1])
    rate = positive(str(values.get("train_steps_per_second", "")))
    tokens = positive(str(values.get("train_tokens_per_second", "")))
    if rate is not None:
        whole = WholeRun(seconds=1.0 / rate, tokens_per_second_per_gpu=tokens)
        return (whole, *_trainer_peak(values), Mark.END)
    loss, epoch = (number(str(values.get(name, ""))) for name in ("loss", "epoch"))
    if loss is None or epoch is None:
        return ()
    so_far = () if tokens is None else (WholeRun(tokens_per_second=tokens),)
    return (LoggedLoss(value=loss, epoch=epoch), *so_far)


def _trainer_peak(values: dict[str, Any]) -> tuple[LoggedPeak, ...]:
    """The peak of training, of the rank that prints."""
    parts = [number(str(values.get(name, ""))) for name in _TRAINER_MEMORY]
    known = [part for part in parts if part is not None]
    if len(known) < len(_TRAINER_MEMORY) or not 0 <= sum(known) <= LARGEST:
        return ()
    return (LoggedPeak(number=0, allocated=round(sum(known))),)


def _dictionary(text: str) -> dict[str, Any]:
    try:
        values = ast.literal_eval(text.replace(": nan", ": 'nan'").replace(": inf", ": 'inf'"))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}


HUGGINGFACE: Final = LogReader(
    ("'loss':", "'train_steps_per_second':"),
    ((_DICTIONARY, _trainer),),
    r"[^{}\n]*\{'loss': '?-?[\d.]+(?:e-\d+)?'?, (?>[^{}\n]*?'epoch': )'?(\d+(?:\.\d+)?)()'?"
    r"(?:, [^{}\n]*)?\}",
)
"""Hugging Face's Trainer: a Python dictionary on a line, numbers in 4.x, quoted text in 5.x.

Source: transformers 4.57.1 and 5.23.0, trainer.py and trainer_callback.py. No step has a time of
its own: there is the mean over the whole run, at its end. Tokens per second are of all ranks with
a loss (include_num_input_tokens_seen), of one rank at the end (include_tokens_per_second, 4.x).
With skip_memory_metrics=False (trainer_utils.py, TrainerMemoryTracker) there are bytes: by how much
a stage ended above its begin, and its peak above its end."""


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
    rf"(?: ?\[[-: \d.]+\])? *(?:iteration +({COUNT})/ *{COUNT} \|(?: [^|:\n]+: [-+\d.E ]+\|)*? "
    r"global batch size: +(\d+) \|(?: [^|:\n]+: [-+\d.E ]+\|)* number of nan iterations: +0 \||"
    r"Step Time : [\d.]+s GPU utilization: [\d.]+MODEL_TFLOP/s/GPU)",
    r"(\[Rank \d{1,9}\]) \(after [1-9]\d{1,14} iterations\) memory \([MG]B\) \|[^\n\[(]*",
)
"""Lines of Megatron-LM, Bridge and Megatron-DeepSpeed: the iteration line of the last rank,
the memory lines of the ranks whose data-parallel rank is 0, the arguments of rank 0.

Source: Megatron-LM core_r0.11 to main d98e8a64, megatron/training/training.py (training_log) and
utils.py (report_memory); Megatron Bridge main 067f987, training/utils/train_utils.py, and 0.3.1,
training/train.py (Job throughput, a mean since the job's start, in its progress.txt) and
pretrain.py (its end). "MB" is 2**20 bytes in Megatron-LM, "GB" 10**9 in Bridge."""
