"""How a job is spread over GPUs: the parallel degrees, in Megatron's names."""

from dataclasses import dataclass
from functools import lru_cache

from advisor.errors import UserError
from advisor.models.spec import ModelSpec, divisors, nearest_divisors


@dataclass(frozen=True, slots=True, kw_only=True)
class ParallelLayout:
    """Degrees of parallelism of one job; their product is the number of GPUs.

    ``virtual_pipeline_model_parallel_size`` counts model chunks per pipeline stage; 1 is the plain
    1F1B schedule. ``use_distributed_optimizer`` shards optimizer states over data and context
    parallel ranks. Overlap flags follow Megatron's DistributedDataParallelConfig.
    """

    tensor_model_parallel_size: int = 1
    sequence_parallel: bool = False
    context_parallel_size: int = 1
    pipeline_model_parallel_size: int = 1
    virtual_pipeline_model_parallel_size: int = 1
    expert_model_parallel_size: int = 1
    expert_tensor_parallel_size: int = 1
    data_parallel_size: int = 1
    use_distributed_optimizer: bool = True
    overlap_grad_reduce: bool = True
    overlap_param_gather: bool = True
    tp_comm_overlap: bool = False

    def __post_init__(self) -> None:
        for field in DEGREES:
            value = getattr(self, field)
            if value < 1:
                raise UserError(f"layout.{field}", value, "must be at least 1")
        if self.sequence_parallel and self.tensor_model_parallel_size == 1:
            raise UserError(
                "layout.sequence_parallel", True,
                "needs tensor_model_parallel_size > 1 (Megatron: ModelParallelConfig)",
                "leave it off at TP 1",
            )  # fmt: skip
        if self.virtual_pipeline_model_parallel_size > 1 and self.pipeline_model_parallel_size == 1:
            raise UserError(
                "layout.virtual_pipeline_model_parallel_size",
                self.virtual_pipeline_model_parallel_size,
                "needs pipeline_model_parallel_size > 1",
                "use 1",
            )

    @property
    def world_size(self) -> int:
        """Number of GPUs: TP x CP x PP x DP."""
        return (
            self.tensor_model_parallel_size
            * self.context_parallel_size
            * self.pipeline_model_parallel_size
            * self.data_parallel_size
        )

    @property
    def sequence_shards(self) -> int:
        """Into how many parts sequence parallelism cuts the norm and dropout regions."""
        return self.tensor_model_parallel_size if self.sequence_parallel else 1

    @property
    def num_model_chunks(self) -> int:
        """Model chunks in the whole pipeline: PP x VPP."""
        return self.pipeline_model_parallel_size * self.virtual_pipeline_model_parallel_size

    @property
    def optimizer_shards(self) -> int:
        """Ranks over which the distributed optimizer shards: DP x CP; 1 where it is off."""
        if not self.use_distributed_optimizer:
            return 1
        return self.data_parallel_size * self.context_parallel_size

    def layers_per_chunk(self, num_layers: int) -> int:
        """Layers of every model chunk (even split)."""
        return num_layers // self.num_model_chunks


DEGREES = (
    "tensor_model_parallel_size", "context_parallel_size", "pipeline_model_parallel_size",
    "virtual_pipeline_model_parallel_size", "expert_model_parallel_size",
    "expert_tensor_parallel_size", "data_parallel_size",
)  # fmt: skip


def check_model_fits_layout(model: ModelSpec, layout: ParallelLayout) -> None:
    """Raise UserError where the degrees do not divide the model's shape (TransformerConfig)."""
    tp = layout.tensor_model_parallel_size
    for field in ("expert_model_parallel_size", "expert_tensor_parallel_size"):
        if getattr(layout, field) != 1:
            raise UserError(f"layout.{field}", getattr(layout, field),
                            "needs a model with experts", "use 1")  # fmt: skip
    legal = legal_tensor_parallel_sizes(model)
    if tp not in legal:
        below, above = [n for n in legal if n < tp][-1:], [n for n in legal if n > tp][:1]
        near = [str(n) for n in below + above]
        raise UserError(
            "layout.tensor_model_parallel_size", tp,
            f"must divide num_attention_heads = {model.num_attention_heads} and ffn_hidden_size = "
            f"{model.ffn_hidden_size}, and divide num_query_groups = {model.num_query_groups} or "
            "be its multiple", f"nearest: {' or '.join(near)}",
        )  # fmt: skip
    chunks = layout.num_model_chunks
    if model.num_layers % chunks:
        pp = layout.pipeline_model_parallel_size
        per_stage = model.num_layers // pp if model.num_layers % pp == 0 else 0
        hint = (
            f"nearest VPP at PP {pp}: "
            + nearest_divisors(per_stage, layout.virtual_pipeline_model_parallel_size)
            if per_stage
            else f"nearest PP: {nearest_divisors(model.num_layers, pp)}"
        )
        raise UserError(
            "layout.pipeline_model_parallel_size x virtual_pipeline_model_parallel_size", chunks,
            f"must divide num_layers = {model.num_layers}", hint,
        )  # fmt: skip


@lru_cache(maxsize=256)
def legal_tensor_parallel_sizes(model: ModelSpec) -> tuple[int, ...]:
    """TP degrees that the model's shape allows, ascending (TransformerConfig.__post_init__)."""
    groups = model.num_query_groups
    return tuple(
        tp
        for tp in divisors(model.num_attention_heads)
        if model.ffn_hidden_size % tp == 0 and (groups % tp == 0 or tp % groups == 0)
    )
