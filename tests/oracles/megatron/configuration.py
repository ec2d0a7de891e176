"""What the installed TransformerConfig makes of raw settings, next to what our rules claim.

Transformer Engine is reported as present, as the rules assume; nothing else is replaced.
"""

import warnings
from dataclasses import fields
from typing import Any

import pytest

from advisor.frameworks.megatron.options.table import SETTINGS
from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.revisions import resolve_revision
from advisor.frameworks.names import Framework
from tests.advisor.frameworks.megatron.configuration_cases import BASE as BASE
from tests.advisor.frameworks.megatron.configuration_cases import begins_like, claims
from tests.advisor.frameworks.megatron.configuration_cases import first_refusal as first_refusal

REVISION = resolve_revision(Framework.MEGATRON_LM, "0.16")
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
    from megatron.core.models.common.embeddings import rope_utils
    from megatron.core.transformer import transformer_config

    monkeypatch.setattr(transformer_config, "is_te_min_version", lambda *_, **__: True)
    for kernel in ("fused_apply_rotary_pos_emb", "fused_apply_rotary_pos_emb_thd"):
        monkeypatch.setattr(rope_utils, kernel, print)


def real_outcome(raw: RawSettings) -> str:
    """``ok``, or the exception and its message, of constructing the real configuration."""
    import torch
    from megatron.core.transformer.transformer_config import TransformerConfig

    known = {field.name for field in fields(TransformerConfig)}
    unknown = [
        row.name
        for row in SETTINGS.values()
        if row.since is not None
        and row.name_in(REVISION) not in known
        and raw.given.get(row.name, row.default) != row.default
        and row.name != "use_transformer_engine_op_fuser"  # Bridge's before it was Megatron's
    ]
    if unknown:
        return f"TypeError: no such field: {unknown[0]}"
    values = _as_constructed(raw)
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
    from megatron.core.transformer.transformer_config import TransformerConfig

    from harness.backends.megatron_core.model import keywords

    # The backend has no rule with recompute; biases are off where nothing is said of them.
    values = {"add_bias_linear": False, **keywords(raw, TransformerConfig)}
    values.pop("attention_backend", None)
    if raw.experimental_attention_variant == "gated_delta_net":
        values |= _GATED_DELTA_NET
    return values


def assert_same(raw: RawSettings) -> None:
    """The real outcome begins as a claimed one does; ``ok`` is the same on both sides."""
    real, claimed = real_outcome(raw), claims(first_refusal(raw, REVISION))
    assert begins_like(real, claimed), f"{raw}\n  real    {real}\n  claimed {claimed}"
