"""slime: Megatron's command line, with options of its own in configs/options/slime.json.

Source: slime 624b824 slime/utils/arguments.py, slime/backends/megatron_utils.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec.structs import replace

from advisor.base.rule import Verdict
from advisor.frameworks.cycle_dialect import NODE, Made, product
from advisor.frameworks.dialect_rows import written
from advisor.frameworks.framework_parts import FrameworkParts
from advisor.frameworks.huggingface.training_arguments import words
from advisor.frameworks.megatron import cycle
from advisor.frameworks.megatron.framework import MegatronSpelling
from advisor.frameworks.megatron.lint.command_line import read_command
from advisor.frameworks.megatron.lint.settings import ReadSettings
from advisor.frameworks.megatron.options.table import option_of_flag
from advisor.frameworks.names import Framework
from advisor.frameworks.option import dashed
from advisor.job.job import Job
from advisor.reading.document_keys import Keys, near
from advisor.reading.read_configuration import Document, ReadConfiguration, Untaken
from advisor.reading.shell import ShellCommand

_DYNAMIC: Final = "use_dynamic_batch_size"
_BUDGET: Final = "max_tokens_per_gpu"
_LONGEST: Final = "rollout_max_context_len"
_BATCH: Final = ("global_batch_size", "num_steps_per_rollout", "rollout_batch_size")
_COLOCATED: Final = ("offload_train", "offload", "colocate")
_CLOSE: Final = 0.85
"""Likeness from which a flag is taken for a misspelt one."""
_DROPPED: Final = "{}: slime drops options that it does not know, without a word"


class _Reader(cycle.MegatronCycleReader):
    """Its train.py, which takes Megatron's options as well."""

    framework = Framework.SLIME
    label = "slime"
    model_key = "hf_checkpoint"

    def read(self, document: Document) -> Iterator[ReadConfiguration]:
        """Megatron's options, and what slime sets itself."""
        read = read_command(document) if isinstance(document, ShellCommand) else None
        for keys in self.find(document) if read is not None else ():
            self._put_own(read, keys)
            found = self._configuration(keys)
            one = self.on_megatron(self.framework, found, read)
            yield replace(one, unread=read.unread)

    def _put_own(self, read: ReadSettings, keys: Keys) -> None:
        """What its train.py sets, and that it drops what nobody knows."""
        values = read.given.values
        read.lent = {"use_distributed_optimizer": True, "bf16": not values.get("fp16")}
        if values.get("moe_token_dispatcher_type", "allgather") == "allgather":
            read.lent["moe_token_dispatcher_type"] = "alltoall"
        for name, value in read.lent.items():
            read.put_loose(name, value, f"slime's {name}", read.place)
        names = [dashed(row.name) for row in self.options if row.name[-1] != "*"]
        faults = [one for one in read.faults if one.rule != "unknown_option"]
        for key, given in keys.values.items():
            flag = given.written
            if self._row(key) is not None or not flag.startswith("--") or option_of_flag(flag):
                continue
            its = next((f for f in read.faults if f.place == given.place), None)
            meant = near(flag.replace("_", "-"), names, _CLOSE)
            fix = its.fix if its else f"did you mean {meant}?"
            if its or meant:
                read.refuse("unknown_option", _DROPPED.format(flag), fix, given.place)
                faults.append(replace(read.faults.pop(), verdict=Verdict.NO_EFFECT))
        read.faults = faults

    def untaken(self, keys: Keys) -> Iterator[Untaken]:
        """But Megatron's, which its own reader knows."""
        its = (one for one in super().untaken(keys) if not option_of_flag(one.written))
        yield from (one for one in its if one.written.startswith("--"))

    def made(self, keys: Keys, said: Mapping[str, Any]) -> Iterator[tuple[str, Made]]:
        """A global batch counts samples; a budget is that of one context-parallel rank."""
        ranks = keys.number("context_parallel_size") or 1
        budget = keys.number(_BUDGET) if keys.has(_DYNAMIC) else None
        if budget:
            yield "samples.token_budget", (budget, (_BUDGET,))
            yield "samples.pad_to_multiple_of", (128, ("data_pad_size_multiplier",))
            yield "job.micro_batch_size", (1, (_BUDGET,))
            yield "job.seq_length", (budget * ranks, (_BUDGET,))
        samples = (keys.number("rollout_batch_size") or 1) * (said["rl.num_generations"] or 1)
        batch = keys.number(_BATCH[0]) or samples // (keys.number(_BATCH[1]) or 1)
        yield "job.global_batch_size", (batch if any(map(keys.has, _BATCH)) else None, _BATCH)
        entropy = str(keys.get("entropy_coef") or 0)
        yield "head.implementation", ("slime", ())
        yield "head.entropy", (float(entropy) != 0, ("entropy_coef",))
        loss, estimator = "loss_type", "advantage_estimator"
        if keys.get(loss) == "sft_loss":
            yield from {path: (None, ()) for path in said if path.startswith("rl.")}.items()
            return
        yield "rl.algorithm", ("ppo" if keys.get(estimator) == "ppo" else "grpo", (estimator,))
        yield "rl.engine", ("sglang", ())
        shares = keys.has("colocate")
        away = shares or keys.has("offload") or keys.truth("offload_train") is True
        for name in ("params", "gradients", "optimizer"):
            yield f"rl.offload_{name}", (away, _COLOCATED)
        yield "rl.sleep_level", (1 if shares and not keys.has("no_offload") else 0, ("colocate",))
        kl = (keys.truth("use_kl_loss"), float(str(keys.get("kl_coef") or 0)))
        yield "rl.reference", ("host" if any(kl) else None, ("use_kl_loss", "kl_coef"))
        bucket = keys.number("update_weight_buffer_size") or 512 << 20
        yield "rl.weight_sync_bucket_bytes", (bucket, ("update_weight_buffer_size",))

    def recompute(self, keys: Keys) -> str | None:
        """Megatron's reader says it."""
        return None

    def num_gpus(self, keys: Keys) -> int | None:
        """The actor's."""
        return product(keys, "actor_num_nodes", "actor_num_gpus_per_node", usual=(1, NODE))


class _Spelling(MegatronSpelling):
    """Megatron's flags and its own."""

    def layout_flags(self, job: Job) -> str:
        """Both; a micro batch is left to the budget."""
        config, rl = job.config, job.config.rl
        nodes, rest = max(1, job.num_gpus // NODE), min(NODE, job.num_gpus)
        own = {
            "actor_num_nodes": nodes,
            "actor_num_gpus_per_node": rest,
            **written(Framework.SLIME, job),
        }
        prompts = max(1, config.global_batch_size // rl.num_generations)
        own |= {"rollout_batch_size": prompts}
        if config.samples.token_budget is not None:
            own |= {_DYNAMIC: True, _BUDGET: config.samples.token_budget}
        if rl.reference != "none":
            own["use_kl_loss"] = True
        said = {dashed(name)[2:]: value for name, value in own.items()}
        on = [f"--{name}" for name, value in said.items() if value is True]
        pairs = ((name, value) for name, value in said.items() if not isinstance(value, bool))
        return " ".join((words(pairs), *on, super().layout_flags(job)))


READER: Final = _Reader()


def parts() -> FrameworkParts:
    """Megatron-LM's."""
    return cycle.megatron_parts(Framework.SLIME, Framework.MEGATRON_LM, _Spelling)
