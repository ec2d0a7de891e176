"""Parameters of models whose files have keys of their own: as many as transformers makes on the
meta device."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from advisor.layers.parameters import count_parameters  # noqa: E402
from advisor.models.config_json.importer import load_config_json  # noqa: E402

SMALL: dict[str, Any] = {"hidden_size": 256, "vocab_size": 999}
TINY: dict[str, Any] = {
    **{"num_hidden_layers": 3, "intermediate_size": 512},
    **{"num_attention_heads": 8, "num_key_value_heads": 4},
}
GEMMA4: dict[str, Any] = {
    **TINY,
    **{"num_hidden_layers": 8, "head_dim": 32, "global_head_dim": 64},
    "hidden_size_per_layer_input": 0,
}
E2B: dict[str, Any] = {
    **{"num_hidden_layers": 35, "hidden_size": 1536, "intermediate_size": 6144},
    **{"num_attention_heads": 8, "num_key_value_heads": 1, "sliding_window": 512},
    **{"layer_types": (["sliding_attention"] * 4 + ["full_attention"]) * 7},
    **{"num_kv_shared_layers": 20, "use_double_wide_mlp": True, "vocab_size": 262144},
}
E4B: dict[str, Any] = {
    **{"num_hidden_layers": 42, "hidden_size": 2560, "intermediate_size": 10240},
    **{"num_attention_heads": 8, "num_key_value_heads": 2, "sliding_window": 512},
    **{"num_kv_shared_layers": 18, "vocab_size": 262144},
}
_MIXERS = ["linear_attention", "moe", "full_attention"]


@pytest.mark.parametrize(
    ("model_type", "changes"),
    [
        ("qwen3_next", {"num_hidden_layers": 5, "num_experts": 16}),
        (
            "qwen3_next",
            {
                "num_hidden_layers": 4,
                "num_experts": 16,
                "mlp_only_layers": [1],
                "tie_word_embeddings": True,
                "linear_num_value_heads": 16,
            },
        ),
        ("nemotron_h", {"layers_block_type": [*_MIXERS, "mlp"], "n_routed_experts": 16}),
        (
            "nemotron_h",
            {"layers_block_type": [*_MIXERS, "moe"], "n_routed_experts": 16, "moe_latent_size": 96},
        ),
        ("qwen3_5_text", {"num_hidden_layers": 5, "intermediate_size": 512}),
        ("qwen3_5_moe_text", {"num_hidden_layers": 4, "num_experts": 16}),
        ("glm4_moe_lite", {"num_hidden_layers": 3, "n_routed_experts": 16}),
        ("deepseek_v32", {"num_hidden_layers": 5, "n_routed_experts": 16}),
        ("glm_moe_dsa", {"num_hidden_layers": 5, "n_routed_experts": 16, "index_n_heads": 8}),
        ("minimax_m2", {**TINY, "num_local_experts": 16}),
        ("minimax_m2", {**TINY, "num_local_experts": 16, "head_dim": 64, "rotary_dim": 32}),
        ("ernie4_5_moe", {**TINY, "moe_num_experts": 16}),
        (
            "ernie4_5_moe",
            {
                **TINY,
                "num_hidden_layers": 6,
                "moe_num_experts": 16,
                "moe_layer_interval": 2,
                "moe_layer_end_index": 4,
                "moe_num_shared_experts": 0,
                "tie_word_embeddings": False,
            },
        ),
        ("gpt_oss", {**TINY, "num_local_experts": 16}),
        ("gemma4_text", GEMMA4),
        (
            "gemma4_text",
            {
                **GEMMA4,
                **{"attention_k_eq_v": True, "num_global_key_value_heads": 2},
                **{"enable_moe_block": True, "num_experts": 16, "top_k_experts": 4},
                "moe_intermediate_size": 96,
            },
        ),
        ("gemma4_text", E2B),
        ("gemma4_text", E4B),
        ("olmo3", {**TINY, "num_hidden_layers": 8}),
        ("seed_oss", TINY),
        ("ministral3", {**TINY, "tie_word_embeddings": True}),
    ],
)
def test_as_many_as_transformers_makes(tmp_path, model_type: str, changes: dict[str, Any]) -> None:
    config = transformers.AutoConfig.for_model(model_type, **(SMALL | changes))
    config.save_pretrained(tmp_path)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    trained = (parameter for parameter in model.parameters() if parameter.requires_grad)
    made = sum(parameter.numel() for parameter in trained)
    assert count_parameters(load_config_json(tmp_path / "config.json")) == made
