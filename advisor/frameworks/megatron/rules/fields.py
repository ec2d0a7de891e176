"""Fields of TransformerConfig that a release does not have yet."""

from dataclasses import fields
from typing import Final

from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.rules.rule import Problem, Rule, config, function

# First release with each field; read in transformer_config.py and model_parallel_config.py of the
# wheels 0.11.0 to 0.19.2 and in main d98e8a6. What is not named here is in all of them.
FIRST_RELEASE: Final[dict[str, tuple[int, int]]] = {
    "recompute_modules": (0, 12),
    "fp8_recipe": (0, 12),
    "cuda_graph_modules": (0, 12),
    "pipeline_model_parallel_layout": (0, 13),
    "overlap_moe_expert_parallel_comm": (0, 14),
    "fp4": (0, 15),
    "cuda_graph_impl": (0, 15),
    "fine_grained_activation_offloading": (0, 16),
    "offload_modules": (0, 16),
    "experimental_attention_variant": (0, 16),
    "moe_router_padding_for_quantization": (0, 16),
    "fp8_quantizer_factory": (0, 16),
    "fine_grained_offloading_max_inflight_offloads": (0, 18),
    "moe_paged_stash": (0, 18),
    "fp8_output_proj": (0, 18),
    "enable_mhc_connections": (0, 20),
    "mhc_recompute_layer_num": (0, 20),
}
_INSTEAD: Final = {
    "cuda_graph_impl": "use --enable-cuda-graph (local) or --external-cuda-graph "
    "(transformer_engine)",
}
_DEFAULTS: Final = {f.name: f.default for f in fields(RawSettings)}


def _unknown_field(raw: RawSettings, revision: Revision) -> Problem | None:
    """Every field that is set must exist in the release."""
    for name, (major, minor) in FIRST_RELEASE.items():
        if revision.at_least(major, minor) or getattr(raw, name) == _DEFAULTS[name]:
            continue
        release = "main" if (major, minor) == (0, 20) else f"{major}.{minor}"
        return Problem(
            f"{revision.label} has no {name}, which came with megatron-core {release}",
            _INSTEAD.get(name, f"use megatron-core {release} or newer, or drop {name}"),
            f"TypeError: no such field: {name}",
        )
    return None


RULES: Final[dict[str, Rule]] = {"unknown_field": function(_unknown_field, config())}
