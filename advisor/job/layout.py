"""How a job is spread over GPUs: the parallel degrees, in Megatron's names."""

from collections.abc import Mapping
from enum import StrEnum
from functools import lru_cache
from math import prod
from typing import Any, ClassVar, Final

from msgspec import Struct

from advisor.base.errors import UserError, divisors, nearest_divisors
from advisor.base.rule import Match, Rule, refusals, refuse
from advisor.models.layer_kinds import sharded_heads
from advisor.models.options import CpCommType, TransformerImpl
from advisor.models.spec import ModelSpec


class DataParallelSharding(StrEnum):
    """What data-parallel ranks hold a part of: DeepSpeed's stages 0 to 3. FSDP2 shards everything
    (full), or keeps the parameters gathered between the passes (gradients)."""

    NONE = "no_shard"
    OPTIMIZER = "optimizer"
    GRADIENTS = "gradients"
    FULL = "full"


SHARDED_GRADIENTS: Final = frozenset({DataParallelSharding.GRADIENTS, DataParallelSharding.FULL})
"""No rank keeps whole gradients."""


class ParallelLayout(Struct, frozen=True, kw_only=True):
    """Degrees of parallelism of one job; their product is the number of GPUs.

    ``virtual_pipeline_model_parallel_size`` counts model chunks per pipeline stage; 1 is the plain
    1F1B schedule. ``use_distributed_optimizer`` shards optimizer states over data and context
    parallel ranks. Overlap flags follow Megatron's DistributedDataParallelConfig.
    ``expert_tensor_parallel_size`` None is the tensor-parallel degree, as in Megatron.

    ``cp_comm_type`` is of all layers; ``hierarchical_context_parallel_sizes`` are the two degrees
    of a2a+p2p: ranks that exchange heads, and such groups in the ring.

    ``overlap_moe_expert_parallel_comm`` runs the experts' exchange of one microbatch next to the
    kernels of another; ``delay_wgrad_compute`` puts weight gradients next to it too.

    ``data_parallel_sharding`` is that of FSDP and ZeRO; None: Megatron's plain data parallelism.
    ``data_parallel_replicate_size`` counts groups of ranks that hold the same shards (HSDP);
    ``outer_dp_sharding_strategy`` and ``double_buffers`` are Megatron-FSDP's.

    ``scatter_gather_tensors_in_pipeline``: tensor-parallel ranks each send a part of a stage's
    output, which the next stage gathers (Megatron-LM of 2021 and 2022, arXiv 2104.04473 section
    4.1); with sequence parallelism they hold no more than a part anyway.

    Four fields split the layers unevenly over the stages (see advisor.job.pipeline_split): the
    number of layers of the first and last stage, or embedding and loss counted as layers, or
    ``pipeline_model_parallel_layout``, the text that spells every chunk ("Ett|(tt|)*6tL").
    """

    tensor_model_parallel_size: int = 1
    sequence_parallel: bool = False
    context_parallel_size: int = 1
    cp_comm_type: CpCommType = CpCommType.P2P
    hierarchical_context_parallel_sizes: tuple[int, ...] | None = None
    pipeline_model_parallel_size: int = 1
    virtual_pipeline_model_parallel_size: int = 1
    expert_model_parallel_size: int = 1
    expert_tensor_parallel_size: int | None = None
    data_parallel_size: int = 1
    use_distributed_optimizer: bool = True
    overlap_grad_reduce: bool = True
    overlap_param_gather: bool = True
    tp_comm_overlap: bool = False
    overlap_moe_expert_parallel_comm: bool = False
    delay_wgrad_compute: bool = False
    num_layers_in_first_pipeline_stage: int | None = None
    num_layers_in_last_pipeline_stage: int | None = None
    account_for_embedding_in_pipeline_split: bool = False
    account_for_loss_in_pipeline_split: bool = False
    pipeline_model_parallel_layout: str = ""
    data_parallel_sharding: DataParallelSharding | None = None
    data_parallel_replicate_size: int = 1
    outer_dp_sharding_strategy: DataParallelSharding = DataParallelSharding.NONE
    double_buffers: bool = False
    scatter_gather_tensors_in_pipeline: bool = False

    def __post_init__(self) -> None:
        refuse(_RULES.values(), self)
        _check_hierarchy(self)

    @property
    def is_whole(self) -> bool:
        """Whether each rank of data parallelism has all: there is one GPU, or no sharding (DDP)."""
        return self.data_parallel_sharding is DataParallelSharding.NONE or self.world_size == 1

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
    def cp_all_to_all_size(self) -> int:
        """Context-parallel ranks that exchange heads for positions; the ring joins CP / this."""
        if self.cp_comm_type is CpCommType.A2A:
            return self.context_parallel_size
        if self.cp_comm_type is CpCommType.A2A_P2P:
            return (self.hierarchical_context_parallel_sizes or (1,))[0]
        return 1

    @property
    def scatters_stage_outputs(self) -> bool:
        """Whether stage outputs that every tensor-parallel rank holds whole are sent in parts."""
        return self.scatter_gather_tensors_in_pipeline and not self.sequence_parallel

    @property
    def sequence_shards(self) -> int:
        """Into how many parts sequence parallelism cuts the norm and dropout regions."""
        return self.tensor_model_parallel_size if self.sequence_parallel else 1

    @property
    def idle_overlaps(self) -> tuple[str, ...]:
        """Names of overlaps that do nothing here: the exchange that they overlap is not there."""
        degrees = {
            "tp_comm_overlap": self.tensor_model_parallel_size if self.sequence_parallel else 1,
            "overlap_moe_expert_parallel_comm": self.expert_model_parallel_size,
        }
        return tuple(name for name, degree in degrees.items() if degree == 1)

    @property
    def num_model_chunks(self) -> int:
        """Model chunks in the whole pipeline: PP x VPP."""
        return self.pipeline_model_parallel_size * self.virtual_pipeline_model_parallel_size

    @property
    def sharding_ranks(self) -> int:
        """Ranks over which FSDP and ZeRO cut a model's states: DP x CP, of one replica."""
        shards = max(1, self.data_parallel_size // self.data_parallel_replicate_size)
        return shards * self.context_parallel_size

    @property
    def shards_optimizer(self) -> bool:
        """Whether data-parallel ranks hold parts of the optimizer's states."""
        sharding = self.data_parallel_sharding
        if sharding is None:
            return self.use_distributed_optimizer
        return sharding is not DataParallelSharding.NONE

    @property
    def optimizer_shards(self) -> int:
        """Ranks over which the distributed optimizer shards: DP x CP, of one replica or of all
        (outer_dp_sharding_strategy); 1 where it is off."""
        if not self.shards_optimizer:
            return 1
        outer = self.outer_dp_sharding_strategy is DataParallelSharding.OPTIMIZER
        return self.sharding_ranks * (self.data_parallel_replicate_size if outer else 1)

    @property
    def expert_tensor_degree(self) -> int:
        """Tensor-parallel degree of the routed experts."""
        return self.expert_tensor_parallel_size or self.tensor_model_parallel_size

    @property
    def expert_ranks(self) -> int:
        """Ranks over which routed experts are spread: EP x ETP."""
        return self.expert_model_parallel_size * self.expert_tensor_degree

    @property
    def expert_data_parallel_size(self) -> int:
        """Ranks with the same routed experts: those of a stage over EP x ETP, and at least 1."""
        return max(1, self.world_size // self.pipeline_model_parallel_size // self.expert_ranks)

    @property
    def expert_optimizer_shards(self) -> int:
        """As optimizer_shards, of the routed experts, which have a gradient buffer of their own
        where EP > 1 (megatron-core distributed/distributed_data_parallel.py)."""
        if not self.shards_optimizer or self.expert_model_parallel_size == 1:
            return self.optimizer_shards
        return self.expert_data_parallel_size

    @property
    def uneven_split_fields(self) -> tuple[str, ...]:
        """Names of the fields that ask for an uneven split of the layers over the stages."""
        return tuple(field for field in EVEN if getattr(self, field))

    @property
    def splits_evenly(self) -> bool:
        """Whether every stage holds as many layers as any other."""
        return not self.uneven_split_fields


SHORT_NAMES: Final = {
    "TP": "tensor_model_parallel_size",
    "CP": "context_parallel_size",
    "PP": "pipeline_model_parallel_size",
    "VPP": "virtual_pipeline_model_parallel_size",
    "EP": "expert_model_parallel_size",
    "ETP": "expert_tensor_parallel_size",
    "DP": "data_parallel_size",
}
DEGREES: Final = tuple(SHORT_NAMES.values())

EVEN: Final[dict[str, Any]] = {
    "num_layers_in_first_pipeline_stage": None,
    "num_layers_in_last_pipeline_stage": None,
    "account_for_embedding_in_pipeline_split": False,
    "account_for_loss_in_pipeline_split": False,
    "pipeline_model_parallel_layout": "",
}
"""Fields of ParallelLayout that ask for an uneven split, and their values without one."""
END_STAGES = ("num_layers_in_first_pipeline_stage", "num_layers_in_last_pipeline_stage")


def _check_hierarchy(layout: ParallelLayout) -> None:
    """What Megatron-LM's arguments.py and Transformer Engine's context_parallel.py assert."""
    sizes, cp = layout.hierarchical_context_parallel_sizes, layout.context_parallel_size
    where = "layout.hierarchical_context_parallel_sizes"
    if sizes is None:
        if layout.cp_comm_type is CpCommType.A2A_P2P:
            raise UserError(
                where,
                "null",
                "must be given with cp_comm_type a2a+p2p",
                f"write two numbers with the product {cp}",
            )
        return
    if len(sizes) != 2 or min(sizes) < 1 or prod(sizes) != cp:
        inner = max(n for n in divisors(cp) if n * n <= cp)
        raise UserError(
            where,
            ",".join(str(size) for size in sizes),
            f"must be two numbers with the product context_parallel_size = {cp}",
            f"e.g. {cp // inner},{inner}",
        )


class _LayoutRule(Rule[[ParallelLayout]], frozen=True, kw_only=True):
    """A rule on degrees."""

    names: ClassVar[tuple[str, ...]] = ("layout",)


_RULES: Final = refusals(_LayoutRule, "layout")


class _FitRule(Rule[[ModelSpec, ParallelLayout]], frozen=True, kw_only=True):
    """A rule that a model does not fit a layout."""

    names: ClassVar[tuple[str, ...]] = ("model", "layout")

    def stands_in(self, field: str, values: Mapping[str, object]) -> object:
        """See Rule; of ``layout EP x ETP`` the product."""
        layout = values["layout"]
        if field == "layout.expert_tensor_parallel_size":
            assert isinstance(layout, ParallelLayout)
            return layout.expert_tensor_degree
        _, several, degrees = field.partition(" ")
        if not several:
            return super().stands_in(field, values)
        names = SHORT_NAMES | {"ETP": "expert_tensor_degree"}
        return prod(getattr(layout, names[short]) for short in degrees.split(" x "))


def _undivided(name: str, number: int | None, ways: int) -> Match | None:
    if not number or number % ways == 0:
        return None
    return Match(f"must divide {name} = {number}", f"nearest: {nearest_divisors(number, ways)}")


def _exchanged_heads(model: ModelSpec, layout: ParallelLayout) -> Match | None:
    """An all-to-all gives every rank whole heads (AttnFuncWithCPAndQKVOA2A); that of eager torch
    gives several the same key/value head (DeepSpeed ulysses_sp.py)."""
    tp, ranks = layout.tensor_model_parallel_size, layout.cp_all_to_all_size
    heads, groups = model.num_attention_heads // tp, max(1, model.num_query_groups // tp)
    eager = model.transformer_impl.is_eager
    if heads % ranks == 0 and (groups % ranks == 0 or (eager and ranks % groups == 0)):
        return None
    return Match(
        f"splits heads over {ranks} ranks, but a rank of TP {tp} has {heads} query and {groups} "
        "key/value heads",
        "use fewer ranks" if eager else "use p2p or all_gather, or a2a+p2p over fewer ranks",
    )


def _sharded_heads(model: ModelSpec, layout: ParallelLayout) -> Match | None:
    ways = layout.tensor_model_parallel_size * layout.context_parallel_size
    uneven = (_undivided(*named, ways) for named in sharded_heads(model))
    return next(filter(None, uneven), None)


def _illegal_tensor_degree(model: ModelSpec, layout: ParallelLayout) -> str:
    """The nearest that are legal."""
    legal, tp = legal_tensor_parallel_sizes(model), layout.tensor_model_parallel_size
    near = [n for n in legal if n < tp][-1:] + [n for n in legal if n > tp][:1]
    return "" if tp in legal else f"nearest: {' or '.join(map(str, near))}"


_FITS: Final = refusals(
    _FitRule,
    "model_in_layout",
    {
        "layout.data_parallel_replicate_size": lambda _, layout: (
            layout.data_parallel_size % layout.data_parallel_replicate_size
        ),
        "experts": lambda model, layout: _undivided(
            "num_moe_experts", model.num_moe_experts, layout.expert_model_parallel_size
        ),
        "experts_width": lambda model, layout: _undivided(
            "moe_ffn_hidden_size", model.expert_ffn_hidden_size, layout.expert_tensor_degree
        ),
        "shared_expert_width": lambda model, layout: _undivided(
            "moe_shared_expert_intermediate_size",
            model.moe_shared_expert_intermediate_size,
            layout.tensor_model_parallel_size,
        ),
        "layout EP x ETP": lambda _, layout: _undivided(
            "TP x CP x DP",
            layout.world_size // layout.pipeline_model_parallel_size,
            layout.expert_ranks,
        ),
        "layout.cp_comm_type": _exchanged_heads,
        "layout TP x CP": _sharded_heads,
        "layout.tensor_model_parallel_size": _illegal_tensor_degree,
    },
)
"""What Megatron refuses, and what is not computed."""
_HEADS: Final = (_FITS["layout.cp_comm_type"], _FITS["layout TP x CP"])


def fits_layout(model: ModelSpec, layout: ParallelLayout) -> bool:
    """See check_model_fits_layout."""
    return not any(rule.applies(model, layout) for rule in _FITS.values())


def has_whole_heads(model: ModelSpec, layout: ParallelLayout) -> bool:
    """Whether TP and CP give every rank whole heads."""
    return not any(rule.applies(model, layout) for rule in _HEADS)


def check_model_fits_layout(model: ModelSpec, layout: ParallelLayout) -> None:
    """Raise UserError where the degrees do not divide the model's shape, or the model is not
    computed under them."""
    refuse(_FITS.values(), model, layout)


@lru_cache(maxsize=256)
def legal_tensor_parallel_sizes(model: ModelSpec) -> tuple[int, ...]:
    """TP degrees that the model's shape allows, ascending (TransformerConfig.__post_init__)."""
    groups = model.num_query_groups
    widths = [model.ffn_hidden_size, *(heads for _, heads in sharded_heads(model))]
    if model.multi_latent_attention and model.transformer_impl is TransformerImpl.LOCAL:
        # Megatron's own down-projections cut their ranks by TP; Transformer Engine's are whole on
        # every rank (multi_latent_attention.py)
        widths += [model.q_lora_rank or 0, model.kv_lora_rank + model.qk_pos_emb_head_dim]
    return tuple(
        tp
        for tp in divisors(model.num_attention_heads)
        if all(width % tp == 0 for width in widths) and (groups % tp == 0 or tp % groups == 0)
    )
