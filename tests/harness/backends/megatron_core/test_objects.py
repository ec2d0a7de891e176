"""Settings as keyword arguments of the installed Megatron's configuration classes."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("megatron.core")

from megatron.core.distributed import DistributedDataParallelConfig  # noqa: E402
from megatron.core.optimizer import OptimizerConfig  # noqa: E402
from megatron.core.transformer.transformer_config import TransformerConfig  # noqa: E402

from advisor.frameworks.megatron.raw import RawSettings  # noqa: E402
from harness.backends.megatron_core.case import MegatronCase  # noqa: E402
from harness.backends.megatron_core.model import keywords  # noqa: E402


def test_what_is_given_and_nothing_else_in_the_types_of_the_class() -> None:
    settings = RawSettings(
        num_layers=4,
        window_size="8,0",
        moe_layer_freq="([0]*1+[1]*3)",
        moe_router_dtype="fp32",
        cp_comm_type=("p2p",),
        recompute_modules=("mlp",),
        use_distributed_optimizer=True,
        fp8_param=True,
        exp_avg_dtype="bf16",
    )
    assert keywords(settings, TransformerConfig) == {
        "num_layers": 4,
        "window_size": (8, 0),
        "moe_layer_freq": [0, 1, 1, 1],
        "moe_router_dtype": "fp32",
        "cp_comm_type": "p2p",
        "recompute_modules": ["mlp"],
        "fp8_param": True,
    }
    assert keywords(settings, DistributedDataParallelConfig) == {
        "use_distributed_optimizer": True,
        "fp8_param_gather": True,
    }
    assert keywords(settings, OptimizerConfig) == {
        "use_distributed_optimizer": True,
        "exp_avg_dtype": torch.bfloat16,
    }


def test_a_renamed_option_goes_under_the_name_of_the_release() -> None:
    """megatron-core before 0.18 calls it cuda_graph_scope."""
    known = TransformerConfig.__dataclass_fields__
    name = "cuda_graph_modules" if "cuda_graph_modules" in known else "cuda_graph_scope"
    found = keywords(RawSettings(cuda_graph_modules=("attn",)), TransformerConfig)
    assert found == {name: ["attn"]}


def test_a_case_gives_what_it_has_of_its_own_and_no_experts_without_any() -> None:
    case = MegatronCase(
        num_layers=2, hidden_size=8, ffn_hidden_size=16, num_attention_heads=2, seq_length=4
    )
    given = keywords(case, TransformerConfig)
    assert given["normalization"] == "RMSNorm"
    assert not given["add_bias_linear"]
    assert "expert_tensor_parallel_size" not in given
    assert "tensor_model_parallel_size" not in given
