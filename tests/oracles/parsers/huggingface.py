"""transformers' HfArgumentParser over TrainingArguments; nothing is replaced."""

import shlex

from .megatron_lm import environment


def accept(question: str) -> None:
    """Raise what the program raises on options."""
    from transformers import HfArgumentParser, TrainingArguments

    brought, line = question.split("\n")
    with environment(["1", *shlex.split(brought)[1:]]):  # one process parses
        others = ["--output_dir", "out", "--use_cpu", "True"]
        HfArgumentParser(TrainingArguments).parse_args_into_dataclasses([*shlex.split(line), *others])
