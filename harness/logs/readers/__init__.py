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
"""Best first: a log may hold lines of several. Bridge writes Megatron's and its own."""
