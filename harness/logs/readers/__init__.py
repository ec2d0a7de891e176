"""One reader for each framework's lines. Examples of the lines: tests/harness/logs/lines.py."""

from typing import Final

from harness.logs.readers.frameworks import DEEPSPEED, HUGGINGFACE, MEGATRON, NEMO, TORCHTITAN
from harness.logs.records import LogFramework, LogReader

READERS: Final[dict[LogFramework, LogReader]] = {
    LogFramework.MEGATRON_LM: MEGATRON,
    LogFramework.NEMO: NEMO,
    LogFramework.TORCHTITAN: TORCHTITAN,
    LogFramework.DEEPSPEED: DEEPSPEED,
    LogFramework.HUGGINGFACE: HUGGINGFACE,
}
"""By what is found out, best first: one log may hold lines of several (a Trainer on DeepSpeed).
Megatron Bridge writes Megatron's line and two of its own."""
