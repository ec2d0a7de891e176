"""The settings of one oracle run, under Megatron's own names."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class Activation(StrEnum):
    """Activation of the MLP; `SWIGLU` implies a gated linear unit."""

    SWIGLU = "swiglu"
    GELU = "gelu"
    SQUARED_RELU = "squared_relu"


class CoreAttention(StrEnum):
    """`FLASH` keeps q, k, v, out and a log-sum-exp; `UNFUSED` is Megatron's DotProductAttention."""

    FLASH = "flash"
    UNFUSED = "unfused"


@dataclass(frozen=True, slots=True, kw_only=True)
class OracleCase:
    """One training configuration; every field that Megatron knows carries Megatron's name.

    Weights, gradients and activations are bf16. `vocab_size` is the padded size.
    `overlap_p2p_comm=None` follows Megatron's launcher: on with virtual stages, off without.
    """

    num_layers: int
    hidden_size: int
    ffn_hidden_size: int
    num_attention_heads: int
    seq_length: int
    num_query_groups: int | None = None
    kv_channels: int | None = None
    vocab_size: int = 1024
    micro_batch_size: int = 1
    num_microbatches: int = 1
    activation: Activation = Activation.SWIGLU
    normalization: str = "RMSNorm"
    add_bias_linear: bool = False
    add_qkv_bias: bool = False
    qk_layernorm: bool = False
    position_embedding_type: str = "rope"
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    share_embeddings_and_output_weights: bool = False
    attention: CoreAttention = CoreAttention.FLASH
    bias_activation_fusion: bool = True
    bias_dropout_fusion: bool = False
    gradient_accumulation_fusion: bool = False
    attention_softmax_in_fp32: bool = True
    cross_entropy_loss_fusion: bool = False
    tensor_model_parallel_size: int = 1
    sequence_parallel: bool = False
    context_parallel_size: int = 1
    pipeline_model_parallel_size: int = 1
    virtual_pipeline_model_parallel_size: int | None = None
    num_layers_in_first_pipeline_stage: int | None = None
    num_layers_in_last_pipeline_stage: int | None = None
    overlap_p2p_comm: bool | None = None
    deallocate_pipeline_outputs: bool = True
    recompute_granularity: str | None = None
    recompute_method: str | None = None
    recompute_num_layers: int | None = None
    recompute_modules: tuple[str, ...] | None = None
    distribute_saved_activations: bool = False

    @property
    def world_size(self) -> int:
        """Ranks of one model replica."""
        return (
            self.tensor_model_parallel_size
            * self.context_parallel_size
            * self.pipeline_model_parallel_size
        )

    @property
    def num_model_chunks(self) -> int:
        """Model chunks that one rank holds."""
        return self.virtual_pipeline_model_parallel_size or 1

    @property
    def local_seq_length(self) -> int:
        """Tokens of one sequence on one context-parallel rank."""
        return self.seq_length // self.context_parallel_size

    def rank_of_stage(self, pp_rank: int) -> int:
        """Global rank of the first member of a pipeline stage (Megatron's tp-cp-dp-pp order)."""
        if not 0 <= pp_rank < self.pipeline_model_parallel_size:
            raise ValueError(
                f"pp_rank {pp_rank}: not in 0..{self.pipeline_model_parallel_size - 1}"
            )
        return pp_rank * self.world_size // self.pipeline_model_parallel_size

    def recompute_arguments(self) -> Mapping[str, Any]:
        """The recompute settings as keyword arguments of `TransformerConfig`."""
        modules = None if self.recompute_modules is None else list(self.recompute_modules)
        return {
            "recompute_granularity": self.recompute_granularity,
            "recompute_method": self.recompute_method,
            "recompute_num_layers": self.recompute_num_layers,
            "recompute_modules": modules,
            "distribute_saved_activations": self.distribute_saved_activations,
        }
