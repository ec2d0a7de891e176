"""ms-swift 4.6 on transformers: what of it is no row of configs/options/ms_swift.json.

Source: ms-swift 4.6.0 swift/arguments/, swift/trainers/arguments.py, swift/rlhf_trainers/.
"""

import re
from collections.abc import Iterator
from typing import Any, Final

from advisor.frameworks.framework_parts import FrameworkParts
from advisor.frameworks.huggingface import trainer_dialect as trainer
from advisor.frameworks.huggingface.options import MICRO_BATCH, STEPS
from advisor.frameworks.names import Framework
from advisor.job.job import Job
from advisor.job.reinforcement import Algorithm, Reference
from advisor.models.options import CpCommType
from advisor.reading.read_configuration import Document, Keys, ReadValue

_SAMPLES: Final = 16
"""Samples of a step that gradients are accumulated over where nothing says it."""
_TYPE: Final = "rlhf_type"


class _Reader(trainer.TrainerDialectReader):
    """Options of `swift sft`, `pt` and `rlhf`, and YAML of the same."""

    framework = Framework.MS_SWIFT
    label = "ms-swift"
    weighs = True

    def find(self, document: Document) -> Iterator[Keys]:
        """With the algorithm that `rlhf` means where no option says it."""
        for keys in super().find(document):
            text = " ".join(getattr(document, "texts", ()))
            if re.search(r"\brlhf\b", text) and not keys.has(_TYPE):
                keys.put(_TYPE, "dpo", keys.place, f"{_TYPE} by default")
            yield keys

    def values(self, keys: Keys) -> dict[str, ReadValue]:
        """max_length is of prompts where texts are generated."""
        found = super().values(keys)
        own, kind = found.get("job.seq_length"), found.get("rl.algorithm")
        if own and kind and kind.value == Algorithm.GRPO:
            response = keys.number("max_completion_length") or 512
            found["job.seq_length"] = own.meaning(own.value + response)
        return found

    def num_microbatches(self, keys: Keys) -> int | None:
        """As many as make a step of 16 samples, at least one."""
        ranks = self.num_gpus(keys) or keys.num_gpus
        if keys.has(STEPS) or ranks is None:
            return super().num_microbatches(keys)
        return max(1, -(-_SAMPLES // ((keys.number(MICRO_BATCH) or 1) * ranks)))


class _Spelling(trainer.DialectSpelling):
    """Adapters on request."""

    def finished(self, said: dict[str, Any], job: Job) -> dict[str, Any]:
        """With bitsandbytes as what quantizes, and a reference's weight."""
        said.pop("fsdp_config", None)
        if "quant_bits" in said:
            said["quant_method"] = "bnb"
        if job.config.rl.algorithm is Algorithm.GRPO:
            said["max_length"] -= job.config.rl.response_length or 512
            if job.config.rl.reference is Reference.NONE:
                said["beta"] = 0.0
        return said


READER: Final = _Reader()


def parts() -> FrameworkParts:
    """What the registry asks for."""
    return trainer.trainer_parts(READER, "4.6", spelling=_Spelling, context_kinds=(CpCommType.A2A,))
