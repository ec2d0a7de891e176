"""Every framework's reader of configurations, in the order in which they are asked."""

from functools import cache
from importlib import import_module

from advisor.frameworks.dialect_rows import dialect_names, dialect_of
from advisor.reading.read_configuration import Document, Reader


@cache
def readers() -> tuple[Reader, ...]:
    """One for each family of frameworks."""
    from advisor.frameworks.deepspeed.reader import DeepSpeedReader
    from advisor.frameworks.huggingface.reader import HuggingFaceReader
    from advisor.frameworks.megatron.lint.reader import MegatronReader
    from advisor.frameworks.torchtitan.reader import TorchTitanReader

    return MegatronReader(), TorchTitanReader(), DeepSpeedReader(), HuggingFaceReader()


@cache
def _dialect(name: str) -> Reader:
    reader: Reader = import_module(f"advisor.frameworks.{name}.framework").READER
    return reader


def readers_of(document: Document, name: str = "") -> tuple[Reader, ...]:
    """Those that are asked of a document: of a dialect's its own reader, and DeepSpeed's, whose
    file it may hold. name: of the dialect, where another document tells it."""
    dialect = name or dialect_of(document)
    return (_dialect(dialect), readers()[2]) if dialect in dialect_names() else readers()
