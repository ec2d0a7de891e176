"""One training configuration under Megatron's own names: every option of Megatron's
(advisor/frameworks/megatron/options), handed on to its configuration classes where it is given."""

from enum import StrEnum
from functools import partial
from inspect import get_annotations
from math import lcm
from typing import Any, Final

from advisor.frameworks.megatron.options.table import SECTIONS
from advisor.frameworks.megatron.raw import RawSettings
from advisor.models.options import Activation


class CoreAttention(StrEnum):
    """`FLASH` keeps q, k, v, out and a log-sum-exp; `UNFUSED` is Megatron's DotProductAttention."""

    FLASH = "flash"
    UNFUSED = "unfused"


class MegatronCase(RawSettings):
    """One training configuration: options of Megatron, and what its command line does not have.
    Weights are bf16; with `fp8` Transformer Engine's linear layers compute in 8 bits. `vocab_size`
    is the padded size. `seq_length` positions are learned where `max_position_embeddings` is None.
    `attention` is the local layers' kernel, `attention_backend` what Transformer Engine is to take.
    Options that are declared here have another default than Megatron's."""

    num_layers: int
    hidden_size: int
    ffn_hidden_size: int
    num_attention_heads: int
    seq_length: int
    vocab_size: int = 1024
    micro_batch_size: int = 1
    num_microbatches: int = 1
    data_parallel_size: int = 1
    activation: Activation = Activation.SWIGLU
    attention: CoreAttention = CoreAttention.FLASH
    attention_backend: str = "flash"
    transformer_impl: str = "local"
    normalization: str = "RMSNorm"
    add_bias_linear: bool = False
    q_lora_rank: int | None = None
    position_embedding_type: str = "rope"
    hidden_dropout: float = 0.0
    attention_dropout: float = 0.0
    share_embeddings_and_output_weights: bool = False
    bias_activation_fusion: bool = True
    deallocate_pipeline_outputs: bool = True
    use_distributed_optimizer: bool = True
    expert_tensor_parallel_size: int = 1
    moe_token_dispatcher_type: str = "allgather"

    def __init__(self, **given: Any) -> None:
        # What is at its default is Megatron's to choose, whose releases differ in some.
        usual = partial(getattr, MegatronCase)
        kept = {name: value for name, value in given.items() if value != usual(name, None)}
        super().__init__(**kept)

    @property
    def given(self) -> dict[str, Any]:
        """Options that may differ from Megatron's default; those of experts where there are any."""
        names = (*_DECLARED, *self.__dict__)
        return {
            name: getattr(self, name) for name in names if self.has_experts or name not in _EXPERTS
        }

    @property
    def world_size(self) -> int:  # type: ignore[override]  # of launchers a plain option
        """Ranks of the job: TP x CP x PP x DP, or as many more as experts are spread over."""
        dense = self.tensor_model_parallel_size * self.context_parallel_size
        experts = self.expert_ranks
        return lcm(dense * self.data_parallel_size, experts) * self.pipeline_model_parallel_size

    @property
    def expert_ranks(self) -> int:
        """Ranks over which experts are spread."""
        if not self.has_experts:
            return 1
        return self.expert_model_parallel_size * self.expert_tensor_parallel_size

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
                f"pp_rank = {pp_rank}: must be 0 to {self.pipeline_model_parallel_size - 1}"
            )
        return pp_rank * self.world_size // self.pipeline_model_parallel_size


_DECLARED: Final = tuple(get_annotations(MegatronCase))
_EXPERTS: Final = frozenset(row.name for row in SECTIONS["Experts"].rows)
