"""slime: Megatron's command line, with options of its own in configs/options/slime.json.

Source: slime 624b824 slime/utils/arguments.py, slime/backends/megatron_utils.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec.structs import replace

from advisor.base.rule import Verdict
from advisor.frameworks.cycle_dialect import Made, said_of, words_of
from advisor.frameworks.framework_parts import FrameworkParts
from advisor.frameworks.megatron import engine_dialect
from advisor.frameworks.megatron.framework import MegatronSpelling
from advisor.frameworks.megatron.lint.command_line import read_command
from advisor.frameworks.megatron.lint.settings import ReadSettings
from advisor.frameworks.megatron.options.table import option_of_flag
from advisor.frameworks.names import Framework
from advisor.frameworks.option import dashed
from advisor.job.job import Job
from advisor.reading.read_configuration import (
    Document,
    Keys,
    ReadConfiguration,
    Untaken,
    known,
    near,
)
from advisor.reading.shell import ShellCommand

_BATCH: Final = ("global_batch_size", "num_steps_per_rollout", "rollout_batch_size")
_CLOSE: Final = 0.85
"""Likeness from which a flag is taken for a misspelt one."""
_DROPPED: Final = "{}: slime drops options that it does not know, without a word"


class _Reader(engine_dialect.MegatronCycleReader):
    """Its train.py, which takes Megatron's options as well."""

    framework = Framework.SLIME
    label = "slime"

    def read(self, document: Document) -> Iterator[ReadConfiguration]:
        """Megatron's options, and what slime sets itself."""
        read = read_command(document) if isinstance(document, ShellCommand) else None
        if read is None:
            return
        for keys in self.find(document):
            for row in self.rows:  # a switch before a word that is not known
                switch = row.kind is bool and keys.has(row.name)
                if switch and not known(keys.values[row.name].value):
                    keys.values[row.name] = keys.means(row.name, True)
            self._put_own(read, keys)
            found = super(engine_dialect.MegatronCycleReader, self)._configuration(keys)
            one = self.on_megatron(str(self.framework), found, read)
            yield replace(one, unread=read.unread)

    def _put_own(self, read: ReadSettings, keys: Keys) -> None:
        """What its train.py sets, and that it drops what nobody knows."""
        values = read.given.values
        read.lent = {"use_distributed_optimizer": True, "bf16": not values.get("fp16")}
        if values.get("moe_token_dispatcher_type", "allgather") == "allgather":
            read.lent["moe_token_dispatcher_type"] = "alltoall"
        read.put_loose("create_attention_mask_in_dataloader", False, "slime packs", read.place)
        for name, value in read.lent.items():
            read.put_loose(name, value, f"slime's {name}", read.place)
        names = [dashed(row.name) for row in self.options if row.name[-1] != "*"]
        misspelt = {one.place: one.fix for one in read.faults if one.rule == "unknown_option"}
        read.faults = [one for one in read.faults if one.rule != "unknown_option"]
        for key, given in keys.values.items():
            flag = given.written
            if self.row_of(key) is None and flag.startswith("--") and not option_of_flag(flag):
                meant = near(flag.replace("_", "-"), names, _CLOSE)
                fix = f"did you mean {meant}?" if meant else misspelt.get(given.place)
                if fix is not None:
                    read.refuse("unknown_option", _DROPPED.format(flag), fix, given.place)
                    read.faults.append(replace(read.faults.pop(), verdict=Verdict.NO_EFFECT))

    def untaken(self, keys: Keys) -> Iterator[Untaken]:
        """But Megatron's, which its own reader knows."""
        flags = (one for one in super().untaken(keys) if one.written.startswith("--"))
        yield from (one for one in flags if not option_of_flag(one.written))

    def is_supervised(self, keys: Keys) -> bool:
        return str(keys.get("loss_type")) == "sft_loss"

    def made(self, keys: Keys, said: Mapping[str, Any]) -> Iterator[tuple[str, Made]]:
        """A global batch counts samples; a budget is that of one context-parallel rank."""
        if keys.truth("colocate") or keys.truth("offload"):  # which a switch may take back
            for name in ("params", "gradients", "optimizer"):
                yield (
                    f"rl.offload_{name}",
                    (keys.truth("offload_train") is not False, ("colocate", "offload")),
                )
        asleep = keys.truth("colocate") and not keys.has("no_offload")
        yield "rl.sleep_level", (1 if asleep else None, ("colocate",))
        budget = said["samples.token_budget"]
        if keys.truth("use_dynamic_batch_size") and budget:
            ranks = keys.number("context_parallel_size") or 1
            yield "job.seq_length", (budget * ranks, ("max_tokens_per_gpu",))
        samples = (keys.number(_BATCH[2]) or 1) * (said["rl.num_generations"] or 1)
        batch = keys.number(_BATCH[0]) or samples // (keys.number(_BATCH[1]) or 1)
        yield "job.global_batch_size", (batch if any(map(keys.has, _BATCH)) else None, _BATCH)
        yield from super().made(keys, said)


class _Spelling(MegatronSpelling):
    """Megatron's flags and its own."""

    def layout_flags(self, job: Job) -> str:
        rl = job.config.rl
        said = said_of(Framework.SLIME, job)
        said["rollout_batch_size"] = max(1, job.config.global_batch_size // rl.num_generations)
        return f"{words_of(Framework.SLIME, said, job)} {super().layout_flags(job)}"


READER: Final = _Reader()


def parts() -> FrameworkParts:
    """Megatron-LM's."""
    return engine_dialect.megatron_parts(READER, Framework.SLIME, _Spelling, Framework.MEGATRON_LM)
