"""Options of a job that only some frameworks have: refused for the others, with who has them."""

from collections.abc import Collection
from typing import ClassVar, Final

from advisor.base.record import defaults
from advisor.base.rule import Rule, refuse
from advisor.job.job import JobConfig

_MEGATRONS: Final = (
    *("cuda_graph_impl", "cuda_graph_modules", "use_precision_aware_optimizer"),
    *("fp8_recipe", "transformer_engine_version"),
)
"""Of Megatron and what it is built on."""
_LEAVE_OUT: Final = "leave it out, or --framework megatron_lm"
_PLAIN: Final = "--framework huggingface or fsdp2, or leave it out"
_TRANSFORMERS: Final = "--framework huggingface, or leave it out"
_REFUSALS: Final = {
    **dict.fromkeys(
        _MEGATRONS, ("is an option of Megatron, and not modelled for {framework}", _LEAVE_OUT)
    ),
    "mean_packed_length": ("is not modelled for {framework}", _LEAVE_OUT),
    "optimizer": (
        "is Megatron's and is not modelled for {framework}",
        "--framework megatron_lm, or job.optimizer=adam",
    ),
    "optimizer_cpu_offload": ("is not modelled for {framework}", "--framework deepspeed"),
    "param_cpu_offload": (
        "is DeepSpeed's offload_param, which {framework} does not have",
        "--framework deepspeed",
    ),
    "sync_each_batch": ("is an option of Accelerate", _TRANSFORMERS),
    "quantized_adam": (
        "is from bitsandbytes or torchao, and is not modelled for {framework}",
        _PLAIN,
    ),
    "weights_dtype": ("cannot be set: {framework} chooses the type of the weights", _PLAIN),
    "optimizer_implementation": ("belongs to torch.optim, which {framework} does not use", _PLAIN),
    "optimizer_in_backward": ("is not modelled for {framework}", "--framework fsdp2 or torchtitan"),
    "torch_compile": (
        "is not modelled for {framework}",
        "leave it out, or --framework huggingface or fsdp2",
    ),
    "compile_components": ("is torchtitan's", "--framework torchtitan, or leave it out"),
    "use_liger_kernel": (
        "replaces layers of transformers, which {framework} does not use",
        _TRANSFORMERS,
    ),
    "flat_parameters": ("belongs to FSDP1, which {framework} does not use", _PLAIN),
    "tiled_mlp": (
        "replaces the MLP in layers of transformers, which {framework} does not use",
        _TRANSFORMERS,
    ),
    "deterministic_mode": ("is Megatron's and is not modelled for {framework}", "leave it out"),
    "attn_implementation": (
        "is an option of transformers, which {framework} does not use",
        _TRANSFORMERS,
    ),
}
_DEFAULTS: Final = defaults(JobConfig)


class _OptionRule(Rule[[JobConfig, str]], frozen=True, kw_only=True):
    """A rule on an option of a job that a framework has not."""

    names: ClassVar[tuple[str, ...]] = ("job", "framework")


def _asks(config: JobConfig, option: str) -> bool:
    if option in ("optimizer", "quantized_adam"):
        return config.optimizer.is_muon if option == "optimizer" else config.optimizer.is_quantized
    return bool(getattr(config, option) != _DEFAULTS[option])


def _rule(option: str, reason: str, fix: str) -> _OptionRule:
    field = "optimizer" if option == "quantized_adam" else option
    return _OptionRule.on(f"job.{field}", lambda job, _: _asks(job, option), reason, fix)


_RULES: Final = {option: _rule(option, *texts) for option, texts in _REFUSALS.items()}


def refuse_options(config: JobConfig, framework: str, has: Collection[str]) -> None:
    """Raise UserError on the first option of `config` that `framework` has not."""
    refuse((one for option, one in _RULES.items() if option not in has), config, framework)
