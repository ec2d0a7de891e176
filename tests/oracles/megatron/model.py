"""Builds the GPT model chunks of one rank and their inputs."""

import copy
from collections.abc import Callable
from typing import Any

import torch
from megatron.core import activations, parallel_state
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.models.gpt.gpt_model import GPTModel
from megatron.core.transformer.transformer_config import TransformerConfig
from torch.nn import functional

from .case import Activation, CoreAttention, OracleCase
from .environment import FlashLikeAttention


def _activation_function(case: OracleCase) -> Callable[..., torch.Tensor]:
    functions: dict[Activation, Callable[..., torch.Tensor]] = {
        Activation.SWIGLU: functional.silu,
        Activation.GELU: functional.gelu,
        Activation.SQUARED_RELU: activations.squared_relu,  # read late: it is patched by now
    }
    return functions[Activation(case.activation)]


def transformer_config(case: OracleCase) -> Any:
    """The case as Megatron's own (validating) configuration object."""
    interleaved = case.virtual_pipeline_model_parallel_size is not None
    overlap = interleaved if case.overlap_p2p_comm is None else case.overlap_p2p_comm
    return TransformerConfig(
        num_layers=case.num_layers,
        hidden_size=case.hidden_size,
        ffn_hidden_size=case.ffn_hidden_size,
        num_attention_heads=case.num_attention_heads,
        num_query_groups=case.num_query_groups,
        kv_channels=case.kv_channels,
        gated_linear_unit=case.activation == Activation.SWIGLU,
        activation_func=_activation_function(case),
        normalization=case.normalization,
        add_bias_linear=case.add_bias_linear,
        add_qkv_bias=case.add_qkv_bias,
        qk_layernorm=case.qk_layernorm,
        hidden_dropout=case.hidden_dropout,
        attention_dropout=case.attention_dropout,
        bias_activation_fusion=case.bias_activation_fusion,
        bias_dropout_fusion=case.bias_dropout_fusion,
        gradient_accumulation_fusion=case.gradient_accumulation_fusion,
        masked_softmax_fusion=False,  # needs a CUDA extension
        attention_softmax_in_fp32=case.attention_softmax_in_fp32,
        cross_entropy_loss_fusion=case.cross_entropy_loss_fusion,
        tensor_model_parallel_size=case.tensor_model_parallel_size,
        sequence_parallel=case.sequence_parallel,
        context_parallel_size=case.context_parallel_size,
        pipeline_model_parallel_size=case.pipeline_model_parallel_size,
        virtual_pipeline_model_parallel_size=case.virtual_pipeline_model_parallel_size,
        num_layers_in_first_pipeline_stage=case.num_layers_in_first_pipeline_stage,
        num_layers_in_last_pipeline_stage=case.num_layers_in_last_pipeline_stage,
        overlap_p2p_comm=overlap,
        batch_p2p_comm=not overlap,
        deallocate_pipeline_outputs=case.deallocate_pipeline_outputs,
        perform_initialization=False,
        bf16=True,
        params_dtype=torch.bfloat16,
        pipeline_dtype=torch.bfloat16,
        **case.recompute_arguments(),
    )


def _layer_spec(case: OracleCase) -> Any:
    spec = copy.deepcopy(
        get_gpt_layer_local_spec(qk_layernorm=case.qk_layernorm, normalization=case.normalization)
    )
    if case.attention == CoreAttention.FLASH:
        spec.submodules.self_attention.submodules.core_attention = FlashLikeAttention
    return spec


def _build_chunk(case: OracleCase, config: Any, vp_stage: int | None) -> Any:
    return GPTModel(
        config,
        _layer_spec(case),
        vocab_size=case.vocab_size,
        max_sequence_length=case.seq_length,
        pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=vp_stage),
        post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=vp_stage),
        position_embedding_type=case.position_embedding_type,
        share_embeddings_and_output_weights=case.share_embeddings_and_output_weights,
        vp_stage=vp_stage,
    )


def build_chunks(case: OracleCase) -> list[Any]:
    """The GPT model chunks of the current rank, in training mode, with bf16 parameters."""
    config = transformer_config(case)
    stages = (
        [None]
        if case.virtual_pipeline_model_parallel_size is None
        else list(range(case.virtual_pipeline_model_parallel_size))
    )
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)  # torch's own norms and embeddings take no dtype
    try:
        return [_build_chunk(case, config, stage) for stage in stages]
    finally:
        torch.set_default_dtype(default)


class Batch:
    """Input tensors of one rank, shared by all microbatches and never counted."""

    def __init__(self, case: OracleCase) -> None:
        s = case.local_seq_length
        self.tokens = torch.zeros(case.micro_batch_size, s, dtype=torch.long)
        self.position_ids = torch.arange(s)[None].expand(case.micro_batch_size, s)
        self.loss_mask = torch.ones(case.micro_batch_size, s, dtype=torch.float32)
        self.attention_mask: torch.Tensor | None = None
        if case.attention == CoreAttention.UNFUSED:
            self.attention_mask = torch.ones(1, 1, s, s, dtype=torch.bool).triu(1)

    def tensors(self) -> list[torch.Tensor]:
        """All tensors of the batch."""
        found = [self.tokens, self.position_ids, self.loss_mask, self.attention_mask]
        return [tensor for tensor in found if tensor is not None]

    def forward(self, model: Any) -> torch.Tensor:
        """The model's output: hidden states, or the loss of every token on the last stage."""
        out: torch.Tensor = model(
            self.tokens, self.position_ids, self.attention_mask, labels=self.tokens
        )
        return out

    def loss(self, losses: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Sum of the masked losses and the token count, as `pretrain_gpt.py` computes them."""
        mask = self.loss_mask.view(-1)
        total = torch.sum(losses.view(-1).float() * mask)
        return total, mask.sum().detach().to(torch.int), {}
