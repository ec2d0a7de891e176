"""Every framework's reader of configurations, in the order in which they are asked; one is loaded
for a document that it may understand."""

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import Final

from advisor.frameworks.dialect_rows import dialect_names, dialect_of, may_read
from advisor.reading.read_configuration import Document, Reader

FAMILIES: Final = {
    "megatron": ("megatron.lint.reader", "MegatronReader"),
    "torchtitan": ("torchtitan.reader", "TorchTitanReader"),
    "deepspeed": ("deepspeed.reader", "DeepSpeedReader"),
    "huggingface": ("huggingface.reader", "HuggingFaceReader"),
}
"""Frameworks that are no dialects, with the module and the class of their readers."""


@cache
def reader_of(family: str) -> Reader:
    """Of one of FAMILIES."""
    module, name = FAMILIES[family]
    reader: Reader = getattr(import_module(f"advisor.frameworks.{module}"), name)()
    return reader


def readers_of(document: Document, name: str = "") -> Iterator[Reader]:
    """Those that are asked of a document: of a dialect's its own reader, and DeepSpeed's, whose
    file it may hold. name: of the dialect, where another document tells it."""
    dialect = name or dialect_of(document)
    if known := dialect in dialect_names():
        yield import_module(f"advisor.frameworks.{dialect}.framework").READER
    families = ("deepspeed",) if known else FAMILIES
    yield from (reader_of(family) for family in families if may_read(family, document))
