"""Megatron's options of a model with experts, for its command line and for Bridge.

Option names: megatron-core wheels 0.17.1, 0.18.2 and 0.19.2 training/arguments.py and
argument_utils.py, which make them from the names of TransformerConfig's fields.
"""

from collections.abc import Iterator
from dataclasses import fields
from typing import Final

from advisor.job.layout import ParallelLayout
from advisor.models.spec import ModelSpec

_IMPLEMENTATION: Final = (
    "moe_token_dispatcher_type",
    "moe_grouped_gemm",
    "moe_permute_fusion",
    "moe_router_fusion",
    "moe_router_dtype",
    "moe_shared_expert_overlap",
    "moe_expert_capacity_factor",
    "moe_pad_expert_input_to_capacity",
)
"""How the layers are run, on which memory and time rest; the others are the model's definition."""


def expert_flags(model: ModelSpec, layout: ParallelLayout) -> Iterator[str]:
    """Degrees of the experts, and every option of theirs that differs from Megatron's default."""
    if model.num_moe_experts is None:
        return
    yield from ("--expert-model-parallel-size", str(layout.expert_model_parallel_size))
    if layout.expert_tensor_parallel_size is not None:
        yield from ("--expert-tensor-parallel-size", str(layout.expert_tensor_parallel_size))
    yield from ("--num-experts", str(model.num_moe_experts))
    for field in fields(model):
        value = getattr(model, field.name)
        if not field.name.startswith("moe_") or value == field.default:
            continue
        yield f"--{field.name.replace('_', '-')}"
        if value is not True:
            yield str(value)


def expert_overrides(model: ModelSpec, layout: ParallelLayout) -> Iterator[str]:
    """Fields of Bridge's model provider, whatever the recipe had set before; the shape is left to
    the recipe."""
    if model.num_moe_experts is None:
        return
    yield f"expert_model_parallel_size={layout.expert_model_parallel_size}"
    yield f"expert_tensor_parallel_size={layout.expert_tensor_degree}"
    for name in _IMPLEMENTATION:
        yield f"{name}={_yaml(getattr(model, name))}"


def _yaml(value: object) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)
