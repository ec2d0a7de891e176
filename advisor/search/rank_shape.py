"""Local sizes of one rank of a job, with what `auto` means for its attention."""

from functools import lru_cache
from typing import Final

from msgspec.structs import replace

from advisor.base.dtypes import DType
from advisor.job.job import AttnImplementation, Job, JobConfig
from advisor.job.layout import DataParallelSharding
from advisor.job.samples import SampleMasks
from advisor.job.tuning import Tuning
from advisor.layers.family import family_of
from advisor.layers.shape import RankShape
from advisor.models.options import AttentionBackend, SoftmaxType, TransformerImpl
from advisor.models.spec import ModelSpec


@lru_cache(maxsize=4096)
def rank_shape(job: Job) -> RankShape:
    """Local sizes of one rank of `job`, its attention backend resolved."""
    layout, config, masks = job.layout, job.config, _masks(job)
    pairs = 1 if config.samples.packed else config.rl.sequences
    return RankShape(
        model=_resolve_attention(job.model, job.gpu.cuda_capability, config),
        seq_length=config.seq_length,
        micro_batch_size=config.micro_batch_size * pairs,
        precision=config.precision,
        tensor_model_parallel_size=layout.tensor_model_parallel_size,
        sequence_parallel=layout.sequence_parallel,
        context_parallel_size=layout.context_parallel_size,
        cp_comm_type=layout.cp_comm_type,
        cp_all_to_all_size=layout.cp_all_to_all_size,
        transformer_engine=config.transformer_engine,
        tp_comm_overlap=layout.tp_comm_overlap,
        mean_packed_length=config.mean_packed_length if masks is SampleMasks.VARLEN else None,
        masked=masks is SampleMasks.DENSE,
        expert_model_parallel_size=layout.expert_model_parallel_size,
        expert_tensor_parallel_size=layout.expert_tensor_degree if job.model.num_moe_experts else 1,
        moe_load_imbalance=config.moe_load_imbalance,
        main_grads_dtype=config.main_grads_dtype,
        use_liger_kernel=config.use_liger_kernel,
        tiled_mlp=config.tiled_mlp,
        eager_attention=config.attn_implementation is AttnImplementation.EAGER,
        autocast=_autocasts(job),
        deterministic=config.deterministic_mode,
        image_tokens=config.samples.image_tokens or 0,
        images=config.samples.images,
        flash_attention=config.attn_implementation in _FLASH,
        tuning=_tuning(job),
        head=config.head,
        takes_any_layout=_BLACKWELL <= job.gpu.cuda_capability < _CONSUMER_BLACKWELL,
    )


_FLASH: Final = (AttnImplementation.FLASH_ATTENTION_2, AttnImplementation.FLASH_ATTENTION_3)
_BLACKWELL: Final = 10.0
_CONSUMER_BLACKWELL: Final = 12.0
_HOPPER: Final = 9.0
"""Compute capabilities; 8-bit GEMMs take any layout from Blackwell up to its consumer cards
(Transformer Engine 2.20 utils.py, is_non_tn_fp8_gemm_supported)."""
_WIDEST: Final = 128


def _masks(job: Job) -> SampleMasks:
    """What keeps samples of a row apart, and from padding, where nobody says it: a mask where the
    layers make one and attention is torch's (masking_utils.py, _preprocess_mask_arguments)."""
    config, samples = job.config, job.config.samples
    if samples.masks is not None and samples.packed:
        return samples.masks
    torchs = config.attn_implementation is AttnImplementation.SDPA
    filled = samples.packed or (samples.padded and config.micro_batch_size > 1)
    masked = filled and torchs and family_of(job.model).masks_rows
    return SampleMasks.DENSE if masked else SampleMasks.VARLEN


def _tuning(job: Job) -> Tuning:
    """Ranks that cut parameters gather adapters in the layers' type (FSDP2's mixed precision,
    DeepSpeed's engine, which has them so on one rank as well)."""
    tuning = job.config.tuning
    sharding = job.layout.data_parallel_sharding
    whole = sharding in (None, DataParallelSharding.NONE) or job.num_gpus == 1
    return tuning if whole else replace(tuning, adapter_dtype=None)


def _autocasts(job: Job) -> bool:
    """fp32 weights that no rank has a part of, in the layers whose autocast is modelled."""
    model = job.model
    alone = job.layout.is_whole and job.config.weights_dtype is DType.FP32
    return alone and family_of(model).autocasts and model.num_moe_experts is None


def _takes_cudnn(model: ModelSpec, compute_capability: float) -> bool:
    """Torch itself takes its flash kernel, a FlashAttention-2, which has none of Blackwell's
    instructions: there it is cuDNN's, except consumer cards. On these cuDNN trains with no wide
    keys next to narrower values (TE 2.20 attention/dot_product_attention/utils.py)."""
    consumer = compute_capability >= _CONSUMER_BLACKWELL
    if model.transformer_impl.is_eager:
        return compute_capability >= _BLACKWELL and not consumer
    narrower = model.qk_channels != model.v_channels
    return compute_capability >= _HOPPER and not (
        consumer and narrower and model.qk_channels > _WIDEST
    )


@lru_cache(maxsize=256)
def _resolve_attention(model: ModelSpec, compute_capability: float, config: JobConfig) -> ModelSpec:
    """What `auto` means: cuDNN's fused attention from Hopper on, flash-attn before (TE
    attention/dot_product_attention/utils.py); the local spec has only the unfused one, which alone
    caps scores. Before Hopper no kernel trains with sinks or with values narrower than keys:
    attention is unfused. Runs that repeat to the bit have no cuDNN with
    sinks, nor on Blackwell before Transformer Engine 2.12."""
    if model.attention_backend is not AttentionBackend.AUTO:
        return model
    capped = model.attn_logit_softcapping is not None
    if model.transformer_impl is TransformerImpl.LOCAL or capped:
        return replace(model, attention_backend=AttentionBackend.UNFUSED)
    fused = _takes_cudnn(model, compute_capability)
    wanted, sinks = config.attn_implementation, model.softmax_type is not SoftmaxType.VANILLA
    if config.deterministic_mode:
        repeats = compute_capability < _BLACKWELL or config.transformer_engine >= (2, 12)
        fused = fused and repeats and not sinks
    if model.transformer_impl.is_eager and wanted is not AttnImplementation.SDPA:
        fused = wanted is AttnImplementation.FLASH_ATTENTION_3
    older = AttentionBackend.FLASH
    if sinks or model.qk_channels != model.v_channels:
        older = AttentionBackend.UNFUSED
    backend = AttentionBackend.FUSED if fused else older
    return replace(model, attention_backend=backend)
