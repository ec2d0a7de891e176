"""Parameters of hybrid models: as many as transformers makes on the meta device."""

from typing import Any

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytestmark = [pytest.mark.oracle, pytest.mark.filterwarnings("ignore")]

from advisor.layers.parameters import count_parameters  # noqa: E402
from advisor.models.config_json.importer import load_config_json  # noqa: E402

SMALL: dict[str, Any] = {"hidden_size": 256, "vocab_size": 999}


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
        (
            "nemotron_h",
            {
                "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"],
                "n_routed_experts": 16,
            },
        ),
    ],
)
def test_as_many_as_transformers_makes(tmp_path, model_type: str, changes: dict[str, Any]) -> None:
    config = transformers.AutoConfig.for_model(model_type, **SMALL, **changes)
    config.save_pretrained(tmp_path)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    made = sum(parameter.numel() for parameter in model.parameters())
    assert count_parameters(load_config_json(tmp_path / "config.json")) == made
