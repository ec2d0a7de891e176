"""What the host takes to queue work: a single kernel, and a whole layer of the native backend.

A layer this small keeps no GPU busy, so that Python and torch are what takes time: the part of a
step that larger kernels hide.
"""

from typing import Final

import torch
from msgspec.structs import replace

from advisor.models.layer_kind import DENSE, FeedForward
from advisor.models.spec import ModelSpec
from advisor.plan.recompute_plan import Segment
from harness.backends.native.modules.layer import TransformerLayer
from harness.backends.native.modules.layer_settings import LayerSettings
from harness.calibration.bench.cases import Case, Kind
from harness.calibration.bench.timer import Call
from harness.trial.trial import Device

CALLS: Final = {Kind.HOST_LAUNCH: 500, Kind.HOST_LAYER: 10}
"""Queued without waiting: launches fewer than the thousand that a GPU's queue holds."""
_DEVIATION: Final = 0.02
_HEADS: Final = 4


def launch(case: Case, device: Device) -> Call:
    """An addition of a few elements."""
    x = torch.zeros(case.sizes[0], device=device.value)
    return lambda _: torch.add(x, x)


def layer(case: Case, device: Device) -> Call:
    """Forward and backward of one layer, gradients of its input and of all weights."""
    tokens, hidden = case.sizes
    where = torch.device(device.value)
    settings = LayerSettings(
        model=_model(case.variant, hidden, tokens),
        seq_length=tokens,
        dtype=torch.bfloat16,
        device=where,
    )
    moe = settings.model.num_moe_experts is not None
    kind = DENSE._replace(feed_forward=FeedForward.MOE if moe else FeedForward.DENSE)
    module = TransformerLayer(settings, Segment(layers=(kind,)), kind, settings.frequencies())
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=_DEVIATION)
    x = torch.randn(1, tokens, hidden, dtype=torch.bfloat16, device=where, requires_grad=True)
    wanted = (x, *module.parameters())
    gradient = torch.ones_like(x)
    return lambda _: torch.autograd.grad(module(x), wanted, gradient, allow_unused=True)


def _model(made_of: str, hidden: int, tokens: int) -> ModelSpec:
    """A small model of dense, moe or latent layers; latent: the head widths of DeepSeek's."""
    dense = ModelSpec(
        name=made_of,
        num_layers=1,
        hidden_size=hidden,
        ffn_hidden_size=4 * hidden,
        num_attention_heads=_HEADS,
        num_query_groups=_HEADS,
        kv_channels=hidden // _HEADS,
        vocab_size=hidden,
        max_position_embeddings=tokens,
    )
    if made_of == "moe":
        return replace(dense, num_moe_experts=4, moe_ffn_hidden_size=hidden)
    if made_of == "latent":
        return replace(
            dense,
            multi_latent_attention=True,
            qk_layernorm=True,
            q_lora_rank=hidden // 2,
            kv_lora_rank=hidden // 2,
        )
    return dense
