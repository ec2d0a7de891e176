"""DeepSpeed: ZeRO stages 0 to 3 and its own checkpoint function.

Source: DeepSpeed 0.19.8 runtime/activation_checkpointing/checkpointing.py, runtime/pipe/module.py.
"""

from collections.abc import Iterator

from advisor.frameworks.base import FixedMemory
from advisor.frameworks.deepspeed.config import deepspeed_config
from advisor.frameworks.deepspeed.memory import zero_memory
from advisor.frameworks.torch.plan import Semantics
from advisor.frameworks.torch.rules import Problem
from advisor.frameworks.torch.setting import Granularity, TorchSetting
from advisor.frameworks.torch.stack import TorchStack, as_torch
from advisor.job import Framework, Job
from advisor.layers.shape import RankShape
from advisor.layout import DataParallelSharding
from advisor.pipeline import ModelChunk
from advisor.recompute import Checkpoint, Setting

_CALLS = (
    "activation_checkpointing turns nothing on: the model must call "
    "deepspeed.checkpointing.checkpoint on each block (a Hugging Face model does not)"
)
_PIPELINE = "needs a PipelineModule, whose engine owns the checkpoints"


class DeepSpeed(TorchStack):
    """The checkpoint function is reentrant; the pipeline engine's may be either."""

    framework = Framework.DEEPSPEED
    versions = ("0.17", "0.18", "0.19")
    label = "DeepSpeed"
    granularities = (Granularity.NONE, Granularity.FULL, Granularity.UNIFORM)
    shardings = (
        DataParallelSharding.FULL, DataParallelSharding.GRADIENTS, DataParallelSharding.OPTIMIZER,
        DataParallelSharding.NONE,
    )  # fmt: skip
    source = "DeepSpeed runtime/activation_checkpointing/checkpointing.py"

    def semantics(self, job: Job) -> Semantics:
        """Reentrant by default; its non-reentrant function does not stop early."""
        return Semantics(use_reentrant=True, hooked=Checkpoint.NON_REENTRANT)

    def _problems(self, setting: TorchSetting, job: Job) -> Iterator[Problem]:
        yield from super()._problems(setting, job)
        zero = job.layout.data_parallel_sharding
        piped = setting.granularity is Granularity.UNIFORM
        if piped and zero in (DataParallelSharding.GRADIENTS, DataParallelSharding.FULL):
            yield Problem(
                rule="pipeline.zero_stage",
                reason="ZeRO-2 and ZeRO-3 are incompatible with pipeline parallelism, whose engine "
                "a PipelineModule gets",
                fix="layout.data_parallel_sharding=optimizer",
                source="DeepSpeed runtime/pipe/engine.py",
            )  # fmt: skip

    def notes(self, setting: Setting, job: Job) -> tuple[str, ...]:
        """Who turns the checkpoints on."""
        granularity = as_torch(setting).granularity
        return (
            ({Granularity.FULL: _CALLS, Granularity.UNIFORM: _PIPELINE}[granularity],)
            if (granularity is not Granularity.NONE)
            else ()
        )

    def fixed_memory(
        self, job: Job, shape: RankShape, chunks: tuple[ModelChunk, ...]
    ) -> FixedMemory:
        """See memory.zero_memory."""
        return zero_memory(job, shape, chunks)

    def setting_flags(self, setting: Setting, job: Job) -> str:
        """The whole configuration file: it has no command line."""
        return deepspeed_config(as_torch(setting), job)
