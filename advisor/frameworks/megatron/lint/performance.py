"""Reads the options of Megatron Bridge's performance scripts (scripts/performance).

Source: Megatron Bridge 0.3 to main 067f987 scripts/performance/argument_parser.py and
utils/overrides.py. They lie over a recipe that only the script knows, so what is not given here is
not known; version 0.2 sets the modules without the granularity, and so without effect.
"""

from collections.abc import Sequence
from typing import Final

from advisor.base.dtypes import Precision
from advisor.frameworks.megatron.lint.settings import ReadSettings
from advisor.frameworks.megatron.lint.yaml_config import MIXED_PRECISION, put_mixed_precision
from advisor.frameworks.megatron.options.values import MIXED_PRECISION as PRECISION_NAMES
from advisor.frameworks.names import Framework
from advisor.reading.command_options import CommandOption

_SCRIPTS: Final = ("run_script.py", "run_recipe.py", "bootstrap.py", "setup_experiment.py")
_NUMBERS: Final = {
    "-tp": "tensor_model_parallel_size",
    "--tensor_model_parallel_size": "tensor_model_parallel_size",
    "-pp": "pipeline_model_parallel_size",
    "--pipeline_model_parallel_size": "pipeline_model_parallel_size",
    "-vp": "virtual_pipeline_model_parallel_size",
    "--virtual_pipeline_model_parallel_size": "virtual_pipeline_model_parallel_size",
    "-cp": "context_parallel_size",
    "--context_parallel_size": "context_parallel_size",
    "-ep": "expert_model_parallel_size",
    "--expert_model_parallel_size": "expert_model_parallel_size",
    "-et": "expert_tensor_parallel_size",
    "--expert_tensor_parallel_size": "expert_tensor_parallel_size",
}
_BATCH: Final = {
    "-mb": "micro_batch_size",
    "--micro_batch_size": "micro_batch_size",
    "-gb": "global_batch_size",
    "--global_batch_size": "global_batch_size",
    "-sl": "seq_length",
    "--seq_length": "seq_length",
}
_PRECISIONS: Final = ("-c", "--compute_dtype")
_MIXED: Final = {
    "bf16": PRECISION_NAMES[Precision.BF16],
    "fp8_ds": PRECISION_NAMES[Precision.FP8_DELAYED],
    "fp8_cs": PRECISION_NAMES[Precision.FP8_CURRENT],
    "fp8_sc": PRECISION_NAMES[Precision.FP8_BLOCKWISE],
    "fp8_mx": PRECISION_NAMES[Precision.MXFP8],
    "nvfp4": PRECISION_NAMES[Precision.NVFP4],
}
"""Bridge's precision by the script's word for it."""
_MODULES: Final = "--recompute_modules"
_LAYERS: Final = ("-rl", "--recompute_num_layers")
_OFFLOAD: Final = ("-ol", "--activation_offload_layers")


def is_performance_script(words: Sequence[str]) -> bool:
    """Whether a command runs one of the scripts; without a program, whether it has an option that
    only they have."""
    bare = not any(word.endswith(".py") for word in words)
    return any(word.endswith(_SCRIPTS) or (bare and word == _MODULES) for word in words)


def put_script_option(read: ReadSettings, option: CommandOption) -> None:
    """Store one option; those of no interest are skipped.

    The modules win the granularity over the number of layers, whose method and number stay.
    """
    read.given.framework = Framework.MEGATRON_BRIDGE
    name, value, place = option.name, option.text, option.place
    if name == _MODULES:
        read.put("recompute_modules", value.split(","), name, place)
        read.put("recompute_granularity", "selective", name, place)
    elif name in _LAYERS:
        if "recompute_granularity" not in read.given.values:
            read.put("recompute_granularity", "full", name, place)
        read.put("recompute_method", "block", name, place)
        read.put("recompute_num_layers", value, name, place)
    elif name in _OFFLOAD:
        read.put("cpu_offloading", True, name, place)
        read.put("cpu_offloading_num_layers", value, name, place)
    elif name == "--cuda_graph_impl":
        read.put("cuda_graph_impl", value, name, place)
    elif name == "--cuda_graph_scope":
        read.put("cuda_graph_modules", value.split(","), name, place)
    elif name == "--moe_a2a_overlap":
        read.put("overlap_moe_expert_parallel_comm", True, name, place)
    elif name in _PRECISIONS and value in _MIXED:
        read.put_loose(MIXED_PRECISION, _MIXED[value], name, place)
        put_mixed_precision(read, _MIXED[value], place)
    elif name in _BATCH:
        read.put_loose(_BATCH[name], value, name, place)
    elif name in _NUMBERS:
        read.put_loose(_NUMBERS[name], value, name, place)
        if value.isdigit():
            read.put(_NUMBERS[name], value, name, place)
