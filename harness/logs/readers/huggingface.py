"""Hugging Face's Trainer: a Python dictionary on a line, numbers in 4.x, quoted text in 5.x.

Source: transformers 4.57.1 and 5.23.0, trainer.py and trainer_callback.py. No step has a time of
its own: there is the mean over the whole run, at its end. Tokens per second are of all ranks with
a loss (include_num_input_tokens_seen), of one rank at the end (include_tokens_per_second, 4.x).
With skip_memory_metrics=False (trainer_utils.py, TrainerMemoryTracker) there are bytes: by how much
a stage ended above its begin, and its peak above its end.
"""

import ast
import re
from typing import Any, Final

from advisor.base.limits import LARGEST
from harness.logs.records import Loss, Mark, Peak, Record, WholeRun, number, positive

_MEMORY: Final = (
    "before_init_mem_gpu",
    "init_mem_gpu_alloc_delta",
    "train_mem_gpu_alloc_delta",
    "train_mem_gpu_peaked_delta",
)
_DICTIONARY: Final = re.compile(r"(\{'[^{}]+\})$")


class HuggingFaceReader:
    """Dictionaries of losses, and that of the end."""

    anchors = ("'loss':", "'train_steps_per_second':")

    def read(self, text: str) -> tuple[Record, ...]:
        """See Reader."""
        match = _DICTIONARY.search(text)
        values = _dictionary(match[1]) if match else {}
        rate = positive(str(values.get("train_steps_per_second", "")))
        tokens = positive(str(values.get("train_tokens_per_second", "")))
        if rate is not None:
            whole = WholeRun(seconds=1.0 / rate, tokens_per_second_per_gpu=tokens)
            return (whole, *_peak(values), Mark.END)
        loss, epoch = (number(str(values.get(name, ""))) for name in ("loss", "epoch"))
        if loss is None or epoch is None:
            return ()
        so_far = () if tokens is None else (WholeRun(tokens_per_second=tokens),)
        return (Loss(value=loss, epoch=epoch), *so_far)


def _peak(values: dict[str, Any]) -> tuple[Peak, ...]:
    """The peak of training, of the rank that prints."""
    parts = [number(str(values.get(name, ""))) for name in _MEMORY]
    known = [part for part in parts if part is not None]
    if len(known) < len(_MEMORY) or not 0 <= sum(known) <= LARGEST:
        return ()
    return (Peak(number=0, allocated=round(sum(known))),)


def _dictionary(text: str) -> dict[str, Any]:
    try:
        values = ast.literal_eval(text.replace(": nan", ": 'nan'").replace(": inf", ": 'inf'"))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}
