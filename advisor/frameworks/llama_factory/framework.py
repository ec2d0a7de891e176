"""LLaMA-Factory 0.9.5: what of it is no row of configs/options/llama_factory.json.

Source: llamafactory 0.9.5 hparams/, model/adapter.py, model/model_utils/checkpointing.py.
"""

from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.frameworks.framework_parts import FrameworkParts
from advisor.frameworks.huggingface import trainer_dialect as trainer
from advisor.frameworks.huggingface.framework import TrainerMemory
from advisor.frameworks.huggingface.options import FSDP
from advisor.frameworks.names import Framework
from advisor.frameworks.torch.plan import Semantics
from advisor.frameworks.torch.setting import Granularity
from advisor.job.job import Job
from advisor.reading.read_configuration import Keys

_TYPE, _LAYERS = "finetuning_type", "freeze_trainable_layers"


class _Reader(trainer.TrainerDialectReader):
    """YAML, JSON and options of `llamafactory-cli train`."""

    framework = Framework.LLAMA_FACTORY
    label = "LLaMA-Factory"

    def is_reentrant(self, keys: Keys) -> bool:
        """Except under FSDP2."""
        return not (keys.has("fsdp") or any(keys.under(FSDP)))

    def derived(self, keys: Keys, said: Mapping[str, Any]) -> dict[str, Any]:
        """Parameters that are trained are cast to fp32 unless all is bf16; `freeze` trains the
        last layers; pre-training packs."""
        found = super().derived(keys, said)
        pure = keys.truth("pure_bf16") or keys.truth("use_badam")
        if said.get("tuning.adapter") not in (None, "none"):
            found["tuning.adapter_dtype"] = DType.BF16 if pure else DType.FP32
        elif not pure:
            found["job.weights_dtype"] = DType.FP32
        if keys.get(_TYPE) == "freeze":
            found["tuning.num_trainable_layers"] = keys.number(_LAYERS) or 2
        if keys.get("stage") == "pt" and not keys.has("packing"):
            found["samples.packing"] = "packed"
        return found


class _Memory(TrainerMemory):
    """Checkpoints are reentrant except under FSDP2."""

    def semantics(self, job: Job) -> Semantics:
        """On one GPU torch's reentrant function."""
        return replace(super().semantics(job), use_reentrant=job.num_gpus == 1)


class _Spelling(trainer.DialectSpelling):
    """Frozen layers are a type of fine-tuning."""

    def finished(self, said: dict[str, Any], job: Job) -> dict[str, Any]:
        layers = job.config.tuning.num_trainable_layers
        return said if layers is None else said | {_TYPE: "freeze", _LAYERS: layers}


READER: Final = _Reader()


def parts() -> FrameworkParts:
    """What the registry asks for."""
    own: dict[str, Any] = {"granularities": (Granularity.NONE, Granularity.FULL)}
    return trainer.trainer_parts(READER, "0.9", spelling=_Spelling, memory=_Memory, **own)
