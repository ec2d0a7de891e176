"""Qwen3 presets have the shapes of torchtitan's, and as many parameters as its model makes."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("tyro")  # comes with torchtitan, which itself cannot be imported as it is

from advisor.layers.parameters import count_parameters  # noqa: E402
from advisor.models.presets import load_model  # noqa: E402
from tests.oracles.stacks.titan import import_titan  # noqa: E402

SHAPE = {
    "num_layers": "n_layers",
    "hidden_size": "dim",
    "ffn_hidden_size": "hidden_dim",
    "num_attention_heads": "n_heads",
    "num_query_groups": "n_kv_heads",
    "kv_channels": "head_dim",
    "vocab_size": "vocab_size",
    "qk_layernorm": "qk_norm",
    "share_embeddings_and_output_weights": "enable_weight_tying",
}


@pytest.mark.parametrize("size", ["0.6B", "1.7B", "4B", "8B", "14B", "32B"])
def test_shape_and_size(size: str) -> None:
    titan = import_titan("models.qwen3")
    args, ours = titan.qwen3_args[size], load_model(f"qwen3_{size.lower()}")
    assert {name: getattr(ours, name) for name in SHAPE} == {
        name: getattr(args, theirs) for name, theirs in SHAPE.items()
    }
    with torch.device("meta"):
        model = titan.Qwen3Model(args)
    made = sum(parameter.numel() for parameter in model.parameters())
    assert made == count_parameters(ours)
