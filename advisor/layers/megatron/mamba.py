"""Mamba-2 mixer: a selective state space model, scanned in chunks (arXiv 2405.21060).

Source: megatron-core 0.16.1 and 0.19.0 ssm/mamba_mixer.py (_ssm_training, its memory-efficient
path); kernels of mamba-ssm 2.3.2 ops/triton/{ssd_combined,layernorm_gated}.py.
"""

from advisor.base.dtypes import DType
from advisor.layers.megatron.linear import column_parallel_linear, row_parallel_linear
from advisor.layers.megatron.mappings import exchange_sequence_for_heads
from advisor.layers.operators import ComputeUnit, Module, Operator, Tensor, Weight
from advisor.layers.shape import RankShape
from advisor.models.layer_kinds import mamba_heads

_CHUNK = 128  # MambaMixer's chunk_size
_KERNEL = 4  # and its d_conv


def mamba_operators(shape: RankShape, source: Tensor) -> tuple[Operator, ...]:
    """From the normalized input to out_proj's output, the tensor that the residual is added to.
    Context parallelism trades the sequence for heads around the scan, as many elements; shapes here
    keep [seq_length / cp, b, all heads]."""
    inner, states, heads = _widths(shape)
    mixed = shape.activation("in_proj_out", 2 * inner + 2 * states + heads)
    projection = column_parallel_linear(
        shape, "in_proj", Module.MAMBA_IN_PROJ, source, mixed, bias=False
    )
    there, local = exchange_sequence_for_heads(shape, Module.MAMBA_IN_PROJ, mixed)
    first, batch_first = _transposed(shape, "zxBCdt", local)
    scanned = shape.activation("ssm_out", inner)
    scan = _scan(shape, batch_first, scanned)
    last, output = _transposed(shape, "ssm_out_sequence_first", scanned)
    back, output = exchange_sequence_for_heads(shape, Module.MAMBA_SCAN, output)
    norm = _group_norm(shape, output)
    out_proj = row_parallel_linear(
        shape,
        "out_proj",
        Module.MAMBA_OUT_PROJ,
        norm.outputs[0],
        shape.hidden("mixer_out"),
        bias=False,
        forward_holds=(local,),
    )
    return projection, *there, *first, scan, *last, *back, norm, out_proj


def _widths(shape: RankShape) -> tuple[int, int, int]:
    """Of one TP rank: inner channels, channels of all groups' B (or C), and heads."""
    model = shape.model
    heads, groups = mamba_heads(model) // shape.tp, model.mamba_num_groups // shape.tp
    return heads * model.mamba_head_dim, groups * model.mamba_state_dim, heads


def _transposed(shape: RankShape, name: str, source: Tensor) -> tuple[tuple[Operator, ...], Tensor]:
    """Sequence and batch exchanged: a copy where there are several sequences."""
    if shape.micro_batch_size == 1:
        return (), source
    copy = Tensor(name, source.shape, source.dtype)
    return (Operator(name, Module.MAMBA_SCAN, (source,), (copy,)),), copy


def _scan(shape: RankShape, source: Tensor, output: Tensor) -> Operator:
    """Convolution, scan and gate, one autograd function: keeps in_proj's output and the scan's
    before the gate, with three fp32 numbers a head (A, its exponential, the bias of the time step);
    convolution, states and B x C are computed again.

    Per token, forward, with state n, head width p and chunk C: 2 C n a group (B x C), and a head 2
    C p within a chunk and 4 n p with the states."""
    model = shape.model
    inner, states, heads = _widths(shape)
    ungated = Tensor("ssm_out_ungated", output.shape, shape.dtype)
    coefficients = Tensor("ssm_coefficients", (3, heads), DType.FP32)
    conv = shape.tokens * (inner + 2 * states) * shape.dtype.itemsize
    chunks = shape.micro_batch_size * -(-shape.local_seq // _CHUNK)
    state = chunks * inner * model.mamba_state_dim
    scores = chunks * (states // model.mamba_state_dim) * _CHUNK**2 * DType.FP32.itemsize
    steps = 2 * shape.tokens * heads * DType.FP32.itemsize
    both = DType.FP32.itemsize + shape.dtype.itemsize
    forward = conv + scores + steps + state * both
    backward = 2 * conv + ungated.num_bytes + scores + steps + 2 * state * both
    flops = 2 * _CHUNK * (states + inner) + 4 * model.mamba_state_dim * inner
    return Operator(
        "conv1d_scan",
        Module.MAMBA_SCAN,
        (source,),
        (output,),
        unit=ComputeUnit.SCAN,
        saved=(source, ungated, coefficients),
        # A_log and D are fp32 in Megatron, and few: they are counted like the others
        weights=(
            Weight("conv1d.weight", (inner + 2 * states, _KERNEL), True),
            Weight("conv1d.bias", (inner + 2 * states,), True),
            *(Weight(name, (heads,), True) for name in ("dt_bias", "A_log", "D")),
        ),
        attention_flops=shape.tokens * flops,
        forward_workspace=forward,
        backward_workspace=backward,
        extra_forward_bytes=2 * forward,
        extra_backward_bytes=2 * backward,
    )


def _group_norm(shape: RankShape, source: Tensor) -> Operator:
    """RMSNorm over every group's channels: keeps its input, and rstd [groups, tokens] in fp32."""
    groups = shape.model.mamba_num_groups // shape.tp
    return Operator(
        "mixer_norm",
        Module.MAMBA_NORM,
        (source,),
        (Tensor("mixer_norm_out", source.shape, shape.dtype),),
        saved=(source, Tensor("mixer_norm.rstd", (groups, shape.tokens), DType.FP32)),
        weights=(Weight("mixer.norm.weight", (source.shape[-1],), True),),
    )
