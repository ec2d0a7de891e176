"""One training configuration under Megatron's own names: what this backend builds.

A field that TransformerConfig or DistributedDataParallelConfig knows is handed on under its name
(model.py, training.py), and one that the advisor's ModelSpec or ParallelLayout has as well is
filled from there (translate.py): to carry one more option through is to add one line here.
"""

from dataclasses import dataclass
from enum import StrEnum
from math import lcm

from harness.backends.megatron_core.expert_case import Experts


class Activation(StrEnum):
    """Activation of the MLP; the gated ones double linear_fc1."""

    SWIGLU = "swiglu"
    GEGLU = "geglu"
    QUICK_GEGLU = "quick_geglu"
    GELU = "gelu"
    SQUARED_RELU = "squared_relu"

    @property
    def gated(self) -> bool:
        """Megatron's gated_linear_unit."""
        return self in (Activation.SWIGLU, Activation.GEGLU, Activation.QUICK_GEGLU)


class CoreAttention(StrEnum):
    """`FLASH` keeps q, k, v, out and a log-sum-exp; `UNFUSED` is Megatron's DotProductAttention."""

    FLASH = "flash"
    UNFUSED = "unfused"


@dataclass(frozen=True, slots=True, kw_only=True)
class MegatronCase:
    """One training configuration; every field that Megatron knows carries Megatron's name.

    Weights are bf16; with `fp8` Transformer Engine's linear layers compute in 8 bits. `vocab_size`
    is the padded size. `seq_length` positions are learned where `max_position_embeddings` is None.
    `attention` is the local layers' kernel, `attention_backend` what Transformer Engine is to take.
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
    max_position_embeddings: int | None = None
    micro_batch_size: int = 1
    num_microbatches: int = 1
    activation: Activation = Activation.SWIGLU
    normalization: str = "RMSNorm"
    add_bias_linear: bool = False
    add_qkv_bias: bool = False
    qk_layernorm: bool = False
    attention_output_gate: bool = False
    multi_latent_attention: bool = False
    q_lora_rank: int | None = None
    kv_lora_rank: int = 512
    qk_head_dim: int = 128
    qk_pos_emb_head_dim: int = 64
    v_head_dim: int = 128
    rope_type: str = "yarn"
    mtp_num_layers: int | None = None
    position_embedding_type: str = "rope"
    rotary_percent: float = 1.0
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    share_embeddings_and_output_weights: bool = False
    transformer_impl: str = "local"
    attention: CoreAttention = CoreAttention.FLASH
    attention_backend: str = "flash"
    window_size: tuple[int, int] | None = None
    window_attn_skip_freq: int | tuple[int, ...] | None = None
    softmax_type: str = "vanilla"
    bias_activation_fusion: bool = True
    bias_dropout_fusion: bool = False
    apply_rope_fusion: bool = False
    masked_softmax_fusion: bool = False
    gradient_accumulation_fusion: bool = False
    attention_softmax_in_fp32: bool = True
    cross_entropy_loss_fusion: bool = False
    cross_entropy_fusion_impl: str = "native"
    tensor_model_parallel_size: int = 1
    sequence_parallel: bool = False
    tp_comm_overlap: bool = False
    context_parallel_size: int = 1
    pipeline_model_parallel_size: int = 1
    virtual_pipeline_model_parallel_size: int | None = None
    num_layers_in_first_pipeline_stage: int | None = None
    num_layers_in_last_pipeline_stage: int | None = None
    account_for_embedding_in_pipeline_split: bool = False
    account_for_loss_in_pipeline_split: bool = False
    pipeline_model_parallel_layout: str | None = None
    overlap_p2p_comm: bool | None = None
    deallocate_pipeline_outputs: bool = True
    data_parallel_size: int = 1
    use_distributed_optimizer: bool = True
    overlap_grad_reduce: bool = False
    overlap_param_gather: bool = False
    grad_reduce_in_fp32: bool = False
    experts: Experts | None = None
    fp8: str | None = None
    fp8_recipe: str = "delayed"
    recompute_granularity: str | None = None
    recompute_method: str | None = None
    recompute_num_layers: int | None = None
    recompute_modules: tuple[str, ...] | None = None
    distribute_saved_activations: bool = False
    fine_grained_activation_offloading: bool = False
    offload_modules: tuple[str, ...] = ()
    cpu_offloading: bool = False
    cpu_offloading_num_layers: int = 0

    @property
    def world_size(self) -> int:
        """Ranks of the job: TP x CP x PP x DP, or as many more as experts are spread over."""
        dense = self.tensor_model_parallel_size * self.context_parallel_size
        experts = self.experts.ranks if self.experts else 1
        return lcm(dense * self.data_parallel_size, experts) * self.pipeline_model_parallel_size

    @property
    def num_model_chunks(self) -> int:
        """Model chunks that one rank holds."""
        return self.virtual_pipeline_model_parallel_size or 1

    @property
    def interleaved(self) -> bool:
        """Whether the schedule has virtual stages."""
        return self.virtual_pipeline_model_parallel_size is not None

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
