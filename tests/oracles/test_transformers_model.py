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
SMALL = replace(LLAMA3_8B, vocab_size=4096, num_layers=6)
PACKED = "transformers.masking_utils.find_packed_sequence_indices"
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


def _compare(shape: RankShape, spec: str) -> None:
    """Bytes alive between the passes, and the peak of the forward."""
    plan = chunk_plan(parse_setting(spec), shape, shape.model.layer_kinds, HOW)
    predicted = chunk_footprint(shape, plan, True, True, AttentionMask(mask_bytes(shape)))
    with FakeTensorMode(allow_non_fake_inputs=True), GpuKernels():
        model = _model(shape, spec)
        size = shape.micro_batch_size, shape.seq_length
        tokens, labels = (torch.zeros(size, dtype=torch.int64) for _ in range(2))
        known = (*model.parameters(), *model.buffers(), tokens, labels)
        with LiveBytes(known) as live:
            loss = model(input_ids=tokens, labels=labels).loss
            assert predicted.kept == pytest.approx(live.now, rel=TOLERANCE)
            assert predicted.forward.num_bytes == pytest.approx(live.peak, rel=TOLERANCE)
            del loss


@pytest.mark.parametrize(
    ("name", "spec"),
    [
        *((name, spec) for name in VARIANTS | SHARING for spec in ("none", "full")),
        *(("llama3_8b", spec) for spec in KWARGS),
    ],
)
def test_kept_and_forward_peak(name: str, spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Fake tensors cannot tell packed sequences, for which it looks into the positions.
    monkeypatch.setattr(PACKED, lambda *args, **kwargs: None)
    model = (VARIANTS | SHARING | {"llama3_8b": SMALL})[name]
    model = replace(model, vocab_size=min(model.vocab_size, 32000))
    _compare(shape_of(model, TransformerImpl.TRANSFORMERS), spec)


@pytest.mark.parametrize("spec", ["none", "full"])
@pytest.mark.parametrize("rows", [1, 2])
def test_samples_packed_in_rows(rows: int, spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without FlashAttention a mask of all pairs keeps them apart, in each row another one."""
    monkeypatch.setattr(PACKED, lambda given: torch.zeros(given.shape, dtype=torch.int64))
    shape = shape_of(SMALL, TransformerImpl.TRANSFORMERS)
    _compare(replace(shape, micro_batch_size=rows, masked=True), spec)
