"""Megatron Core's layers put together as Megatron Bridge's providers of Gemma and Llama 4 do it.

Written anew from megatron-bridge 0.3.1 models/gemma/gemma2_provider.py, gemma3_provider.py and
models/llama/llama4_utils.py: norms after the row-parallel linear layers, capped scores, chunks.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest import mock

import torch
from megatron.core.fusions.fused_softmax import FusedScaleMaskSoftmax
from megatron.core.models.common.embeddings.language_model_embedding import LanguageModelEmbedding
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.tensor_parallel.layers import ColumnParallelLinear, RowParallelLinear
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.torch_norm import WrappedTorchNorm

from harness.backends.megatron_core import model
from harness.backends.megatron_core.fake.gpu_kernels import FlashLikeAttention, FlashLikeFunction

from .megatron import OracleCase

WINDOW, CHUNK = 1024, 512


class _NormedLinear(RowParallelLinear):
    def __init__(self, input_size: int, output_size: int, *, config: Any, **rest: Any) -> None:
        super().__init__(input_size, output_size, config=config, **rest)
        self.post_layernorm = WrappedTorchNorm(config, output_size)

    def forward(self, x: torch.Tensor) -> Any:
        output, bias = super().forward(x)
        return self.post_layernorm(output), bias


class _CappedSoftmax(FusedScaleMaskSoftmax):
    windowed = False

    def forward(self, input: torch.Tensor, mask: Any, offset: Any = None) -> Any:
        capped = 50.0 * torch.tanh(input / 50.0)
        if self.windowed:
            ones = torch.ones(input.shape[2:], dtype=torch.bool)
            mask = ~torch.tril(torch.triu(ones, diagonal=-WINDOW))
        return super().forward(capped, mask, offset)


class CappedAttention(DotProductAttention):
    """Gemma 2 on a layer without a window."""

    windowed = False

    def __init__(self, *args: Any, **rest: Any) -> None:
        super().__init__(*args, **rest)
        self.scale_mask_softmax.__class__ = _CappedSoftmax
        self.scale_mask_softmax.windowed = self.windowed


class WindowedCappedAttention(CappedAttention):
    """Gemma 2 on a layer with a window."""

    windowed = True


class ChunkedAttention(FlashLikeAttention):
    """Llama 4 on a layer with rotary positions."""

    def forward(self, *heads: Any, **rest: Any) -> torch.Tensor:
        s, b = heads[0].shape[:2]
        whole = (t.reshape(s // CHUNK, CHUNK, *t.shape[1:]).transpose(0, 1) for t in heads[:3])
        cut = (t.reshape(CHUNK, -1, *t.shape[3:]).contiguous() for t in whole)
        out = FlashLikeFunction.apply(*cut)
        out = out.view(CHUNK, s // CHUNK, b, -1).transpose(0, 1)
        return out.reshape(s, b, -1)


class _CappedOutput(ColumnParallelLinear):
    def forward(self, *args: Any, **rest: Any) -> Any:
        logits, bias = super().forward(*args, **rest)
        return 30.0 * torch.tanh(logits / 30.0), bias


class _ScaledEmbedding(LanguageModelEmbedding):
    def forward(self, **given: Any) -> torch.Tensor:
        embedded: torch.Tensor = super().forward(**given)
        return embedded * self.config.hidden_size**0.5


def gemma_ends(model: Any) -> Any:
    """`model` with scaled embeddings and capped logits."""
    model.embedding.__class__, model.output_layer.__class__ = _ScaledEmbedding, _CappedOutput
    return model


def chunks_of(core_attention: type[torch.nn.Module], **options: Any) -> Callable[..., list[Any]]:
    """A builder of model chunks, for fake_chunks: post_norms, and fields of the configuration."""
    post_norms = options.pop("post_norms", False)

    def spec(case: OracleCase, _: Any) -> Any:
        made = get_gpt_layer_local_spec(
            qk_layernorm=case.qk_layernorm, normalization=case.normalization
        )
        attention, mlp = made.submodules.self_attention.submodules, made.submodules.mlp.submodules
        attention.core_attention = core_attention
        if post_norms:
            attention.linear_proj = mlp.linear_fc2 = _NormedLinear
        return made

    def build(case: OracleCase) -> list[Any]:
        config = model.transformer_config(case, perform_initialization=False, **options)
        with ExitStack() as stack:
            stack.enter_context(mock.patch.object(model, "_layer_spec", spec))
            return model.build_chunks(case, core_attention, config)

    return build
