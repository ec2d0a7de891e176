"""Every setting: gradients equal to none's, bytes and FLOPs equal to the prediction."""

import pytest
from msgspec.structs import replace

torch = pytest.importorskip("torch")

from cases import EXPERTS, GPT, LLAMA, Phases, workload  # noqa: E402
from seen import SEED, alive_after_forward, assert_as_predicted, run, without_recompute  # noqa: E402

from advisor.models.options import Activation, Normalization, PositionEmbedding  # noqa: E402
from advisor.models.spec import ModelSpec  # noqa: E402
from harness.backends.native.predict import predict_layer  # noqa: E402
from harness.backends.native.step import build_step  # noqa: E402
from harness.measure.memory import StorageMeter  # noqa: E402

SETTINGS = (
    *("selective", "selective:core_attn", "selective:mlp", "selective:layernorm"),
    *("selective:core_attn,mlp", "selective:core_attn,layernorm", "selective:mlp,layernorm"),
    *("selective:core_attn,mlp,layernorm", "full:uniform:1", "full:uniform:2", "full:uniform:3"),
    *("full:block:1", "full:block:2", "op:save_matmul", "op:save_attention", "op:torchtitan"),
    *("none+offload=core_attn,attn_proj", "none+offload=attn_norm,qkv_linear,mlp_norm"),
    *("selective:mlp+offload=core_attn", "selective:layernorm+offload=qkv_linear"),
)
LLAMA_DROPOUT = replace(LLAMA, hidden_dropout=0.1, attention_dropout=0.1)
MODELS = {"llama": LLAMA_DROPOUT, "gpt": GPT}


@pytest.mark.parametrize("setting", ["none", *SETTINGS])
@pytest.mark.parametrize("name", MODELS)
def test_setting(name: str, setting: str) -> None:
    """Dropout is on: equal gradients mean that the random state is replayed."""
    assert_as_predicted(MODELS[name], setting)


def test_dropout_changes_gradients() -> None:
    """Otherwise equality above would say nothing about random states."""
    gradients = without_recompute(LLAMA_DROPOUT).gradients
    other = run(build_step(workload(LLAMA), SEED)).gradients
    assert any(not torch.equal(grad, other[key]) for key, grad in gradients.items())


SHAPES: dict[str, ModelSpec] = {
    "one group": replace(LLAMA, num_query_groups=1),
    "no groups": replace(LLAMA, num_query_groups=4),
    "head norms": replace(LLAMA, qk_layernorm=True),
    "part of the head is rotated": replace(LLAMA, rotary_percent=0.5),
    "no positions": replace(LLAMA, position_embedding_type=PositionEmbedding.NONE),
    "biases": replace(LLAMA, add_bias_linear=True, normalization=Normalization.LAYER_NORM),
    "qkv bias, wide heads": replace(LLAMA, add_qkv_bias=True, kv_channels=24),
    "geglu": replace(LLAMA, activation=Activation.GEGLU),
    "squared relu": replace(LLAMA, activation=Activation.SQUARED_RELU),
    "gpt without bias": replace(GPT, add_bias_linear=False, attention_dropout=0.0),
    "gpt grouped": replace(GPT, num_query_groups=2, hidden_dropout=0.0),
}


@pytest.mark.parametrize("micro_batch_size", [1, 2])
@pytest.mark.parametrize("shape", SHAPES)
def test_saved_bytes_of_shapes(shape: str, micro_batch_size: int) -> None:
    settings = ("none", "selective:core_attn,layernorm", "op:save_attention")
    for setting in settings[: 3 if micro_batch_size == 1 else 1]:
        one = workload(SHAPES[shape], setting, seq_length=16, micro_batch_size=micro_batch_size)
        assert build_step(one, SEED).saved_bytes_per_layer() == predict_layer(one)[0]


@pytest.mark.parametrize(
    ("model", "setting"),
    [
        (LLAMA, "selective:core_attn"),
        (LLAMA, "selective:mlp"),
        (LLAMA, "selective:layernorm"),
        (LLAMA, "full:uniform:1"),
        (LLAMA, "selective:core_attn,mlp,layernorm"),
        (LLAMA, "op:torchtitan"),
        (EXPERTS, "selective:moe"),
        (EXPERTS, "selective:moe_act,layernorm"),
    ],
)
def test_what_is_not_kept_is_off_the_peak(model: ModelSpec, setting: str) -> None:
    """The peak is the head's, with all layers' kept tensors alive; what a replay brings back must
    be gone before the next layer's."""

    def peak(spec: str) -> tuple[int, int]:
        wide_head = replace(model, vocab_size=2048)
        one = workload(wide_head, spec, seq_length=64, micro_batch_size=4)
        step, meter = build_step(one, SEED), StorageMeter()
        with meter.measuring():
            step.forward_backward(Phases())
        return meter.peak_bytes, predict_layer(one)[0] * one.model.num_layers

    highest, kept = peak("none")
    lower, kept_less = peak(setting)
    assert highest - lower == kept - kept_less


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(
    "setting",
    [
        *("none", "selective:layernorm", "selective:core_attn,mlp", "full:uniform:2"),
        *("full:block:1", "op:torchtitan"),
    ],
)
def test_nothing_else_is_alive(name: str, setting: str) -> None:
    one = workload(MODELS[name], setting)
    predicted = predict_layer(one)[0] * one.model.num_layers
    assert alive_after_forward(one) == predicted
