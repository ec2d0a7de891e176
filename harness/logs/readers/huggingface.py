"""Hugging Face's Trainer: a Python dictionary on a line, numbers in 4.x, quoted text in 5.x.

Source: transformers 4.57.1 and 5.23.0, trainer.py and trainer_callback.py. No step has a time of
its own: there is the mean over the whole run, at its end.
"""

import ast
import re
from typing import Any, Final

from harness.logs.records import Loss, Mark, Record, WholeRun, number, positive

_DICTIONARY: Final = re.compile(r"(\{'[^{}]+\})$")


class HuggingFaceReader:
    """Dictionaries of losses, and that of the end."""

    anchors = ("'loss':", "'train_steps_per_second':")

    def read(self, text: str) -> tuple[Record, ...]:
        """See Reader."""
        match = _DICTIONARY.search(text)
        values = _dictionary(match[1]) if match else {}
        rate = positive(str(values.get("train_steps_per_second", "")))
        if rate is not None:
            return (WholeRun(seconds=1.0 / rate), Mark.END)
        loss, epoch = (number(str(values.get(name, ""))) for name in ("loss", "epoch"))
        return () if loss is None or epoch is None else (Loss(value=loss, epoch=epoch),)


def _dictionary(text: str) -> dict[str, Any]:
    try:
        values = ast.literal_eval(text.replace(": nan", ": 'nan'").replace(": inf", ": 'inf'"))
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return {}
    return values if isinstance(values, dict) else {}
