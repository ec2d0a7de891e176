"""OpenRLHF 0.11: what of it is no row of configs/options/openrlhf.json.

Source: openrlhf 0.11.2 cli/train_ppo_ray.py, cli/train_sft.py, cli/train_dpo.py,
utils/deepspeed/deepspeed_utils.py, models/actor.py.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from advisor.frameworks.cycle_dialect import CycleReader, CycleSpelling, Made
from advisor.frameworks.deepspeed import framework as deepspeed
from advisor.frameworks.dialect import DialectJobs, dialect_parts
from advisor.frameworks.framework_parts import FrameworkParts
from advisor.frameworks.names import Framework
from advisor.frameworks.torch import stack
from advisor.job.job import Job
from advisor.models.options import CpCommType, TransformerImpl
from advisor.reading.read_configuration import Document, Keys

_PROGRAM: Final = re.compile(r"train_(ppo_ray|sft|dpo|rm)")
_PPO: Final = "ppo_ray"
_PROMPT: Final = "prompt_max_len"
_KL: Final = "algo.kl.init_coef"
_TOGETHER: Final = "train.colocate_all"
_SLEEP: Final = "vllm.enable_sleep"


class _Reader(CycleReader):
    """Dotted arguments of its programs."""

    framework = Framework.OPENRLHF
    label = "OpenRLHF"

    def find(self, document: Document) -> Iterator[Keys]:
        """With the program; a model under the actor's name."""
        for keys in super().find(document):
            program = _PROGRAM.search(" ".join(getattr(document, "texts", ())))
            keys.about["program"] = program[1] if program else _PPO
            if self.is_supervised(keys):
                self.put_supervised(keys)
            yield keys

    def is_supervised(self, keys: Keys) -> bool:
        """train_sft, train_rm and train_dpo generate nothing."""
        return keys.about["program"] != _PPO

    def made(self, keys: Keys, said: Mapping[str, Any]) -> Iterator[tuple[str, Made]]:
        """Engines sleep only where all share the GPUs; a reference waits where its own GPUs are not
        the actor's."""
        yield from super().made(keys, said)
        if prompt := keys.number(_PROMPT):  # of older releases, which had no data.max_len
            length = prompt + (said["rl.response_length"] or 1024)
            yield "job.seq_length", (length, (_PROMPT, "rollout.max_new_tokens"))
        if said["layout.context_parallel_size"] not in (None, 1):
            yield "layout.cp_comm_type", (CpCommType.P2P, ("ds.ring_attn_size",))
        program, lora = keys.about["program"], said["tuning.adapter"] == "lora"
        apart = keys.truth("ref.offload") or keys.has("ref.num_gpus_per_node")
        its = "adapter_off" if lora else "host" if apart else "gpu"
        if program == "dpo":
            yield "rl.algorithm", ("dpo", ())
            yield "rl.reference", (its, ("ref.offload",))
        if program != _PPO:
            return
        asked = str(keys.get(_KL) if keys.has(_KL) else 0.01)
        yield "rl.reference", (its if float(asked) else None, (_KL, "ref.offload"))
        together = keys.truth(_TOGETHER) is True
        engines = "vllm.num_engines"
        yield "rl.engine", ("vllm" if keys.number(engines) else None, (engines,))
        yield "rl.colocated", (together, (_TOGETHER,))
        yield "rl.sleep_level", (1 if together and keys.truth(_SLEEP) else None, (_SLEEP,))
        if not keys.truth(self.cycle.dynamic):
            yield "rl.log_prob_token_budget", (None, ())
        if said["rl.algorithm"] == "ppo" and keys.has("critic.num_gpus_per_node") and not together:
            yield "rl.critic_on_gpu", (False, ("critic.num_gpus_per_node",))

    def num_gpus(self, keys: Keys) -> int | None:
        """The actor's; of other programs the launcher's."""
        return super().num_gpus(keys) if keys.about["program"] == _PPO else keys.num_gpus


class _Jobs(DialectJobs, deepspeed.ZeroJobs):
    """DeepSpeed's."""


class _Settings(deepspeed.ZeroSettings):
    """Whose notes are on DeepSpeed's own checkpoints."""

    notes = stack.TorchSettings.notes


class _Spelling(CycleSpelling):
    """Its arguments."""

    def said(self, job: Job) -> dict[str, Any]:
        rl, said = job.config.rl, super().said(job)
        if said[READER.cycle.dynamic]:
            said["ds.packing_samples"] = True
        if rl.reference == "none" and rl.algorithm.rolls_out:
            said[_KL] = 0
        if rl.reference == "host":
            said["ref.offload"] = True
        if not rl.critic_on_gpu:
            said["critic.num_gpus_per_node"] = said["actor.num_gpus_per_node"]
        if rl.engine != "none":
            said["vllm.num_engines"] = max(1, job.num_gpus // rl.engine_tensor_parallel_size)
            said |= {_TOGETHER: rl.colocated, _SLEEP: rl.sleep_level > 0}
        return said


READER: Final = _Reader()


def parts() -> FrameworkParts:
    """DeepSpeed's, with transformers' layers."""
    return dialect_parts(
        READER,
        "0.11",
        deepspeed.FACTS,
        spelling=_Spelling,
        settings=_Settings,
        jobs=_Jobs,
        memory=deepspeed.ZeroMemory,
        impl=TransformerImpl.TRANSFORMERS,
        context_kinds=(CpCommType.P2P,),
    )
