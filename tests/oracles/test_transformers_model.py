"""Whole models of transformers under their own activation checkpointing, forward and loss."""

from typing import Any

import pytest
from msgspec.structs import replace

transformers = pytest.importorskip("transformers")

import torch  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

from advisor.frameworks.torch.plan import Semantics, chunk_plan  # noqa: E402
from advisor.frameworks.torch.setting import parse_setting  # noqa: E402
from advisor.layers.shape import RankShape  # noqa: E402
from advisor.layers.transformers.core_attention import mask_bytes  # noqa: E402
from advisor.memory.chunk import AttentionMask, chunk_footprint  # noqa: E402
from advisor.models.layer_kind import DENSE  # noqa: E402
from advisor.models.options import TransformerImpl  # noqa: E402

from .stacks.blocks import variant_config  # noqa: E402
from .stacks.fsdp import llama  # noqa: E402
from .stacks.kernels import GpuKernels  # noqa: E402
from .stacks.meter import LiveBytes  # noqa: E402
from .stacks.shapes import LLAMA3_8B, SHARING, VARIANTS, shape_of  # noqa: E402

_CLASSES = {
    "gemma2": "Gemma2ForCausalLM",
    "gemma3_text": "Gemma3ForCausalLM",
    "gemma4_text": "Gemma4ForCausalLM",
    "olmo2": "Olmo2ForCausalLM",
}
LAYERS = 6
TOLERANCE = 0.005
"""Bar of the project for memory: 0.5 %."""
HOW = Semantics(starts_with_first=True)
KWARGS: dict[str, dict[str, Any] | None] = {
    "none": None,
    "full": {"use_reentrant": False},
    "full+use_reentrant": {"use_reentrant": True},
    "selective:2": {"use_reentrant": False},
    "selective:4": {"use_reentrant": False},
}


def _model(shape: RankShape, spec_text: str) -> Any:
    spec = shape.model
    if spec.norm_placement.after:
        config = variant_config(spec)
        cls = getattr(transformers, _CLASSES[config.model_type])
        model = cls._from_config(config, dtype=torch.bfloat16).train()
    else:
        model = llama(shape, torch.bfloat16)
    kwargs = KWARGS[spec_text]
    if kwargs is not None:  # as Trainer calls it, which takes every_n_layers out of the kwargs
        model.activation_checkpointing_enable(
            {"preserve_rng_state": False, **kwargs},
            every_n_layers=parse_setting(spec_text).num_layers or 1,
        )
    return model


def _measure(shape: RankShape, spec: str) -> tuple[int, int]:
    """Bytes alive between the passes, and the peak of the forward."""
    with FakeTensorMode(allow_non_fake_inputs=True), GpuKernels():
        model = _model(shape, spec)
        size = shape.micro_batch_size, shape.seq_length
        tokens, labels = (torch.zeros(size, dtype=torch.int64) for _ in range(2))
        known = (*model.parameters(), *model.buffers(), tokens, labels)
        with LiveBytes(known) as live:
            loss = model(input_ids=tokens, labels=labels).loss
            found = live.now, live.peak
            del loss
        return found


@pytest.mark.parametrize("spec", ["none", "full"])
@pytest.mark.parametrize("name", VARIANTS | SHARING)
def test_variants(name: str, spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _without_packing(monkeypatch)
    model = (VARIANTS | SHARING)[name]
    shape = shape_of(replace(model, vocab_size=32000), TransformerImpl.TRANSFORMERS)
    kept, forward = _measure(shape, spec)
    plan = chunk_plan(parse_setting(spec), shape, shape.model.layer_kinds, HOW)
    predicted = chunk_footprint(shape, plan, True, True, AttentionMask(mask_bytes(shape)))
    assert predicted.kept == pytest.approx(kept, rel=TOLERANCE)
    assert predicted.forward.num_bytes == pytest.approx(forward, rel=TOLERANCE)


def _without_packing(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks into the positions for packed sequences, which fake tensors cannot tell."""
    packed = "transformers.masking_utils.find_packed_sequence_indices"
    monkeypatch.setattr(packed, lambda *args, **kwargs: None)


@pytest.mark.parametrize("spec", KWARGS)
def test_kept_and_forward_peak(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _without_packing(monkeypatch)
    model = replace(LLAMA3_8B, vocab_size=4096, num_layers=LAYERS)
    shape = shape_of(model, TransformerImpl.TRANSFORMERS)
    kept, forward = _measure(shape, spec)
    plan = chunk_plan(parse_setting(spec), shape, (DENSE,) * LAYERS, HOW)
    predicted = chunk_footprint(shape, plan, True, True)
    assert predicted.kept == pytest.approx(kept, rel=TOLERANCE)
    assert predicted.forward.num_bytes == pytest.approx(forward, rel=TOLERANCE)


@pytest.mark.parametrize("spec", ["none", "full"])
@pytest.mark.parametrize("rows", [1, 2])
def test_samples_packed_in_rows(rows: int, spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without FlashAttention a mask of all pairs keeps them apart, in each row another one."""
    monkeypatch.setattr(
        "transformers.masking_utils.find_packed_sequence_indices",
        lambda positions: torch.zeros(positions.shape, dtype=torch.int64),
    )
    model = replace(LLAMA3_8B, vocab_size=4096, num_layers=LAYERS)
    shape = replace(
        shape_of(model, TransformerImpl.TRANSFORMERS), micro_batch_size=rows, masked=True
    )
    kept, forward = _measure(shape, spec)
    plan = chunk_plan(parse_setting(spec), shape, (DENSE,) * LAYERS, HOW)
    predicted = chunk_footprint(shape, plan, True, True, AttentionMask(mask_bytes(shape)))
    assert predicted.kept == pytest.approx(kept, rel=TOLERANCE)
    assert predicted.forward.num_bytes == pytest.approx(forward, rel=TOLERANCE)
