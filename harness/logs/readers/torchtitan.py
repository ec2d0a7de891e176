"""torchtitan's logger. tps is tokens per second of one GPU, memory the largest reserved since the
last line, GiB.

Source: torchtitan 0.1.0 to 0.3.0, components/metrics.py (log) and trainer.py. A loss of -1 stands
for "not on this rank" under pipeline parallelism.
"""

import re
from typing import Final

from harness.logs.records import (
    COUNT,
    NUMBER,
    LoggedStep,
    Mark,
    Peak,
    Record,
    number,
    positive,
    scaled_bytes,
    stamp,
)

_GIB: Final = 2**30
_STEP: Final = re.compile(
    rf"\[titan\] (\S+ \S+) - \w+ - INFO - step: ({COUNT}) loss: ({NUMBER})"
    rf"(?: grad_norm: {NUMBER})? "
    r"memory: (\d+\.\d+)GiB\(\d+\.\d+%\) tps: ([\d,]+) tflops: ([\d,]+\.\d+) "
    r"mfu: (?:\d+\.\d+%|N/A)$"
)
_FRAME: Final = re.compile(
    r"\[titan\] \S+ \S+ - \w+ - INFO - (Training starts at step \d+|Training completed)\.?(?:,|$)"
)
_ELSEWHERE: Final = -1.0


class TorchtitanReader:
    """Lines of torchtitan, of any rank that LOG_RANK selects."""

    anchors = ("[titan]",)

    def read(self, text: str) -> tuple[Record, ...]:
        """See Reader."""
        if match := _STEP.search(text):
            return _step(match)
        if match := _FRAME.search(text):
            return (Mark.START if "starts" in match[1] else Mark.END,)
        return ()


def _step(match: re.Match[str]) -> tuple[Record, ...]:
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
    return (step, Peak(number=step.number, reserved=reserved))
