"""Toy models whose tensors can be computed in the head, and an H100 that is no catalogue's."""

from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.base.units import GIB
from advisor.hardware.gpu import Gpu
from advisor.job.pipeline_split import ModelChunk
from advisor.layers.operators import ComputeUnit, Module, Operator, Tensor
from advisor.layers.shape import RankShape
from advisor.models import options
from advisor.models.layer_kind import DENSE
from advisor.models.spec import ModelSpec


def toy_model(
    layers: int, hidden: int, ffn: int, heads: int, groups: int, *, name: str = "toy", **more: Any
) -> ModelSpec:
    """Heads are as wide as they share the hidden size."""
    return ModelSpec(
        name=name,
        num_layers=layers,
        hidden_size=hidden,
        ffn_hidden_size=ffn,
        num_attention_heads=heads,
        num_query_groups=groups,
        kv_channels=hidden // heads,
        **more,
    )


LLAMA = toy_model(
    *(8, 64, 128, 8, 4),
    name="toy_llama",
    vocab_size=1000,
    make_vocab_size_divisible_by=8,
    max_position_embeddings=32,
    transformer_impl=options.TransformerImpl.LOCAL,
    attention_backend=options.AttentionBackend.FLASH,
    gradient_accumulation_fusion=False,
)
AS_GPT: dict[str, Any] = {
    "activation": options.Activation.GELU,
    "normalization": options.Normalization.LAYER_NORM,
    "add_bias_linear": True,
    "position_embedding_type": options.PositionEmbedding.LEARNED,
    "hidden_dropout": 0.1,
}
GPT = replace(
    LLAMA,
    **AS_GPT,
    name="toy_gpt",
    num_query_groups=8,
    ffn_hidden_size=256,
    attention_dropout=0.1,
    attention_backend=options.AttentionBackend.UNFUSED,
    attention_softmax_in_fp32=False,
    masked_softmax_fusion=False,
    bias_dropout_fusion=False,
)

H100 = Gpu(
    name="H100-SXM-80GB",
    memory_bytes=80 * GIB,
    memory_bandwidth_bytes_per_second=3.35e12,
    bf16_flops=989e12,
    fp16_flops=989e12,
    fp8_flops=1979e12,
    sm_count=132,
    compute_capability=9.0,
    nvlink_bytes_per_second=450e9,
    nvlink_domain_size=8,
    internode_bytes_per_second=50e9,
    host_link_bytes_per_second=55e9,
    calibration="h100",
)

# Bytes of the toy: seq 32, micro batch 2, hidden 64, TP 2 with sequence parallelism, 16 bit.
HIDDEN = 32 * 2 * 64 * 2
SHARD = HIDDEN // 2
QUERY = 32 * 2 * (8 // 2) * 8 * 2
KEY = 32 * 2 * (4 // 2) * 8 * 2
MIXED = QUERY + 2 * KEY
LSE = 2 * (8 // 2) * 32 * 4
ACTIVATED = 32 * 2 * (128 // 2) * 2

_ENUMS: dict[str, Callable[[Any], Any]] = {
    "moe_router_dtype": options.RouterDType,
    "moe_token_dispatcher_type": options.TokenDispatcher,
    "transformer_impl": options.TransformerImpl,
    "attention_backend": options.AttentionBackend,
    "cross_entropy_fusion": options.CrossEntropyFusion,
    "activation": options.Activation,
    "normalization": options.Normalization,
    "position_embedding_type": options.PositionEmbedding,
}


def latent(
    model: ModelSpec, kv_rank: int, head: int, rotary: int, value: int, **more: Any
) -> ModelSpec:
    """With multi-latent attention: the rank of keys and values, and what heads are wide."""
    return replace(
        model,
        num_query_groups=model.num_attention_heads,
        multi_latent_attention=True,
        qk_layernorm=True,
        kv_lora_rank=kv_rank,
        qk_head_dim=head,
        qk_pos_emb_head_dim=rotary,
        v_head_dim=value,
        **more,
    )


def toy_shape(model: ModelSpec = LLAMA, **changes: Any) -> RankShape:
    """One rank of a toy; fields of ModelSpec change the model (enums as text),
    the others the shape."""
    fields = ModelSpec.__struct_fields__
    mine = {name: changes.pop(name) for name in list(changes) if name in fields}
    mine = {name: _ENUMS.get(name, lambda x: x)(value) for name, value in mine.items()}
    model = replace(model, **mine)
    defaults: dict[str, Any] = {
        "seq_length": 32,
        "micro_batch_size": 2,
        "tensor_model_parallel_size": 2,
        "sequence_parallel": True,
    }
    return RankShape(model=model, **{**defaults, **changes})


def saved_bytes(operators: tuple[Operator, ...]) -> dict[str, int]:
    """Every storage that the operators keep, by name."""
    return {t.storage.name: t.storage.num_bytes for o in operators for t in o.saved}


A, B, C, D = (Tensor(name, (10**power,), DType.BOOL) for power, name in enumerate("abcd"))
"""Of 1, 10, 100 and 1000 bytes: each decimal of a sum says which are in it."""


def operator(
    name: str, inputs: tuple[Tensor, ...], outputs: tuple[Tensor, ...], **fields: Any
) -> Operator:
    """An operator of no special kind."""
    module = fields.pop("module", Module.ACTIVATION)
    return Operator(
        name=name,
        module=module,
        unit=ComputeUnit.BANDWIDTH,
        inputs=inputs,
        outputs=outputs,
        **fields,
    )


def held(
    layers: int = 1, *, copies: int = 1, first: bool = False, last: bool = False
) -> tuple[ModelChunk, ...]:
    """The chunks of a stage of dense layers, with the ends of the model it holds."""
    chunks = [ModelChunk((DENSE,) * layers) for _ in range(copies)]
    chunks[0] = replace(chunks[0], embedding=first)
    chunks[-1] = replace(chunks[-1], head=last)
    return tuple(chunks)
