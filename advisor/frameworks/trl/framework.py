"""TRL 1.16: what of it is no row of configs/options/trl.json.

Source: trl 1.16.0 trainer/sft_trainer.py, dpo_trainer.py, grpo_trainer.py, generation/.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Final

from advisor.base.dtypes import DType
from advisor.base.rule import Match
from advisor.frameworks.framework_parts import FrameworkParts
from advisor.frameworks.huggingface import trainer_dialect as trainer
from advisor.frameworks.huggingface.framework import TrainerSettings
from advisor.frameworks.huggingface.options import CHECKPOINTING
from advisor.frameworks.names import Framework
from advisor.frameworks.torch.rules import Rules, stated
from advisor.job.job import Job
from advisor.job.reinforcement import Algorithm, Reference
from advisor.job.tuning import StoredAs
from advisor.reading.read_configuration import Document, Keys

_PROGRAM: Final = re.compile(r"\b(sft|dpo|grpo|kto|rloo|reward|ppo|distillation)(?:\.py)?(?= |$)")
_TRAINER: Final = "trainer"
_PROMPT: Final = 512
"""Tokens of a prompt, whose length no option limits, where max_prompt_length of older releases is
not given: its default."""


class _Reader(trainer.TrainerDialectReader):
    """Its configurations in Python, and the options and files of its programs."""

    framework = Framework.TRL
    label = "TRL"
    weighs = False

    @classmethod
    def unknown_keys(cls, keys: Keys) -> Iterator[Match]:
        """Near one that it knows: a program may have others of its own."""
        known = {row.name for row in cls.options}
        found = (one for one in super().unknown_keys(keys) if one.found not in known)
        return (one for one in found if one.fix.startswith("did you"))

    def find(self, document: Document) -> Iterator[Keys]:
        """With the trainer, which the program or the class names."""
        for keys in super().find(document):
            program = _PROGRAM.search(" ".join(getattr(document, "texts", ())))
            named = program[1] if program else keys.about.get("call", "").removesuffix("Config")
            if named not in ("", "TrainingArguments"):
                keys.put(_TRAINER, named.lower(), keys.place, f"TRL's {named}")
            if keys.has("max_seq_length") and not any(map(keys.has, CHECKPOINTING)):
                keys.put(CHECKPOINTING[1], False, keys.place, "TRL before 0.20")
            yield keys

    def derived(self, keys: Keys, said: Mapping[str, Any]) -> dict[str, Any]:
        """What is generated follows a prompt; QLoRA's adapters are in 16 bits; its own programs
        load weights in fp32 (ModelConfig)."""
        found = super().derived(keys, said)
        algorithm = said.get("rl.algorithm")
        if algorithm == Algorithm.GRPO:
            length = said["rl.response_length"] + (keys.number("max_prompt_length") or _PROMPT)
            found["job.seq_length"] = keys.number("vllm_max_model_length") or length
        elif algorithm is not None and not keys.has("max_length"):  # None: samples as they are
            found["job.seq_length"] = 1024
        if said.get("tuning.base_weights") == StoredAs.NF4:
            found["tuning.adapter_dtype"] = DType.BF16
        elif (
            "tuning.base_weights" not in said
            and keys.about["kind"] != "python"
            and keys.has(_TRAINER)
        ):
            found["job.weights_dtype"] = DType.FP32
        return found


class _Spelling(trainer.DialectSpelling):
    """GRPO's lengths are of what is generated."""

    def finished(self, said: dict[str, Any], job: Job) -> dict[str, Any]:
        """Without the length of a sample where no option says it; with a reference, its weight."""
        if job.config.rl.algorithm is Algorithm.GRPO:
            said.pop("max_length", None)
            if job.config.rl.reference is not Reference.NONE:
                said["beta"] = 0.04
        return said


class _Settings(TrainerSettings):
    """Ranks share no sequences that are generated or packed."""

    own_rules: ClassVar[Rules] = {**TrainerSettings.own_rules, **stated("trl", {})}


READER: Final = _Reader()


def parts() -> FrameworkParts:
    """What the registry asks for."""
    return trainer.trainer_parts(
        READER, "1.16", spelling=_Spelling, settings=_Settings, offloads_all=True
    )
