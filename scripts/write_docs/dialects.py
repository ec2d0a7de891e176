"""What each dialect calls an idea and has as its default, from the rows of its file."""

from typing import Final

from advisor.frameworks.dialect_rows import Row, rows_of
from advisor.frameworks.names import Framework
from advisor.frameworks.registry import label_of

TRAINERS: Final = (
    Framework.TRL,
    Framework.LLAMA_FACTORY,
    Framework.AXOLOTL,
    Framework.MS_SWIFT,
    Framework.MEGATRON_SWIFT,
    Framework.AUTOMODEL,
)
ENGINES: Final = (
    Framework.VERL,
    Framework.NEMO_RL,
    Framework.SLIME,
    Framework.PRIME_RL,
    Framework.OPENRLHF,
)
IDEAS: Final = {
    "micro batch": ("job.micro_batch_size", "per_device_train_batch_size"),
    "length": ("job.seq_length",),
    "recompute": ("recompute", "gradient_checkpointing"),
    "packing": ("samples.packing",),
    "budget of tokens": ("samples.token_budget",),
    "adapter": ("tuning.adapter",),
    "rank": ("tuning.rank",),
    "targets": ("tuning.target_modules",),
    "dropout of the adapter": ("tuning.dropout",),
    "4 or 8 bits": ("tuning.base_weights",),
    "head": ("head.implementation",),
    "algorithm": ("rl.algorithm",),
    "responses to a prompt": ("rl.num_generations",),
    "length of a response": ("rl.response_length",),
    "memory of the engine": ("rl.gpu_memory_utilization",),
    "sleep of the engine": ("rl.sleep_level",),
}
"""Fields of ours, or options of the framework below, in the order of the table."""


def table(dialects: tuple[Framework, ...]) -> str:
    """Ideas that one of them has a word for; under the word its default where it is left out."""
    heads = ["idea", *(label_of(name) for name in dialects)]
    lines = [heads, ["---"] * len(heads)]
    for idea, paths in IDEAS.items():
        cells = [_cell(name, paths) for name in dialects]
        if any(cells):
            lines.append([idea, *cells])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(name: Framework, paths: tuple[str, ...]) -> str:
    its = (row for row in rows_of(name) if {row.ours, row.named} & {*paths})
    rows = (row for row in its if row.printed or row.default is not None)
    return "<br>".join(dict.fromkeys(map(_words, rows)))


def _words(row: Row) -> str:
    default = str(row.default).lower() if isinstance(row.default, bool) else row.default
    return f"`{row.name}`" + ("" if default is None else f" = {default}")
