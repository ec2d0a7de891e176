"""Options of a job that only some frameworks have: refused for the others, with who has them."""

from collections.abc import Collection
from typing import Final

from advisor.base.errors import UserError
from advisor.base.record import defaults
from advisor.job.job import JobConfig

_MEGATRONS: Final = (
    "cuda_graph_impl",
    "cuda_graph_modules",
    "use_precision_aware_optimizer",
    "fp8_recipe",
    "transformer_engine_version",
)
"""Of Megatron and what it is built on."""
_LEAVE_OUT: Final = "leave it out, or --framework megatron_lm"
_PLAIN: Final = "--framework huggingface or fsdp2, or leave it out"
_TRANSFORMERS: Final = "--framework huggingface, or leave it out"
_REFUSALS: Final = {
    **dict.fromkeys(_MEGATRONS, ("is an option of Megatron, and not modelled for {}", _LEAVE_OUT)),
    "mean_packed_length": ("is not modelled for {}", _LEAVE_OUT),
    "optimizer": (
        "is Megatron's and is not modelled for {}",
        "--framework megatron_lm, or job.optimizer=adam",
    ),
    "optimizer_cpu_offload": ("is not modelled for {}", "--framework deepspeed"),
    "param_cpu_offload": (
        "is DeepSpeed's offload_param, which {} does not have",
        "--framework deepspeed",
    ),
    "sync_each_batch": ("is an option of Accelerate", _TRANSFORMERS),
    "quantized_adam": ("is from bitsandbytes or torchao, and is not modelled for {}", _PLAIN),
    "weights_dtype": ("cannot be set: {} chooses the type of the weights", _PLAIN),
    "optimizer_implementation": ("belongs to torch.optim, which {} does not use", _PLAIN),
    "optimizer_in_backward": ("is not modelled for {}", "--framework fsdp2 or torchtitan"),
    "torch_compile": (
        "is not modelled for {}",
        "leave it out, or --framework huggingface or fsdp2",
    ),
    "use_liger_kernel": ("replaces layers of transformers, which {} does not use", _TRANSFORMERS),
    "flat_parameters": ("belongs to FSDP1, which {} does not use", _PLAIN),
    "tiled_mlp": (
        "replaces the MLP in layers of transformers, which {} does not use",
        _TRANSFORMERS,
    ),
    "deterministic_mode": ("is Megatron's and is not modelled for {}", "leave it out"),
    "attn_implementation": ("is an option of transformers, which {} does not use", _TRANSFORMERS),
}
_DEFAULTS: Final = defaults(JobConfig)


def refuse_options(config: JobConfig, framework: str, has: Collection[str]) -> None:
    """Raise UserError on the first option of `config` that `framework` has not."""
    for option, (relation, nearest) in _REFUSALS.items():
        field = "optimizer" if option == "quantized_adam" else option
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
