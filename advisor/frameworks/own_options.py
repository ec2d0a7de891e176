"""Options of a job that only some frameworks have: refused for the others, with who has them."""

from collections.abc import Collection
from typing import Final

from advisor.base.errors import UserError
from advisor.base.record import defaults
from advisor.job.job import JobConfig

MUON: Final = "optimizer"
HOST_OPTIMIZER: Final = "optimizer_cpu_offload"
HOST_PARAMETERS: Final = "param_cpu_offload"
SYNC_EACH_BATCH: Final = "sync_each_batch"
QUANTIZED_ADAM: Final = "quantized_adam"
WEIGHTS_DTYPE: Final = "weights_dtype"
ADAM_KERNELS: Final = "optimizer_implementation"
STEP_IN_BACKWARD: Final = "optimizer_in_backward"
COMPILE: Final = "torch_compile"
ATTENTION: Final = "attn_implementation"
LIGER: Final = "use_liger_kernel"
TILED_MLP: Final = "tiled_mlp"
FLAT_PARAMETERS: Final = "flat_parameters"
MEGATRONS: Final = (
    "cuda_graph_impl",
    "cuda_graph_modules",
    "use_precision_aware_optimizer",
    "fp8_recipe",
    "transformer_engine_version",
)
"""Of Megatron and what it is built on."""
PACKED: Final = "mean_packed_length"

DETERMINISTIC: Final = "deterministic_mode"

_LEAVE_OUT: Final = "leave it out, or --framework megatron_lm"
_PLAIN: Final = "--framework huggingface or fsdp2, or leave it out"
_TRANSFORMERS: Final = "--framework huggingface, or leave it out"
_REFUSALS: Final = {
    **dict.fromkeys(MEGATRONS, ("is an option of Megatron, and not modelled for {}", _LEAVE_OUT)),
    PACKED: ("is not modelled for {}", _LEAVE_OUT),
    MUON: (
        "is Megatron's and is not modelled for {}",
        "--framework megatron_lm, or job.optimizer=adam",
    ),
    HOST_OPTIMIZER: ("is not modelled for {}", "--framework deepspeed"),
    HOST_PARAMETERS: (
        "is DeepSpeed's offload_param, which {} does not have",
        "--framework deepspeed",
    ),
    SYNC_EACH_BATCH: ("is an option of Accelerate", _TRANSFORMERS),
    QUANTIZED_ADAM: ("is from bitsandbytes or torchao, and is not modelled for {}", _PLAIN),
    WEIGHTS_DTYPE: ("cannot be set: {} chooses the type of the weights", _PLAIN),
    ADAM_KERNELS: ("belongs to torch.optim, which {} does not use", _PLAIN),
    STEP_IN_BACKWARD: ("is not modelled for {}", "--framework fsdp2 or torchtitan"),
    COMPILE: ("is not modelled for {}", "leave it out, or --framework huggingface or fsdp2"),
    LIGER: ("replaces layers of transformers, which {} does not use", _TRANSFORMERS),
    FLAT_PARAMETERS: ("belongs to FSDP1, which {} does not use", _PLAIN),
    TILED_MLP: (
        "replaces the MLP in layers of transformers, which {} does not use",
        _TRANSFORMERS,
    ),
    DETERMINISTIC: ("is Megatron's and is not modelled for {}", "leave it out"),
    ATTENTION: ("is an option of transformers, which {} does not use", _TRANSFORMERS),
}
_DEFAULTS: Final = defaults(JobConfig)


def refuse_options(config: JobConfig, framework: str, has: Collection[str]) -> None:
    """Raise UserError on the first option of `config` that `framework` has not."""
    for option, (relation, nearest) in _REFUSALS.items():
        field = MUON if option == QUANTIZED_ADAM else option
        value = getattr(config, field)
        match option:
            case "optimizer":
                wanted = value.is_muon
            case "quantized_adam":
                wanted = value.is_quantized
            case _:
                wanted = value != _DEFAULTS[field]
        if wanted and option not in has:
            raise UserError(f"job.{field}", value, relation.format(framework), nearest)
