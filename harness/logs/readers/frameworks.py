"""Megatron, NeMo, torchtitan, DeepSpeed, and Hugging Face's Trainer: what each line of their logs
says. What the lines look like, and where that was read, is in configs/logs/lines.yaml."""

import ast
import math
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import partial
from typing import Any, Final

from advisor.base.configuration import load_yaml, packaged_configs
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

_FORMATS: Final[Mapping[str, Any]] = load_yaml(packaged_configs() / "logs" / "lines.yaml").values
Says = Callable[[re.Match[str]], tuple[Record, ...]]


def _reader(framework: str, **says: Says) -> LogReader:
    """The reader of a framework's lines: what each of them, by its name in the file, says."""
    one = _FORMATS[framework]
    lines = tuple((re.compile(_filled(text)), says[name]) for name, text in one["lines"].items())
    whole = {name: _filled(one[name]) for name in ("steady", "lasting") if name in one}
    return LogReader(tuple(one["anchors"]), lines, **whole)


def _filled(pattern: str) -> str:
    return pattern.replace("<COUNT>", COUNT).replace("<NUMBER>", NUMBER)


def _argument(match: re.Match[str]) -> tuple[Record, ...]:
    return (Argument(name=match[1], value=match[2]),)


def _end(_: re.Match[str]) -> tuple[Record, ...]:
    return (Mark.END,)


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


NEMO: Final = _reader("nemo", line=partial(_nemo, 0, " | ", ":"), bar=partial(_nemo, 1, ", ", "="))
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


TORCHTITAN: Final = _reader(
    "torchtitan",
    step=_titan_step,
    frame=lambda match: (Mark.START if "starts" in match[1] else Mark.END,),
)
_OF_A_STEP: Final = ("fwd", "bwd", "step")


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
    if "batch_input" in fields:
        return (Timers(seconds=None),)
    parts = [number(fields.get(name, "")) for name in _OF_A_STEP]
    known = [part for part in parts if part is not None and math.isfinite(part)]
    if len(known) < len(_OF_A_STEP) or not 0 < sum(known) <= LARGEST:
        return ()
    return (Timers(seconds=sum(known) / 1e3),)


def _pipeline(match: re.Match[str]) -> tuple[Record, ...]:
    step = LoggedStep(number=int(match[1]), seconds=positive(match[3]), loss=number(match[2]))
    return () if step.seconds is None else (step,)


DEEPSPEED: Final = _reader(
    "deepspeed",
    timer=_timer,
    wall_clock=_wall_clock,
    pipeline=_pipeline,
    usage=lambda match: (LoggedPeak(number=0, rank=0, allocated=scaled_bytes(match[1], _GIB)),),
    configured=_argument,
    done=_end,
)
_TRAINER_MEMORY: Final = (
    *("before_init_mem_gpu", "init_mem_gpu_alloc_delta"),
    *("train_mem_gpu_alloc_delta", "train_mem_gpu_peaked_delta"),
)


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


HUGGINGFACE: Final = _reader("huggingface", dictionary=_trainer)
_MIB: Final = 2**20
_GB: Final = 10**9
_FIRST_WHOLE_PEAK: Final = 2
"""The peak after iteration 1 comes before the optimizer's state is there."""
_TIME: Final = "elapsed time per iteration (ms)"
_THROUGHPUT: Final = ("throughput per GPU (TFLOP/s/GPU)", "TFLOPs")  # Megatron-DeepSpeed's is short
_LOSS: Final = "lm loss"
_NAN: Final = "number of nan iterations"
_SKIPPED: Final = "number of skipped iterations"
_NORM: Final = "grad norm"
_BATCH: Final = "global batch size"
_NUMERIC: Final = (_TIME, *_THROUGHPUT, _LOSS, _NAN, _SKIPPED, _NORM, _BATCH, "consumed samples")


def _iteration(match: re.Match[str]) -> tuple[Record, ...]:
    """The averages over the log interval, and the batch, as a ramp of it may go on."""
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


MEGATRON: Final = _reader(
    "megatron",
    iteration=_iteration,
    memory=lambda match: _peak(match, match[3], match[4], _MIB),
    bridge_memory=_bridge_peak,
    bridge_step=_bridge_step,
    job=_job,
    argument=_argument,
    world=lambda match: (Mark.START, Argument(name="world_size", value=match[1])),
    exit=_end,
)
