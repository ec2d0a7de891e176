"""Reads the options of Megatron Bridge's performance scripts (scripts/performance).

Source: Megatron Bridge 0.3 to main 067f987 scripts/performance/argument_parser.py and
utils/overrides.py. They lie over a recipe that only the script knows, so what is not given here is
not known; version 0.2 sets the modules without the granularity, and so without effect.
"""

from collections.abc import Sequence
from typing import Final

from advisor.frameworks.megatron.lint.settings import ReadSettings
from advisor.frameworks.names import Framework
from advisor.reading.command_options import Option

_SCRIPTS: Final = ("run_script.py", "run_recipe.py", "bootstrap.py", "setup_experiment.py")
_NUMBERS: Final = {
    "-tp": "tensor_model_parallel_size",
    "--tensor_model_parallel_size": ("tensor_model_parallel_size"),
    "-pp": "pipeline_model_parallel_size",
    "--pipeline_model_parallel_size": ("pipeline_model_parallel_size"),
    "-vp": "virtual_pipeline_model_parallel_size",
    "-cp": "context_parallel_size",
    "-ep": "expert_model_parallel_size",
    "-et": "expert_tensor_parallel_size",
}
_MODULES: Final = "--recompute_modules"
_LAYERS: Final = ("-rl", "--recompute_num_layers")
_OFFLOAD: Final = ("-ol", "--activation_offload_layers")


def is_performance_script(words: Sequence[str]) -> bool:
    """Whether a command runs one of the scripts; without a program, whether it has an option that
    only they have."""
    bare = not any(word.endswith(".py") for word in words)
    return any(word.endswith(_SCRIPTS) or (bare and word == _MODULES) for word in words)


def put_script_option(read: ReadSettings, option: Option) -> None:
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
    elif name in _NUMBERS and value.isdigit():
        read.put(_NUMBERS[name], value, name, place)
