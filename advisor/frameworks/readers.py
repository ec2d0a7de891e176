"""Every framework's reader of configurations, in the order in which they are asked; one is loaded
for a document that it may understand."""

import re
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from typing import Final, NamedTuple

from advisor.frameworks.dialect_rows import dialect_names, dialect_of
from advisor.reading.document_tree import Tree
from advisor.reading.read_configuration import Document, Reader
from advisor.reading.shell import ShellCommand


class Family(NamedTuple):
    """A reader by its module and class, and lines without which it finds nothing: of a command's
    words and variables, of a tree's format and the keys at its top, of what Python imports and
    calls and the keys of its dictionaries."""

    module: str
    reader: str
    command: str
    tree: str
    python: str

    def may_read(self, document: Document) -> bool:
        """Whether its reader may find something in a document."""
        if isinstance(document, ShellCommand):
            pattern, lines = self.command, (*document.texts, *document.environment)
        elif isinstance(document, Tree):
            pattern, lines = self.tree, (document.format, *map(str, document.values))
        else:
            held = (v.value for way in document.ways for v in way.assigned.values())
            keys = (str(key) for one in held if isinstance(one, dict) for key in one)
            calls = (call.name for way in document.ways for call in way.calls)
            pattern, lines = self.python, (*document.imports, *calls, *keys)
        return re.search(f"(?m){pattern}", "\n".join(lines)) is not None


@cache
def reader_of(module: str, name: str) -> Reader:
    """A reader by its module and class."""
    reader: Reader = getattr(import_module(f"advisor.frameworks.{module}"), name)()
    return reader


_CHECKPOINTS: Final = "(?:gradient|activation)[_-]check"
_OF_DEEPSPEED: Final = "^(?:train_(?:micro_)?batch_size|zero_|activation_checkpointing$)"
_DEEPSPEED: Final = Family(
    "deepspeed.reader", "DeepSpeedReader", "(?!)", rf"\Ajson\Z|{_OF_DEEPSPEED}", _OF_DEEPSPEED
)
FAMILIES: Final = (
    Family(
        "megatron.lint.reader",
        "MegatronReader",
        r"^--(?:recompute|num-(?:la|att)|micro-b|train-i|transformer-i|use-dist|[a-z-]+-parallel)"
        r"|^\+*[\w.]*(?:model|strategy|mixed_precision)(?:\.\w+)*="
        r"|(?:run_script|run_recipe|bootstrap|setup_experiment)\.py$"
        r"|\A(?![\s\S]*^(?:accelerate$|deepspeed$|.*torchtitan"
        rf"|--(?:{_CHECKPOINTS}|gradient[_-]accumulation|per[_-]device)))"
        r"(?:-|[\s\S]*(?:^--[a-z0-9]+-|(?:train|finetune)\w*\.py))",
        r"\A(?!toml)[\s\S]*^(?:MODEL_ARGS|(?:language_)?model|tensor_model_parallel_size|num_layers"
        r"|(?:recompute|activations_checkpoint)_granularity)$",
        r"^(?:megatron\.bridge|nemo(?:_run)?(?:\.|$))",
    ),
    Family(
        "torchtitan.reader",
        "TorchTitanReader",
        r"^activation[_-]checkpoint:|^--(?:activation[_-]checkpoint|parallelism|training|job)\."
        r"|^CONFIG_FILE$|run_train|torchtitan",
        r"\Atoml$",
        r"^torchtitan\.",
    ),
    _DEEPSPEED,
    Family(
        "huggingface.reader",
        "HuggingFaceReader",
        rf"^(?:accelerate$|--(?:no_)?(?:{_CHECKPOINTS}|fsdp|per[_-]device))",
        rf"^(?:{_CHECKPOINTS}pointing|fsdp|per_device|deepspeed_config|distributed_type|compute_env)",
        "(?:Arguments|Config|checkpointing_enable|Plugin|RecipeKwargs)$",
    ),
)


def readers_of(document: Document, name: str = "") -> Iterator[Reader]:
    """Those that are asked of a document: of a dialect's its own reader, and DeepSpeed's, whose
    file it may hold. name: of the dialect, where another document tells it."""
    dialect = name or dialect_of(document)
    if dialect in dialect_names():
        yield import_module(f"advisor.frameworks.{dialect}.framework").READER
    for one in (_DEEPSPEED,) if dialect in dialect_names() else FAMILIES:
        if one.may_read(document):
            yield reader_of(one.module, one.reader)
