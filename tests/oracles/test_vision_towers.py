"""Vision towers of Qwen2.5-VL and Qwen3-VL against transformers: a block to the byte, and whole
models with the tower trained or frozen. On real tensors of a CPU, as grids are read by Python."""

from typing import Any

import pytest
from msgspec.structs import replace

pytest.importorskip("transformers")

import torch

from advisor.frameworks.torch.plan import Semantics, chunk_plan
from advisor.frameworks.torch.setting import parse_setting
from advisor.job.tuning import Tuning
from advisor.layers.shape import RankShape
from advisor.layers.transformer import transformer_layer
from advisor.memory.chunk import chunk_footprint
from advisor.memory.liveness import footprint
from advisor.models.options import TransformerImpl
from advisor.models.presets import load_model

from .stacks.kernels import GpuKernels, NoProducts
from .stacks.measure import Measured, passes
from .stacks.meter import LiveBytes
from .stacks.shapes import shape_of
from .stacks.towers import inputs, tower_block, whole_model

PRESETS = ("qwen2.5_vl_7b", "qwen3_vl_8b")


def _shape(name: str, *, tokens: int, images: int = 1, mbs: int = 1) -> RankShape:
    model = load_model(name)
    shape = shape_of(model, TransformerImpl.TRANSFORMERS, seq=tokens + 64, mbs=mbs)
    return replace(shape, image_tokens=tokens, images=images)


def _block(shape: RankShape, number: int) -> Measured:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with GpuKernels():
            made, rest, named = tower_block(shape, shape.model.tower_kinds[number])
            size = shape.tower.seq_length, shape.tower.model.hidden_size
            leaf = torch.empty(size, requires_grad=True)
            known = (leaf, *made.parameters(), *rest, *named["position_embeddings"])
            return passes(made.train(), leaf, rest, named, known)
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize(("tokens", "images", "mbs"), [(256, 1, 1), (256, 4, 2)])
@pytest.mark.parametrize("number", [0, 7])
@pytest.mark.parametrize("name", PRESETS)
def test_a_block(name: str, number: int, tokens: int, images: int, mbs: int) -> None:
    shape = _shape(name, tokens=tokens, images=images, mbs=mbs)
    measured = _block(shape, number)
    found = footprint(transformer_layer(shape, shape.model.tower_kinds[number]), ())
    assert found.kept == measured.kept
    assert found.forward.num_bytes == pytest.approx(measured.forward, rel=0.005)
    assert found.backward.num_bytes == pytest.approx(measured.backward, rel=0.005)


def _small(name: str, tuning: Tuning) -> RankShape:
    model = load_model(name)
    tower = model.vision
    assert tower is not None
    deep = {"deepstack_layers": (0, 1)} if tower.deepstack_layers else {}
    tower = replace(tower, num_layers=4, full_attention_layers=(1, 3), **deep)
    sizes = {"hidden_size": 1024, "ffn_hidden_size": 2048, "num_attention_heads": 8}
    model = replace(model, **sizes, num_layers=4, num_query_groups=2, vocab_size=4096, vision=tower)
    shape = shape_of(model, TransformerImpl.TRANSFORMERS, seq=160, mbs=2)
    return replace(shape, image_tokens=144, tuning=tuning)


def _freeze(model: Any, tuning: Tuning) -> None:
    for name, weight in model.model.visual.named_parameters():
        projects = "merger" in name
        stays = tuning.freeze_vision_projection if projects else tuning.freeze_vision_model
        weight.requires_grad_(not stays)


def _measure(shape: RankShape, spec: str) -> tuple[int, int, int]:
    with GpuKernels(), NoProducts():
        model, given = whole_model(shape), inputs(shape)
        _freeze(model, shape.tuning)
        if spec != "none":
            every = parse_setting(spec).num_layers or 1
            options = {"use_reentrant": False, "preserve_rng_state": False}
            model.activation_checkpointing_enable(options, every_n_layers=every)
        for weight in model.parameters():  # gradients of earlier microbatches are there
            weight.grad = torch.zeros_like(weight) if weight.requires_grad else None
        made = [weight.grad for weight in model.parameters() if weight.grad is not None]
        known = (*model.parameters(), *model.buffers(), *made, *given.values())
        with LiveBytes(known) as live:
            loss = model(**given).loss
            kept, forward = live.now, live.peak
            live.reset_peak()
            engine = torch.autograd.Variable._execution_engine  # else the mode would be left
            engine.run_backward((loss,), (torch.ones(()),), False, False, (), True, True)
            return kept, forward, live.peak


FROZEN = {
    "trained": Tuning(),
    "tower frozen": Tuning(freeze_vision_model=True),
    "both frozen": Tuning(freeze_vision_model=True, freeze_vision_projection=True),
    "projector frozen": Tuning(freeze_vision_projection=True),
}


CASES = [
    ("trained", "full"),
    ("tower frozen", "none"),
    ("tower frozen", "full"),
    ("both frozen", "full"),
    ("projector frozen", "none"),
]


@pytest.mark.parametrize(("tuning", "spec"), CASES)
@pytest.mark.parametrize("name", PRESETS)
def test_a_model_that_sees(name: str, tuning: str, spec: str) -> None:
    shape = _small(name, FROZEN[tuning])
    kept, forward, backward = _measure(shape, spec)
    layers = (*shape.model.tower_kinds, *shape.model.layer_kinds)
    plan = chunk_plan(parse_setting(spec), shape, layers, Semantics(starts_with_first=True))
    adds = replace(shape, adds_weight_grads=True)
    predicted = chunk_footprint(adds, plan, True, True)
    assert predicted.kept == pytest.approx(kept, rel=0.002)
    assert predicted.forward.num_bytes == pytest.approx(forward, rel=0.015)
    assert predicted.backward.num_bytes == pytest.approx(backward, rel=0.015)
