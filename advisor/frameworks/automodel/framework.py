"""NeMo AutoModel 0.7: what of it is no row of configs/options/automodel.json.

Source: nemo-automodel 0.7.0 components/distributed/config.py, activation_checkpointing.py,
components/_peft/lora.py, recipes/llm/train_ft.py.
"""

import json
import shlex
from collections.abc import Mapping
from typing import Any, Final

import yaml
from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.base.errors import UserError
from advisor.frameworks import key_rows, part_types
from advisor.frameworks.dialect import DialectReader
from advisor.frameworks.dialect_rows import as_it_runs, nested, options_of, written
from advisor.frameworks.framework_parts import FrameworkParts
from advisor.frameworks.huggingface import framework as trainer
from advisor.frameworks.names import Framework
from advisor.frameworks.torch import memory_model, recompute_settings, stack
from advisor.frameworks.torch.setting import (
    FULL,
    NONE,
    Granularity,
    OpPolicy,
    TorchSetting,
    as_torch,
    op,
)
from advisor.job.job import Job, JobConfig
from advisor.job.pipeline_split import ModelChunk
from advisor.job.samples import Packing
from advisor.layers.shape import RankShape
from advisor.models.spec import ModelSpec
from advisor.plan.recompute_plan import Setting
from advisor.reading import model_names
from advisor.reading.document_keys import Keys
from advisor.reading.read_configuration import ReadConfiguration

_NAME: Final = str(Framework.AUTOMODEL)
_CHECKPOINTING: Final = "distributed.activation_checkpointing"
_SETTINGS: Final[dict[TorchSetting, bool | str]] = {
    NONE: False,
    FULL: True,
    op(OpPolicy.TORCHTITAN): "selective",
}
_PACKED: Final = "packed_sequence.packed_sequence_size"
_ADAPTER: Final = "nemo_automodel.components._peft.lora.PeftConfig"
_OPTIONS: Final = options_of(_NAME)
_FACTS: Final = replace(
    trainer.FACTS,
    framework=_NAME,
    label="NeMo AutoModel",
    versions=("0.7",),
    newest_with_experts=None,
    granularities=(Granularity.NONE, Granularity.FULL, Granularity.OP),
    policies=(OpPolicy.TORCHTITAN,),
    options=(),
    key_options=_OPTIONS,
    source="nemo-automodel 0.7.0 components/distributed/config.py",
)


class _Reader(DialectReader):
    """YAML, and options of `automodel`."""

    framework = Framework.AUTOMODEL
    label = "NeMo AutoModel"
    options = _OPTIONS
    rules = tuple(key_rows.written(_NAME))

    def recompute(self, keys: Keys) -> str | None:
        """The setting of the switch, which is off by default."""
        said = keys.get(_CHECKPOINTING)
        mode = {"full": True}.get(str(said), keys.truth(_CHECKPOINTING) if said else False)
        meant = "selective" if said == "selective" else bool(mode)
        return next(setting.spec for setting, value in _SETTINGS.items() if value == meant)

    def understood(self, keys: Keys) -> str:
        """The setting."""
        return f"activation checkpointing {self.recompute(keys)}"

    def model_named(self, keys: Keys) -> str:
        """The checkpoint."""
        its = str(keys.get("model.pretrained_model_name_or_path") or "")
        return its or str(keys.get("model.config.pretrained_model_name_or_path") or "")

    def model(self, configuration: ReadConfiguration) -> str:
        """The preset that the checkpoint's name holds, else its id."""
        its = configuration.model
        return model_names.named_model([its]) or (its if "/" in its and "$" not in its else "")

    def derived(self, keys: Keys, said: Mapping[str, Any]) -> dict[str, Any]:
        """Samples of one length are packed where a size is said."""
        size = keys.number(_PACKED)
        return {"samples.packing": "packed", "job.seq_length": size} if size else {}


class _Jobs(trainer.TrainerJobs):
    """Gradients are reduced in fp32, of weights as their checkpoint has them."""

    def configure(
        self, model: ModelSpec, config: JobConfig, given: frozenset[str]
    ) -> tuple[ModelSpec, JobConfig]:
        """FSDP2's mp_policy, and the heads."""
        model, config = super().configure(model, config, given)
        config = replace(config, main_grads_dtype=DType.FP32)
        return model, as_it_runs(_NAME, config, given)


class _Memory(trainer.TrainerMemory):
    """Shards have the weights' type; gradients of a batch wait whole for its last microbatch
    (defer_fsdp_grad_sync)."""

    def fixed_memory(
        self, job: Job, shape: RankShape, chunks: tuple[ModelChunk, ...]
    ) -> part_types.FixedMemory:
        """FSDP2 with embedding and head in the root's group."""
        config = replace(job.config, weights_dtype=job.config.weights_dtype or DType.BF16)
        return memory_model.eager_memory(
            replace(job, config=config),
            shape,
            chunks,
            root_holds_ends=True,
            syncs_every_microbatch=job.config.sync_each_batch,
        )


class _Spelling(stack.TorchSpelling):
    """The YAML file, or options over one."""

    def setting_flags(self, setting: Setting, job: Job) -> str:
        """The switch."""
        return _words({_CHECKPOINTING: self._switch(as_torch(setting))})

    def layout_flags(self, job: Job) -> str:
        """All others."""
        return _words(self._job(job))

    def config_file(self, setting: Setting, job: Job) -> str:
        """Sections of the YAML file."""
        said = self._job(job) | {_CHECKPOINTING: self._switch(as_torch(setting))}
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
            own["peft._target_"] = _ADAPTER
        return own


def _words(said: dict[str, Any]) -> str:
    """Numbers, switches and lists as JSON has them, a text as it is."""
    texts = {key: it if isinstance(it, str) else json.dumps(it) for key, it in said.items()}
    return shlex.join(f"--{key}={text}" for key, text in texts.items())


READER: Final = _Reader()


def parts() -> FrameworkParts:
    """What the registry asks for."""
    return stack.torch_parts(
        _FACTS,
        _Spelling,
        settings=recompute_settings.TorchSettings,
        jobs=_Jobs,
        memory=_Memory,
        dialect="other",
    )
