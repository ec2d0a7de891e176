"""A layer of transformers' Llama with DeepSpeed's TiledMLP against its own code on fake tensors."""

import math
from typing import Any

import pytest
from msgspec.structs import replace

pytest.importorskip("transformers")
ulysses = pytest.importorskip("deepspeed.runtime.sequence_parallel.ulysses_sp")

from advisor.layers.transformer import transformer_layer  # noqa: E402
from advisor.memory.liveness import footprint  # noqa: E402
from advisor.models.options import TransformerImpl  # noqa: E402

from .stacks.measure import measure  # noqa: E402
from .stacks.shapes import LLAMA3_8B, shape_of  # noqa: E402

TOLERANCE = 0.005


def _tiled(self: Any, x: Any) -> Any:
    """The example in DeepSpeed's docstring."""
    parts = math.ceil(x.shape[1] / x.shape[-1])
    weights = [self.down_proj.weight, self.gate_proj.weight, self.up_proj.weight]
    return ulysses.TiledMLP.apply(_mlp, self, x, parts, weights)


def _mlp(self: Any, x: Any) -> Any:
    return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


@pytest.mark.parametrize("seq", [2048, 8192, 16384])
def test_kept_and_peaks(seq: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.models.llama.modeling_llama import LlamaMLP

    monkeypatch.setattr(LlamaMLP, "forward", _tiled)
    model = replace(LLAMA3_8B, hidden_size=2048, num_attention_heads=16)
    shape = shape_of(model, TransformerImpl.TRANSFORMERS, seq=seq, mbs=1)
    found = measure(shape)
    layer = footprint(transformer_layer(replace(shape, tiled_mlp=True)), ())
    assert layer.kept == found.kept
    assert layer.forward.num_bytes == pytest.approx(found.forward, rel=TOLERANCE)
    assert layer.backward.num_bytes == pytest.approx(found.backward, rel=TOLERANCE)
