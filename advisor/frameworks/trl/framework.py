"""TRL 1.16: what of it is no row of configs/options/trl.json.

Source: trl 1.16.0 trainer/sft_trainer.py, dpo_trainer.py, grpo_trainer.py, generation/.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

from advisor.frameworks.framework_parts import FrameworkParts
from advisor.frameworks.huggingface.options import CHECKPOINTING
from advisor.frameworks.huggingface.trainer_dialect import TrainerDialectReader, trainer_parts
from advisor.frameworks.names import Framework
from advisor.reading.document_keys import Keys
from advisor.reading.read_configuration import Document
from advisor.reading.shell import ShellCommand

_PROGRAM: Final = re.compile(r"\b(sft|dpo|grpo|kto|rloo|reward|ppo|distillation)(?:\.py)?(?= |$)")
_TRAINER: Final = "trainer"
_PROMPT: Final = 512
"""Tokens of a prompt, whose length no option limits, where max_prompt_length of older releases is
not given: its default."""


class _Reader(TrainerDialectReader):
    """Its configurations in Python, and the options and files of its programs."""

    framework = Framework.TRL
    label = "TRL"

    def find(self, document: Document) -> Iterator[Keys]:
        """With the trainer, which the program or the class names."""
        for keys in super().find(document):
            texts = " ".join(document.texts) if isinstance(document, ShellCommand) else ""
            program = _PROGRAM.search(texts)
            named = program[1] if program else keys.about.get("call", "").removesuffix("Config")
            if named not in ("", "TrainingArguments"):
                keys.put(_TRAINER, named.lower(), keys.place, f"TRL's {named}")
            if keys.has("max_seq_length") and not any(map(keys.has, CHECKPOINTING)):
                keys.put(CHECKPOINTING[1], False, keys.place, "TRL before 0.20")
            yield keys

    def omitted(self, keys: Keys) -> dict[str, Any]:
        """A reference is the model without its adapter, or a second one; what is generated follows
        a prompt."""
        found = super().omitted(keys)
        said = {path: one.value for path, one in self.values(keys).items()} | found
        algorithm = said.get("rl.algorithm")
        beta = keys.get("beta")
        pairs = algorithm == "dpo" and not keys.truth("precompute_ref_log_probs")
        penalty = algorithm == "grpo" and beta is not None and float(beta) > 0
        if pairs or penalty:
            its = "adapter_off" if said.get("tuning.adapter") else "gpu"
            found["rl.reference"] = its
        if algorithm == "grpo":
            length = said["rl.response_length"] + (keys.number("max_prompt_length") or _PROMPT)
            found.setdefault("job.seq_length", keys.number("vllm_max_model_length") or length)
        if said.get("tuning.base_weights") == "nf4":
            found["tuning.adapter_dtype"] = "bf16"
        return found


READER: Final = _Reader()


def parts() -> FrameworkParts:
    """What the registry asks for."""
    return trainer_parts(READER, "1.16")
