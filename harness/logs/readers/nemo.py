"""NeMo 2 (Lightning's ProgressPrinter) and NeMo 1 (a tqdm bar).

Source: NVIDIA/NeMo 8cfedd72, nemo/lightning/pytorch/callbacks/progress_printer.py; iterations are
counted from 0, values have four significant digits, memory is in bytes.
"""

import re
from typing import Final

from harness.logs.records import (
    COUNT,
    LoggedStep,
    Peak,
    Record,
    number,
    pairs,
    positive,
    scaled_bytes,
)

_LINE: Final = re.compile(rf"\bTraining epoch \d+, iteration ({COUNT})/({COUNT}) \| (.+)$")
_BAR: Final = re.compile(rf"\bEpoch \d+: [^\[]*\| ?({COUNT})/({COUNT}) \[[^\],]*, ([^\]]+)\]$")
_SECONDS: Final = "train_step_timing in s"
_LOSS: Final = "reduced_train_loss"
_NUMERIC: Final = (_SECONDS, _LOSS, "global_step", "TFLOPS_per_GPU")
_ALLOCATED, _RESERVED = "max_memory_allocated", "max_memory_reserved"


class NemoReader:
    """Lines of NeMo 2, and the progress bar of NeMo 1."""

    anchors = (_SECONDS,)

    def read(self, text: str) -> tuple[Record, ...]:
        """See Reader."""
        if match := _LINE.search(text):
            return _read(int(match[1]) + 1, int(match[2]) + 1, pairs(match[3], " | ", ":"))
        if match := _BAR.search(text):
            return _read(int(match[1]), int(match[2]), pairs(match[3], ", ", "="))
        return ()


def _read(step: int, total: int, fields: dict[str, str] | None) -> tuple[Record, ...]:
    if fields is None or any(number(fields[name]) is None for name in _NUMERIC if name in fields):
        return ()
    seconds = positive(fields.get(_SECONDS, ""))
    if seconds is None:
        return ()
    loss = number(fields[_LOSS]) if _LOSS in fields else None
    rate = positive(fields.get("TFLOPS_per_GPU", ""))
    logged = LoggedStep(number=step, total=total, seconds=seconds, tflops_per_gpu=rate, loss=loss)
    allocated, reserved = (
        scaled_bytes(fields.get(name, ""), 1) for name in (_ALLOCATED, _RESERVED)
    )
    if allocated is None and reserved is None:
        return (logged,)
    return (logged, Peak(number=step, allocated=allocated, reserved=reserved))
