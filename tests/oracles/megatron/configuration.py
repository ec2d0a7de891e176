"""What the installed TransformerConfig makes of raw settings, beside what our rules claim.

Transformer Engine is reported as present, as the rules assume; nothing else is replaced.
"""

import ast
import warnings
from dataclasses import fields
from typing import Any

import pytest

from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.revisions import resolve_revision
from advisor.frameworks.megatron.rules import first_refusal
from advisor.job.job import Framework

REVISION = resolve_revision(Framework.MEGATRON_LM, "0.16")
BASE: dict[str, Any] = {
    "num_layers": 8,
    "num_attention_heads": 8,
    "num_query_groups": 8,
    "add_bias_linear": False,
    "moe_token_dispatcher_type": "alltoall",
}
_DEFAULTS = {field.name: field.default for field in fields(RawSettings)}
_LISTS = ("recompute_modules", "offload_modules", "cuda_graph_modules")
# Options of the command line and of the environment, which TransformerConfig never sees.
_ELSEWHERE = frozenset(
    {
        "recompute_activations",
        "checkpoint_activations",
        "expandable_segments",
        "use_transformer_engine_op_fuser",
        "mcore_gpt",
        "num_micro_batches_with_partial_activation_checkpoints",
        "activations_checkpoint_layers_per_pipeline",
        "hierarchical_context_parallel_sizes",
        "packed_sequences",
        "transformer_engine_version",
        "optimizer",
        "use_distributed_optimizer",
        "overlap_grad_reduce",
        "overlap_param_gather",
        "use_precision_aware_optimizer",
        "fp16",
    }
)
# A gated delta net is described by more fields than any rule on recompute reads.
_GATED_DELTA_NET = {
    "linear_attention_freq": 2,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "linear_num_key_heads": 8,
    "linear_num_value_heads": 8,
}


def report_transformer_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the configuration believe in a Transformer Engine that is new enough."""
    from megatron.core.transformer import transformer_config

    monkeypatch.setattr(transformer_config, "is_te_min_version", lambda *_, **__: True)


def real_outcome(raw: RawSettings) -> str:
    """``ok``, or the exception and its message, of constructing the real configuration."""
    import torch
    from megatron.core.transformer.transformer_config import TransformerConfig

    known = {field.name for field in fields(TransformerConfig)}
    values = _as_constructed(raw)
    unknown = [
        name
        for name, value in values.items()
        if name not in known and value != _DEFAULTS.get(name) and name != "cuda_graph_scope"
    ]
    if unknown:
        return f"TypeError: no such field: {unknown[0]}"
    values = {name: value for name, value in values.items() if name in known}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            TransformerConfig(
                hidden_size=64,
                bf16=True,
                params_dtype=torch.bfloat16,
                pipeline_dtype=torch.bfloat16,
                gradient_accumulation_fusion=True,
                **values,
            )
    except (ValueError, AssertionError, KeyError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return "ok"


def _as_constructed(raw: RawSettings) -> dict[str, Any]:
    """The settings under the names and in the types of TransformerConfig 0.16.1."""
    values = {f.name: getattr(raw, f.name) for f in fields(RawSettings)}
    for name in _LISTS:
        values[name] = None if values[name] is None else list(values[name])
    if len(raw.cp_comm_type) < 2:  # as core_transformer_config_from_args hands it on
        values["cp_comm_type"] = raw.cp_comm_type[0] if raw.cp_comm_type else None
    else:
        values["cp_comm_type"] = list(raw.cp_comm_type)
    values["cuda_graph_scope"] = values.pop("cuda_graph_modules")
    # TransformerConfig takes the enum or the default; the backend has no rule with recompute.
    del values["attention_backend"]
    values["add_bias_linear"] = bool(values["add_bias_linear"])
    values["moe_layer_freq"] = ast.literal_eval(values["moe_layer_freq"])
    if values["fp8_recipe"] is None:
        del values["fp8_recipe"]
    if raw.experimental_attention_variant == "gated_delta_net":
        values |= _GATED_DELTA_NET
    return {name: value for name, value in values.items() if name not in _ELSEWHERE}


def claimed_outcome(raw: RawSettings) -> str:
    """``ok``, or the exception and the start of its message, that our rules claim."""
    refusal = first_refusal(raw, REVISION)
    return "ok" if refusal is None else refusal.raises


def assert_same(raw: RawSettings) -> None:
    """The real outcome begins as the claimed one does; ``ok`` is the same on both sides."""
    real, claimed = real_outcome(raw), claimed_outcome(raw)
    assert real.startswith(claimed), f"{raw}\n  real    {real}\n  claimed {claimed}"
