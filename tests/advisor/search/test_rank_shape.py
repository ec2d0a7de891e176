"""What `auto` means for attention, by GPU, implementation and release."""

import pytest
from msgspec.structs import replace

from advisor.hardware.catalogue import load_gpu
from advisor.models.options import AttentionBackend, SoftmaxType, TransformerImpl
from advisor.search.rank_shape import rank_shape
from tests.advisor.conftest import JOB


@pytest.mark.parametrize(
    ("gpu", "impl", "backend"),
    [
        ("H100", TransformerImpl.TRANSFORMER_ENGINE, AttentionBackend.FUSED),
        ("A100", TransformerImpl.TRANSFORMER_ENGINE, AttentionBackend.FLASH),
        ("H100", TransformerImpl.LOCAL, AttentionBackend.UNFUSED),
        ("H100", TransformerImpl.TRANSFORMERS, AttentionBackend.FLASH),
        ("B200", TransformerImpl.TRANSFORMERS, AttentionBackend.FUSED),
        ("RTX-PRO-6000", TransformerImpl.TRANSFORMER_ENGINE, AttentionBackend.FUSED),
        ("RTX-PRO-6000", TransformerImpl.TRANSFORMERS, AttentionBackend.FLASH),
        ("RTX4090", TransformerImpl.TRANSFORMER_ENGINE, AttentionBackend.FLASH),
        ("MI300X", TransformerImpl.TRANSFORMER_ENGINE, AttentionBackend.FLASH),
    ],
)
def test_auto_attention_is_resolved_by_gpu_and_implementation(
    gpu: str, impl: TransformerImpl, backend: AttentionBackend
) -> None:
    other = replace(JOB, gpu=load_gpu(gpu), model=replace(JOB.model, transformer_impl=impl))
    assert rank_shape(other).model.attention_backend is backend


@pytest.mark.parametrize(
    ("gpu", "release", "sinks", "backend"),
    [
        ("H100", "2.11", False, AttentionBackend.FUSED),
        ("B200", "2.11", False, AttentionBackend.FLASH),
        ("B200", "2.12", False, AttentionBackend.FUSED),
        ("B200", "2.20", True, AttentionBackend.UNFUSED),
        ("A100", "2.20", False, AttentionBackend.FLASH),
    ],
)
def test_auto_attention_of_runs_that_repeat_to_the_bit(
    gpu: str, release: str, sinks: bool, backend: AttentionBackend
) -> None:
    config = replace(JOB.config, deterministic_mode=True, transformer_engine_version=release)
    kind = SoftmaxType.LEARNABLE if sinks else SoftmaxType.VANILLA
    model = replace(JOB.model, softmax_type=kind)
    other = replace(JOB, gpu=load_gpu(gpu), model=model, config=config)
    assert rank_shape(other).model.attention_backend is backend
