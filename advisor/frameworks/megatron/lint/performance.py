"""Reads the options of Megatron Bridge's performance scripts (scripts/performance).

Source: Megatron Bridge 0.3 to main 067f987 scripts/performance/argument_parser.py and
utils/overrides.py. They lie over a recipe that only the script knows, so what is not given here is
not known; version 0.2 sets the modules without the granularity, and so without effect.
"""

from collections.abc import Sequence
from typing import Final

from advisor.frameworks.megatron.lint.given import Given
from advisor.frameworks.names import Framework

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
    """Whether a command runs one of the scripts, or has an option that only they have."""
    return any(word.endswith(_SCRIPTS) or word == _MODULES for word in words)


def put_script_option(given: Given, option: str, following: Sequence[str]) -> None:
    """Store one option; those of no interest are skipped.

    The modules win the granularity over the number of layers, whose method and number stay.
    """
    given.framework = Framework.MEGATRON_BRIDGE
    value = following[0] if following else ""
    if option == _MODULES:
        given.put("recompute_modules", value.split(","), option)
        given.put("recompute_granularity", "selective", option)
    elif option in _LAYERS:
        given.values.setdefault("recompute_granularity", "full")
        given.put("recompute_method", "block", option)
        given.put("recompute_num_layers", value, option)
    elif option in _OFFLOAD:
        given.put("cpu_offloading", True, option)
        given.put("cpu_offloading_num_layers", value, option)
    elif option == "--cuda_graph_impl":
        given.put("cuda_graph_impl", value, option)
    elif option == "--cuda_graph_scope":
        given.put("cuda_graph_modules", value.split(","), option)
    elif option == "--moe_a2a_overlap":
        given.put("overlap_moe_expert_parallel_comm", True, option)
    elif option in _NUMBERS and value.isdigit():
        given.put(_NUMBERS[option], value, option)
