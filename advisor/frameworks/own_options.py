"""Options of a job that only some frameworks have: refused for the others, with who has them."""

from collections.abc import Collection
from typing import Final

from advisor.base.errors import UserError
from advisor.job.job import JobConfig, Optimizer

MUON: Final = "optimizer"
HOST_OPTIMIZER: Final = "optimizer_cpu_offload"
HOST_PARAMETERS: Final = "param_cpu_offload"
SYNC_EACH_BATCH: Final = "sync_each_batch"

_REFUSALS: Final = {
    MUON: (
        "is Megatron's, and not modelled for {}",
        "--framework megatron_lm, or job.optimizer=adam",
    ),
    HOST_OPTIMIZER: ("is not modelled for {}", "--framework deepspeed"),
    HOST_PARAMETERS: ("is DeepSpeed's offload_param, not an option of {}", "--framework deepspeed"),
    SYNC_EACH_BATCH: ("is an option of Accelerate", "--framework huggingface, or leave it out"),
}


def refuse_options(config: JobConfig, framework: str, has: Collection[str]) -> None:
    """Raise UserError on the first option of `config` that `framework` has not."""
    for field, (relation, nearest) in _REFUSALS.items():
        value = getattr(config, field)
        wanted = value is not Optimizer.ADAM if field == MUON else value
        if wanted and field not in has:
            raise UserError(f"job.{field}", value, relation.format(framework), nearest)
