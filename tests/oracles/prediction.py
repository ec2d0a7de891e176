"""What the advisor predicts for an oracle's case, and the model shapes that the tests share."""

from collections.abc import Iterable
from typing import Any, Final

from msgspec.structs import replace

from advisor.base.fields import convert, field_types
from advisor.frameworks.megatron.buffers import process_buffers
from advisor.frameworks.megatron.graphed import graph_inputs
from advisor.frameworks.megatron.plan import chunk_plan, copies_outputs_of, of_release
from advisor.frameworks.megatron.setting import Granularity, Method, RecomputeSetting
from advisor.job.job import CudaGraphImpl
from advisor.job.layout import ParallelLayout
from advisor.job.pipeline_split import ModelChunk, pipeline_stages
from advisor.job.tuning import FULL
from advisor.layers.shape import RankShape
from advisor.layers.transformer import LAYER_INPUT
from advisor.memory import activations
from advisor.memory.chunk import ChunkFootprint, chunk_footprint
from advisor.models.options import Activation, AttentionBackend, CrossEntropyFusion, TransformerImpl
from advisor.models.presets import load_model
from advisor.models.spec import ModelSpec
from harness.backends.megatron_core.installed import installed_revision
from tests.advisor.jobs import job_config

from .megatron import CoreAttention, OracleCase, activation_peak

RELEASE = installed_revision()
COPIES = copies_outputs_of(RELEASE)
_GPT: dict[str, Any] = {
    "activation": Activation.GELU,
    "normalization": "LayerNorm",
    "add_bias_linear": True,
    "position_embedding_type": "learned_absolute",
    "hidden_dropout": 0.1,
    "attention_dropout": 0.1,
    "vocab_size": 51200,
    "seq_length": 2048,
    "num_layers": 4,
}


def shaped(name: str, **changes: Any) -> OracleCase:
    """Four layers as wide as those of a preset; published vocabularies are padded for any TP."""
    spec = load_model(name)
    fields = ("hidden_size", "ffn_hidden_size", "num_attention_heads", "num_query_groups")
    widths = {field: getattr(spec, field) for field in (*fields, "kv_channels")}
    return OracleCase(**({"num_layers": 4, "seq_length": 4096} | widths | changes))


LLAMA3_8B = shaped("llama3_8b", seq_length=8192, vocab_size=129024, micro_batch_size=2)
LLAMA3_70B = shaped("llama3_70b", vocab_size=129024)
GPT_22B = shaped("gpt3_22b", micro_batch_size=4, **_GPT)
GPT_175B = shaped("gpt3_175b", **_GPT)
QWEN3_32B = shaped("qwen3_32b", qk_layernorm=True, vocab_size=152064)
QWEN25_7B = shaped("qwen2.5_7b", add_qkv_bias=True, vocab_size=152064)
NEMOTRON4_15B = shaped(
    "nemotron4_15b",
    activation=Activation.SQUARED_RELU,
    bias_activation_fusion=False,
    normalization="LayerNorm",
    vocab_size=256000,
)
MODELS = {
    "llama3_8b": LLAMA3_8B,
    "llama3_70b": LLAMA3_70B,
    "gpt3_22b": GPT_22B,
    "gpt3_175b": GPT_175B,
    "qwen3_32b": QWEN3_32B,
    "qwen2.5_7b": QWEN25_7B,
    "nemotron4_15b": NEMOTRON4_15B,
}


def selective(*modules: str) -> dict[str, Any]:
    """Fields of a case with selective recompute."""
    return {"recompute_granularity": "selective", "recompute_modules": modules}


def selections(*settings: str) -> dict[str, dict[str, Any]]:
    """Nothing recomputed, and the modules that each of `settings` lists."""
    return {"none": {}, **{setting: selective(*setting.split(",")) for setting in settings}}


def full(method: str, num_layers: int) -> dict[str, Any]:
    """Fields of a case with full recompute."""
    return {
        "recompute_granularity": "full",
        "recompute_method": method,
        "recompute_num_layers": num_layers,
    }


def tensor_parallel(size: int, sequence_parallel: bool) -> dict[str, Any]:
    """Fields of a case with tensor parallelism."""
    return {"tensor_model_parallel_size": size, "sequence_parallel": sequence_parallel}


_SAME = (
    "num_layers hidden_size ffn_hidden_size num_attention_heads vocab_size normalization activation"
    " add_bias_linear add_qkv_bias qk_layernorm attention_output_gate multi_latent_attention"
    " q_lora_rank kv_lora_rank qk_head_dim qk_pos_emb_head_dim v_head_dim rope_type mtp_num_layers"
    " share_embeddings_and_output_weights position_embedding_type rotary_percent hidden_dropout"
    " attention_dropout attention_softmax_in_fp32 bias_activation_fusion bias_dropout_fusion"
    " experimental_attention_variant dsa_indexer_n_heads dsa_indexer_head_dim dsa_indexer_topk"
    " dsa_indexer_loss_coeff"
)


def model_spec(case: OracleCase) -> ModelSpec:
    """The model of `case` on the local layer spec."""
    unfused = case.attention is CoreAttention.UNFUSED
    heads, types = case.num_attention_heads, field_types(ModelSpec)
    same = {name: convert(getattr(case, name), types[name], "", name) for name in _SAME.split()}
    return ModelSpec(
        name="oracle",
        num_query_groups=case.num_query_groups or heads,
        kv_channels=case.kv_channels or case.hidden_size // heads,
        make_vocab_size_divisible_by=1,
        max_position_embeddings=case.seq_length,
        transformer_impl=TransformerImpl.LOCAL,
        attention_backend=AttentionBackend.UNFUSED if unfused else AttentionBackend.FLASH,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        cross_entropy_fusion=CrossEntropyFusion.NONE,
        **same,
        **_experts(case),
    )


def _experts(case: OracleCase) -> dict[str, Any]:
    """Fields of ModelSpec about mixture of experts."""
    if not case.has_experts:
        return {}
    types = field_types(ModelSpec)
    return {
        name: convert(value, types[name], "", name)
        for name, value in case.given.items()
        if name in types and (name.startswith("moe_") or name == "num_moe_experts")
    }


def rank_shape(case: OracleCase, **variant: Any) -> RankShape:
    """Local sizes of one rank of `case`, with fields of the model that no case has, and its
    `tuning`."""
    degrees = (
        f"{kind}_parallel_size"
        for kind in ("tensor_model", "context", "expert_model", "expert_tensor")
    )
    names = ("seq_length", "micro_batch_size", "sequence_parallel", *degrees)
    same = {name: getattr(case, name) for name in names}
    tuned = variant.pop("tuning", FULL)
    shape = RankShape(model=replace(model_spec(case), **variant), tuning=tuned, **same)
    return of_release(shape, RELEASE, overlaps_exchange=False)


def recompute_setting(case: OracleCase) -> RecomputeSetting:
    """The recompute setting of `case`."""
    return RecomputeSetting(
        granularity=Granularity(case.recompute_granularity or "none"),
        modules=case.recompute_modules,
        method=Method(case.recompute_method) if case.recompute_method else None,
        num_layers=case.recompute_num_layers,
        distribute_saved_activations=case.distribute_saved_activations,
    )


def predicted_saved_bytes(case: OracleCase, **variant: Any) -> int:
    """Bytes that the last layer keeps from its forward to its backward."""
    shape = rank_shape(case, **variant)
    kinds = shape.model.layer_kinds[-1:]
    plan = chunk_plan(recompute_setting(case), shape.model, kinds, case.sequence_parallel, COPIES)
    return chunk_footprint(shape, plan, False, False).kept


def held_by_stage(shape: RankShape) -> tuple[tuple[ModelChunk, ...], ...]:
    """The chunks of a model that is on one stage."""
    return pipeline_stages(shape.model, ParallelLayout())


def predicted_saved_bytes_of_model(case: OracleCase) -> int:
    """Bytes that a model on one stage keeps from its forward to its backward."""
    shape = rank_shape(case)
    ((chunk,),) = held_by_stage(shape)
    return _footprint(case, shape, chunk).kept


def predicted_peak(case: OracleCase, stage: int, **variant: Any) -> int:
    """Peak above parameters and gradients, with Megatron's own buffers."""
    shape = rank_shape(case, **variant)
    pp, vpp = case.pipeline_model_parallel_size, case.num_model_chunks
    layout = ParallelLayout(
        pipeline_model_parallel_size=pp,
        virtual_pipeline_model_parallel_size=vpp,
        num_layers_in_first_pipeline_stage=case.num_layers_in_first_pipeline_stage,
        num_layers_in_last_pipeline_stage=case.num_layers_in_last_pipeline_stage,
    )
    held = pipeline_stages(shape.model, layout)[stage]
    footprints = tuple(_footprint(case, shape, chunk) for chunk in held)
    hidden, chunks = shape.hidden(LAYER_INPUT).num_bytes, tuple(range(vpp))
    peak = activations.activation_peak(hidden, footprints, chunks, pp, stage, case.num_microbatches)
    return peak.total + sum(term.num_bytes for term in process_buffers(shape, held))


SCALARS_BYTES: Final = 64
"""Token counts, loss values, and the one element that a sent output keeps: see
test_activation_peaks."""


def assert_peaks(case: OracleCase, stages: Iterable[int] | None = None) -> None:
    """Measured minus predicted is what the schedule's scalars take, on every stage."""
    for stage in stages or range(case.pipeline_model_parallel_size):
        measured, predicted = activation_peak(case, stage), predicted_peak(case, stage)
        assert 0 <= measured - predicted <= SCALARS_BYTES, f"stage {stage}: {predicted / measured}"


def predicted_graph_inputs(case: OracleCase, stage: int) -> int:
    """Inputs that graphs of whole layers have of their own on a stage."""
    shape, pp, vpp = rank_shape(case), case.pipeline_model_parallel_size, case.num_model_chunks
    layout = ParallelLayout(
        pipeline_model_parallel_size=pp, virtual_pipeline_model_parallel_size=vpp
    )
    config = job_config(
        case.seq_length,
        case.micro_batch_size,
        case.micro_batch_size,
        cuda_graph_impl=CudaGraphImpl.TRANSFORMER_ENGINE,
    )
    held = pipeline_stages(shape.model, layout)[stage]
    each = [graph_inputs(config, shape, chunk.layers) for chunk in held]
    return activations.most_in_flight(each, tuple(range(vpp)), pp, stage, case.num_microbatches)


def _footprint(case: OracleCase, shape: RankShape, chunk: ModelChunk) -> ChunkFootprint:
    plan = chunk_plan(
        recompute_setting(case), shape.model, chunk.layers, case.sequence_parallel, COPIES
    )
    return chunk_footprint(shape, plan, chunk.embedding, chunk.head)
