"""NeMo AutoModel 0.7: what of it is no row of configs/options/automodel.json.

Source: nemo-automodel 0.7.0 components/distributed/config.py, activation_checkpointing.py,
components/_peft/lora.py, recipes/llm/train_ft.py.
"""

import json
import shlex
from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.base.errors import UserError
from advisor.frameworks import part_types
from advisor.frameworks.dialect import DialectReader, dialect_parts
from advisor.frameworks.dialect_rows import nested, written
from advisor.frameworks.framework_parts import FrameworkParts
from advisor.frameworks.huggingface import framework as trainer
from advisor.frameworks.huggingface.trainer_dialect import EngineJobs
from advisor.frameworks.names import Framework
from advisor.frameworks.torch import stack
from advisor.frameworks.torch.setting import (
    FULL,
    NONE,
    Granularity,
    OpPolicy,
    TorchSetting,
    as_torch,
    op,
)
from advisor.job.job import Job
from advisor.job.pipeline_split import ModelChunk
from advisor.job.samples import Packing
from advisor.layers.shape import RankShape
from advisor.plan.recompute_plan import Setting
from advisor.reading.read_configuration import Keys

_NAME: Final = str(Framework.AUTOMODEL)
_CHECKPOINTING: Final = "distributed.activation_checkpointing"
_SETTINGS: Final[dict[TorchSetting, bool | str]] = {
    NONE: False,
    FULL: True,
    op(OpPolicy.TORCHTITAN): "selective",
}
_PACKED: Final = "packed_sequence.packed_sequence_size"


class _Reader(DialectReader):
    """YAML, and options of `automodel`."""

    framework = Framework.AUTOMODEL
    label = "NeMo AutoModel"

    def recompute(self, keys: Keys) -> str | None:
        """The setting of the switch, which is off by default."""
        said = keys.get(_CHECKPOINTING)
        mode = {"full": True}.get(str(said), keys.truth(_CHECKPOINTING) if said else False)
        meant = "selective" if said == "selective" else bool(mode)
        return next(setting.spec for setting, value in _SETTINGS.items() if value == meant)

    def model_named(self, keys: Keys) -> str:
        its = str(keys.get("model.pretrained_model_name_or_path") or "")
        return its or str(keys.get("model.config.pretrained_model_name_or_path") or "")

    def derived(self, keys: Keys, said: Mapping[str, Any]) -> dict[str, Any]:
        """Samples of one length are packed where a size is said."""
        size = keys.number(_PACKED)
        return {"samples.packing": "packed", "job.seq_length": size} if size else {}


class _Jobs(EngineJobs):
    """Gradients are reduced in fp32 (FSDP2's mp_policy)."""

    reduce_dtype = DType.FP32


class _Memory(trainer.TrainerMemory):
    """Shards have the weights' type; gradients of a batch wait whole for its last microbatch
    (defer_fsdp_grad_sync). Embedding and head are in the root's group."""

    upcasts = False

    def root_holds_ends(self, job: Job) -> bool:
        """Always."""
        return True

    def fixed_memory(
        self, job: Job, shape: RankShape, chunks: tuple[ModelChunk, ...]
    ) -> part_types.FixedMemory:
        """In bf16 unless the job says otherwise."""
        config = replace(job.config, weights_dtype=job.config.weights_dtype or DType.BF16)
        return super().fixed_memory(replace(job, config=config), shape, chunks)


class _Spelling(stack.TorchSpelling):
    """The YAML file, or options over one."""

    def setting_flags(self, setting: Setting, job: Job) -> str:
        return _words({_CHECKPOINTING: self._switch(as_torch(setting))})

    def layout_flags(self, job: Job) -> str:
        return _words(self._job(job))

    def config_file(self, setting: Setting, job: Job) -> str:
        said = self._job(job) | {_CHECKPOINTING: self._switch(as_torch(setting))}
        import yaml

        return yaml.safe_dump(nested(said), sort_keys=False)

    def _switch(self, setting: TorchSetting) -> bool | str:
        if setting not in _SETTINGS:
            raise UserError("--recompute", setting.spec, "has no word here", "use none or full")
        return _SETTINGS[setting]

    def _job(self, job: Job) -> dict[str, Any]:
        own = {"distributed.strategy": "fsdp2"} | written(_NAME, job)
        if job.config.samples.packing is Packing.PACKED:
            own[_PACKED] = own.pop("dataset.seq_length")
        if job.config.tuning.has_adapter:
            own["peft._target_"] = "nemo_automodel.components._peft.lora.PeftConfig"
        return own


def _words(said: dict[str, Any]) -> str:
    """Numbers, switches and lists as JSON has them, a text as it is."""
    texts = {key: it if isinstance(it, str) else json.dumps(it) for key, it in said.items()}
    return shlex.join(f"--{key}={text}" for key, text in texts.items())


READER: Final = _Reader()


def parts() -> FrameworkParts:
    """What the registry asks for."""
    return dialect_parts(
        READER,
        "0.7",
        trainer.FACTS,
        spelling=_Spelling,
        jobs=_Jobs,
        memory=_Memory,
        granularities=(Granularity.NONE, Granularity.FULL, Granularity.OP),
        policies=(OpPolicy.TORCHTITAN,),
        options=(),
        source="nemo-automodel 0.7.0 components/distributed/config.py",
    )
