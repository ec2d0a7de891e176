"""One reader for each framework's lines. Examples of the lines: tests/harness/logs/lines.py."""

from typing import Final

from harness.logs.readers.deepspeed import DeepSpeedReader
from harness.logs.readers.huggingface import HuggingFaceReader
from harness.logs.readers.megatron import MegatronReader
from harness.logs.readers.nemo import NemoReader
from harness.logs.readers.torchtitan import TorchtitanReader
from harness.logs.records import LogFramework, Reader

READERS: Final[dict[LogFramework, Reader]] = {
    LogFramework.MEGATRON_LM: MegatronReader(),
    LogFramework.NEMO: NemoReader(),
    LogFramework.TORCHTITAN: TorchtitanReader(),
    LogFramework.DEEPSPEED: DeepSpeedReader(),
    LogFramework.HUGGINGFACE: HuggingFaceReader(),
}
"""By what is found out, best first: one log may hold lines of several (a Trainer on DeepSpeed)."""


def reader_of(framework: LogFramework) -> Reader:
    """The reader of a framework; Megatron Bridge writes Megatron's line and two of its own."""
    if framework is LogFramework.MEGATRON_BRIDGE:
        return READERS[LogFramework.MEGATRON_LM]
    return READERS[framework]
