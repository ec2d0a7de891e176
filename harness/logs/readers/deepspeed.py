"""DeepSpeed's timers, its pipeline engine, see_memory_usage, the printed configuration, and how its
launcher ends.

Source: DeepSpeed 0.19.8, utils/timer.py (ThroughputTimer, SynchronizedWallClockTimer),
runtime/pipe/engine.py, runtime/utils.py, runtime/config.py (print), launcher/launch.py. Samples are
those of the global batch; "GB" is 2**30. CurrSamplesPerSec is of the last step alone. A long name
of the configuration leaves no dots before its value.
"""

import math
import re
from typing import Final

from advisor.base.limits import LARGEST
from harness.logs.records import (
    COUNT,
    NUMBER,
    Argument,
    LoggedStep,
    Mark,
    Peak,
    Record,
    Timers,
    number,
    pairs,
    positive,
    scaled_bytes,
    stamp,
)

_GIB: Final = 2**30
_TIMER: Final = re.compile(
    rf"\[([\d-]+ [\d:,]+)\] \[INFO\] \[timer\.py:\d+:\w+\] epoch=\d+/micro_step=\d+/"
    rf"global_step=({COUNT}), RunningAvgSamplesPerSec={NUMBER}, CurrSamplesPerSec=({NUMBER}), "
    rf"MemAllocated={NUMBER}GB, MaxMemAllocated=({NUMBER})GB$"
)
_PIPELINE: Final = re.compile(
    rf"\bsteps: ({COUNT}) loss: ({NUMBER}) (?:\w+: {NUMBER} )*iter time \(s\): ({NUMBER}) "
    rf"samples/sec: ({NUMBER})$"
)
_USAGE: Final = re.compile(r"\bMA [\d.]+ GB Max_MA ([\d.]+) GB CA [\d.]+ GB Max_CA [\d.]+ GB$")
_DONE: Final = re.compile(r"\[launch\.py:\d+:main\] Process \d+ exits successfully\.$")
_WALL_CLOCK: Final = re.compile(
    rf"(?:^|\[Rank 0\] )time \(ms\)((?: \| \w+: {NUMBER})+)$"  # wall_clock_breakdown
)
_OF_A_STEP: Final = ("fwd", "bwd", "step")
_OF_A_PIPELINE: Final = "batch_input"
_ARGUMENT: Final = re.compile(r"\[config\.py:\d+:print\] (\w+) (?:\.+ )?(.+)$")


class DeepSpeedReader:
    """Lines of DeepSpeed's engines, as rank 0 writes them."""

    anchors = (
        "global_step=",
        "time (ms) |",
        "samples/sec:",
        "Max_MA",
        ":print]",
        "exits successfully",
    )

    def read(self, text: str) -> tuple[Record, ...]:
        """See Reader."""
        if match := _TIMER.search(text):
            return _timer(match)
        if match := _WALL_CLOCK.search(text):
            return _wall_clock(match[1])
        if match := _PIPELINE.search(text):
            return _pipeline(match)
        if match := _USAGE.search(text):
            return (Peak(number=0, rank=0, allocated=scaled_bytes(match[1], _GIB)),)
        if match := _ARGUMENT.search(text):
            return (Argument(name=match[1], value=match[2]),)
        return (Mark.END,) if _DONE.search(text) else ()


def _timer(match: re.Match[str]) -> tuple[Record, ...]:
    rate, allocated = positive(match[3]), scaled_bytes(match[4], _GIB)
    if rate is None or allocated is None:
        return ()
    step = LoggedStep(number=int(match[2]), samples_per_second=rate, stamp=stamp(match[1]))
    return (step, Peak(number=step.number, rank=0, allocated=allocated))


def _wall_clock(rest: str) -> tuple[Record, ...]:
    """The timers of a whole step; those of its micro steps have other names, and one of them is of
    the pipeline engine alone, which resets its timers where it prints them."""
    fields = pairs(rest, " | ", ":") or {}
    if _OF_A_PIPELINE in fields:
        return (Timers(seconds=None),)
    parts = [number(fields.get(name, "")) for name in _OF_A_STEP]
    known = [part for part in parts if part is not None and math.isfinite(part)]
    if len(known) < len(_OF_A_STEP) or not 0 < sum(known) <= LARGEST:
        return ()
    return (Timers(seconds=sum(known) / 1e3),)


def _pipeline(match: re.Match[str]) -> tuple[Record, ...]:
    seconds = positive(match[3])
    if seconds is None:
        return ()
    return (LoggedStep(number=int(match[1]), seconds=seconds, loss=number(match[2])),)
