"""Plain PyTorch: checkpoint_wrapper on blocks, then fully_shard on blocks and model."""

from typing import ClassVar, Final

from advisor.base.dtypes import Precision
from advisor.frameworks.framework_parts import FrameworkParts
from advisor.frameworks.names import Framework
from advisor.frameworks.torch import stack, supported_jobs
from advisor.frameworks.torch.rules import Rules, stated
from advisor.frameworks.torch.setting import Granularity, Modifier, OpPolicy, as_torch
from advisor.frameworks.torch.snippet import snippet
from advisor.job.job import Job
from advisor.plan.recompute_plan import Setting

_FACTS: Final = supported_jobs.StackFacts(
    framework=Framework.FSDP2,
    label="PyTorch FSDP2",
    loops=True,
    versions=("2.6", "2.7", "2.8", "2.9", "2.10", "2.11", "2.12", "2.13"),
    source="torch 2.13 utils/checkpoint.py, checkpoint_wrapper.py",
    own_options=(*supported_jobs.EAGER_OPTIONS, "optimizer_in_backward"),
    granularities=(
        *(Granularity.NONE, Granularity.FULL, Granularity.SELECTIVE),
        *(Granularity.SEQUENTIAL, Granularity.OP, Granularity.BUDGET, Granularity.BLOCKS),
    ),
    policies=(OpPolicy.SAVE_ATTENTION, OpPolicy.SAVE_MATMUL),
    options=(Modifier.OFFLOAD,),
    precisions=(Precision.BF16, Precision.FP8_CURRENT),
    replicates=True,
)


class _Settings(stack.TorchSettings):
    own_rules: ClassVar[Rules] = stated("fsdp2")


class _Spelling(stack.TorchSpelling):
    def takes_flags(self, job: Job) -> bool:
        """It is set up in Python."""
        return False

    def setting_flags(self, setting: Setting, job: Job) -> str:
        """Python: `blocks` are the model's transformer blocks."""
        return snippet(as_torch(setting), job)


def parts() -> FrameworkParts:
    """What the registry asks for."""
    return stack.torch_parts(_FACTS, _Spelling, settings=_Settings, dialect="other")
