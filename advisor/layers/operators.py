"""Operators: what one step of a layer computes, moves, communicates and keeps for the backward.

A layer is a tuple of operators in execution order, written down once. Memory, time and FLOPs are
folds over it (advisor.memory, advisor.time, advisor.plan.flops).
"""

from collections.abc import Callable
from enum import StrEnum
from functools import lru_cache, wraps
from math import prod
from typing import Any, ParamSpec

from msgspec import Struct

from advisor.base.dtypes import DType
from advisor.base.sharing import first_equal
from advisor.job.tuning import StoredAs

LAYER_INPUT = "layer_input"
"""Name of the tensor that enters a layer; the previous layer wrote it, this one keeps it."""
WIDEST_FLASH_HEAD = 256
"""Channels of a head up to which flash kernels go (flash-attention's flash_api.cpp), and up to
which transformers 5.23.0 hands grouped keys and values to SDPA (use_gqa_in_sdpa)."""


class Module(StrEnum):
    """The Megatron submodule an operator belongs to (megatron-core transformer_layer.py)."""

    EMBEDDING = "embedding"
    PATCH_EMBEDDING = "vision.patch_embed"
    PROJECTOR = "vision.merger"
    INPUT_LAYERNORM = "input_layernorm"
    LINEAR_QKV = "self_attention.linear_qkv"
    QKV_DOWN_PROJ = "self_attention.qkv_down_proj"
    QKV_UP_PROJ = "self_attention.qkv_up_proj"
    QK_LAYERNORM = "self_attention.qk_layernorm"
    ROTARY = "self_attention.rotary_pos_emb"
    CORE_ATTENTION = "self_attention.core_attention"
    OUTPUT_GATE = "self_attention.output_gate"
    LINEAR_PROJ = "self_attention.linear_proj"
    POST_ATTENTION_LAYERNORM = "self_attention.linear_proj.post_layernorm"
    GDN_IN_PROJ = "self_attention.in_proj"
    GDN_CONV = "self_attention.conv1d"
    GDN_RULE = "self_attention.gated_delta_rule"
    GDN_NORM_OUT = "self_attention.norm_out"
    GDN_OUT_PROJ = "self_attention.out_proj"
    MAMBA_IN_PROJ = "mixer.in_proj"
    MAMBA_SCAN = "mixer.ssm"
    MAMBA_NORM = "mixer.norm"
    MAMBA_OUT_PROJ = "mixer.out_proj"
    MAMBA_BDA = "mamba_bda"
    SELF_ATTN_BDA = "self_attn_bda"
    PRE_MLP_LAYERNORM = "pre_mlp_layernorm"
    LINEAR_FC1 = "mlp.linear_fc1"
    ACTIVATION = "mlp.activation"
    LINEAR_FC2 = "mlp.linear_fc2"
    POST_MLP_LAYERNORM = "mlp.linear_fc2.post_layernorm"
    SHARED_FC1 = "mlp.shared_experts.linear_fc1"
    SHARED_ACTIVATION = "mlp.shared_experts.activation"
    SHARED_FC2 = "mlp.shared_experts.linear_fc2"
    SHARED_GATE = "mlp.shared_experts.gate"
    ROUTER = "mlp.router"
    DISPATCH = "mlp.token_dispatcher.dispatch"
    EXPERT_FC1 = "mlp.experts.linear_fc1"
    EXPERT_ACTIVATION = "mlp.experts.activation"
    EXPERT_FC2 = "mlp.experts.linear_fc2"
    COMBINE = "mlp.token_dispatcher.combine"
    MLP_BDA = "mlp_bda"
    MTP_PROJECTION = "mtp.eh_proj"
    MTP_FINAL_LAYERNORM = "mtp.final_layernorm"
    FINAL_LAYERNORM = "final_layernorm"
    OUTPUT_LAYER = "output_layer"
    MTP_LOSS = "mtp.loss"
    LOSS = "loss"


SHARED_MODULES = frozenset(
    {Module.SHARED_FC1, Module.SHARED_ACTIVATION, Module.SHARED_FC2, Module.SHARED_GATE}
)
MOE_MODULES = SHARED_MODULES | {
    Module.ROUTER,
    Module.DISPATCH,
    Module.EXPERT_FC1,
    Module.EXPERT_ACTIVATION,
    Module.EXPERT_FC2,
    Module.COMBINE,
}
"""Everything between the normalized input and the MoE layer's output."""


class ComputeUnit(StrEnum):
    """What bounds an operator: tensor cores in the linear layers, attention, memory traffic, or in
    the scan of linear attention whichever of the two last takes longer."""

    GEMM = "gemm"
    ATTENTION = "attention"
    SCAN = "scan"
    BANDWIDTH = "bandwidth"


class CollectiveKind(StrEnum):
    """Collective of NCCL, a point-to-point ring, or the flex dispatcher's own exchange."""

    ALL_GATHER = "all_gather"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_REDUCE = "all_reduce"
    RING = "ring"
    ALL_TO_ALL = "all_to_all"
    DISPATCH = "dispatch"


class Group(StrEnum):
    """Which ranks take part; in an all-to-all of CONTEXT those that exchange heads, else those that
    are left to a ring or an all-gather."""

    TENSOR = "tp"
    CONTEXT = "cp"
    EXPERT = "ep"
    EXPERT_TENSOR = "expt_tp"
    EXPERT_TENSOR_AND_MODEL = "tp_ep"


class Tensor(Struct, frozen=True):
    """An activation of one rank: local (already sharded) shape and element type.

    Two operators that name the same tensor share its storage: it is counted once. A view has a
    `base`, whose whole storage it keeps alive; its gradient is a tensor of its own. `copy_of` names
    the 16-bit tensor that a quantized copy was made from.
    """

    name: str
    shape: tuple[int, ...]
    dtype: DType
    base: "Tensor | None" = None
    copy_of: str = ""

    @property
    def num_elements(self) -> int:
        """Product of its dimensions."""
        return prod(self.shape)

    @property
    def num_bytes(self) -> int:
        """Bytes of its elements."""
        return prod(self.shape) * self.dtype.itemsize

    @property
    def storage(self) -> "Tensor":
        """The tensor whose memory this one lies in: itself, or the base of a view."""
        return self.base or self

    def view(self, name: str, shape: tuple[int, ...]) -> "Tensor":
        """Part of this tensor's storage under a name of its own."""
        return Tensor(name, shape, self.dtype, self.storage)


class Weight(Struct, frozen=True):
    """A parameter of one rank: local shape; `tp_sharded` tells whether TP ranks hold parts of it.

    `in_linear` marks weights of linear layers, whose gradient a fused GEMM accumulates. Of a routed
    expert's weight (`expert`) there may be several `copies`, one an expert of the rank. A `frozen`
    one has no gradient and no optimizer state; `dtype` is its own, where it is another than the
    model's (an adapter's), `stored_as` the type between its uses.
    """

    name: str
    shape: tuple[int, ...]
    tp_sharded: bool = False
    in_linear: bool = False
    expert: bool = False
    copies: int = 1
    frozen: bool = False
    dtype: DType | None = None
    stored_as: StoredAs = StoredAs.AS_LOADED

    @property
    def num_elements(self) -> int:
        """Elements on this rank."""
        return prod(self.shape) * self.copies


class Gemm(Struct, frozen=True):
    """[m, k] x [k, n]: forward work of one linear layer on this rank, 2 m n k FLOPs.

    quantized: in the job's 8 or 4 bits, if it has such a precision.
    groups: of routed experts, that share the m rows and have a weight each; `kernels` of them are
        launched for one pass.
    main_grad_itemsize: of Megatron's gradient buffer, where the GEMM itself adds the weight's
        gradient to it; 0: it writes a tensor of its own.
    """

    m: int
    n: int
    k: int
    quantized: bool = False
    groups: int = 1
    kernels: int = 1
    main_grad_itemsize: int = 0

    @property
    def flops(self) -> int:
        """2 m n k."""
        return 2 * self.m * self.n * self.k


class AttentionShape(Struct, frozen=True, kw_only=True):
    """A fused attention kernel on this rank.

    rows: of queries, sequences x heads x tokens; longest: most keys that a query sees; qk_channels,
    v_channels: of a head. windowed: keys are masked before the query's window as well as after the
    query. fused: a kernel written for the GPU's architecture (cuDNN's), else FlashAttention-2.
    narrow: in 8 bits. steps: kernels that a row of queries goes through, over a ring of ranks.
    """

    rows: int
    longest: int
    qk_channels: int
    v_channels: int
    windowed: bool = False
    fused: bool = False
    narrow: bool = False
    steps: float = 1.0


class Collective(Struct, frozen=True):
    """One communication; `num_bytes` is the full (gathered) tensor, or what a rank sends in an
    all-to-all, its own share included, or its own tokens, once, in a dispatch.

    `overlapped` communication runs next to a GEMM of the same operator (Megatron's asynchronous
    tensor-parallel backward, the ring of context-parallel attention).
    """

    kind: CollectiveKind
    group: Group
    num_bytes: int
    overlapped: bool = False

    @staticmethod
    def both_ways(forward: CollectiveKind, group: Group, num_bytes: int) -> dict[str, Any]:
        """Fields of an operator whose backward does the reverse of what it does forward."""
        reverse = {
            CollectiveKind.ALL_GATHER: CollectiveKind.REDUCE_SCATTER,
            CollectiveKind.REDUCE_SCATTER: CollectiveKind.ALL_GATHER,
        }
        back = Collective(reverse.get(forward, forward), group, num_bytes)
        there = Collective(forward, group, num_bytes)
        return {"forward_collectives": (there,), "backward_collectives": (back,)}


class Operator(Struct, frozen=True, cache_hash=True):
    """One step of a layer on one rank, one microbatch; what no GEMM and no kernel of attention
    does, memory bounds.

    inputs, outputs: activations read and written; those in `outputs` get a gradient.
    saved: storages kept for the backward beyond the module's weights.
    attention_flops: forward FLOPs of the two attention matmuls over the causal half, or of the
        chunked scan of linear attention.
    attention: the kernel that does both of them without writing scores, where one does.
    overlapped_gemms: linear layers next to it whose GEMM, of the output or back of the input's
        gradient, its overlapped collectives run next to.
    gradient_passed_to: names of inputs to which the backward hands the output's gradient on as it
        is (the two sides of an addition): they share its storage.
    gathers_gradient: the output's gradient is dropped once its gathered copy is there, which is
        part of backward_workspace.
    gradient_in_saved: the input's gradient is written into the first saved storage.
    gradient_free_inputs: names of inputs that get no gradient. no_grad: it has no backward.
    replays_gemm: its backward runs the forward's GEMM again before the two of its own.
    fp32: its matmuls are of 32 bits, outside the tensor cores (torch's default), and chains of
    torch's kernels come after them.
    saved_for_weights: names of saved tensors that the gradients of its weights alone are made of:
        a frozen weight's operator keeps none of them.
    forward_holds: tensors that variables of the program keep alive until the operator has run
        forward, whether it reads them or not.
    forward_workspace, backward_workspace: bytes alive only while the operator runs, in blocks of
        at most `workspace_block` bytes, where that is not 0.
    workspace_without_grad: those of a forward that keeps nothing, where they are others.
    second_stream_bytes: of either workspace, what another stream than the computing one allocates:
        the caching allocator keeps that for it.
    second_stream: names of storages, gradients among them, that the other stream allocates.
    weight_gradient_bytes: gradients of the weights that are tensors of their own and stay until the
        whole layer has gone back.
    narrow_weight_gradient_bytes: 16-bit gradients of fp32 weights, which are cast when everything
        else of the operator is gone.
    extra_forward_bytes, extra_backward_bytes: memory traffic beyond inputs, outputs, saved.
    forward_kernels, backward_kernels: of what memory bounds, kernels that run one after another.
    """

    name: str
    module: Module
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    unit: ComputeUnit = ComputeUnit.BANDWIDTH
    saved: tuple[Tensor, ...] = ()
    saved_for_weights: frozenset[str] = frozenset()
    weights: tuple[Weight, ...] = ()
    gemm: Gemm | None = None
    attention_flops: int = 0
    attention: AttentionShape | None = None
    forward_collectives: tuple[Collective, ...] = ()
    backward_collectives: tuple[Collective, ...] = ()
    overlapped_gemms: tuple[Gemm, ...] = ()
    gradient_passed_to: frozenset[str] = frozenset()
    gathers_gradient: bool = False
    gradient_in_saved: bool = False
    gradient_free_inputs: frozenset[str] = frozenset()
    no_grad: bool = False
    replays_gemm: bool = False
    fp32: bool = False
    forward_holds: tuple[Tensor, ...] = ()
    forward_workspace: int = 0
    backward_workspace: int = 0
    workspace_without_grad: int | None = None
    workspace_block: int = 0
    second_stream_bytes: int = 0
    second_stream: frozenset[str] = frozenset()
    weight_gradient_bytes: int = 0
    narrow_weight_gradient_bytes: int = 0
    extra_forward_bytes: int = 0
    extra_backward_bytes: int = 0
    forward_kernels: int = 1
    backward_kernels: int = 1

    @property
    def forward_flops(self) -> int:
        """FLOPs of one forward pass."""
        return (self.gemm.flops if self.gemm else 0) + self.attention_flops

    @property
    def forward_bytes(self) -> int:
        """Memory traffic of one forward: inputs and outputs once, and what is saved with them."""
        named = {tensor.name: tensor for tensor in (*self.inputs, *self.outputs, *self.saved)}
        return sum(tensor.num_bytes for tensor in named.values()) + self.extra_forward_bytes

    @property
    def backward_bytes(self) -> int:
        """Memory traffic of one backward: output gradients, saved storages, input gradients."""
        gradients = sum(t.num_bytes for t in (*self.inputs, *self.outputs))
        return gradients + sum(t.num_bytes for t in self.saved) + self.extra_backward_bytes


class Capture(Struct, frozen=True):
    """Which operators graphs hold: those of `modules`, and those of `names`."""

    modules: frozenset[Module]
    names: frozenset[str] = frozenset()

    def holds(self, operator: Operator) -> bool:
        """Whether a graph launches it."""
        return operator.module in self.modules or operator.name in self.names

    @property
    def whole(self) -> bool:
        """Whether one graph holds a step from the embedding to the loss."""
        return Module.LOSS in self.modules


class PoolSide(Struct, frozen=True):
    """One of two pools: that of the graphs (`inside`), or the other one."""

    capture: Capture
    inside: bool


class Operators(tuple[Operator, ...]):
    """Operators in order, a key of many caches: hashed once."""

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            self._hash: int = super().__hash__()
            return self._hash


P = ParamSpec("P")


def cached_operators(make: Callable[P, tuple[Operator, ...]]) -> Callable[P, Operators]:
    """`make`, called once for equal arguments; equal results are one object."""

    @lru_cache(maxsize=4096)
    @wraps(make)
    def made(*args: P.args, **kwargs: P.kwargs) -> Operators:
        return first_equal(Operators(make(*args, **kwargs)))

    return made  # type: ignore[return-value]


def total_bytes(tensors: tuple[Tensor, ...]) -> int:
    """Bytes of a group of storages."""
    return sum(tensor.num_bytes for tensor in tensors)
