"""The native backend on a GPU: the same settings, with flash attention's own kernels.

Bytes may differ from the prediction by the random state that the kernel keeps (16 to 32 bytes a
layer); gradients by the order of atomic additions in its backward.
"""

import sys
from pathlib import Path

import pytest
from msgspec.structs import replace

torch = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU"),
]

sys.path.insert(0, str(Path(__file__).parents[1] / "harness/backends/native"))
from cases import EXPERTS, GPT, LLAMA, Phases, workload  # noqa: E402

from advisor.models.options import TransformerImpl  # noqa: E402
from advisor.models.spec import ModelSpec  # noqa: E402
from harness.backends.native import build  # noqa: E402
from harness.backends.native.predict import predict_layer  # noqa: E402
from harness.backends.native.step import NativeStep, build_step  # noqa: E402
from harness.trial.trial import Device, Workload  # noqa: E402
from tests.advisor.toys import latent  # noqa: E402

LATENT = latent(LLAMA, 24, 128, 64, 128)
MODELS = {
    "llama": replace(LLAMA, hidden_dropout=0.1),
    "gpt": GPT,
    "experts": EXPERTS,
    "latent": LATENT,
}
SETTINGS = (
    "none",
    "selective:core_attn",
    "selective:mlp",
    "selective:layernorm",
    "selective:core_attn,mlp,layernorm",
    "full:uniform:1",
    "full:uniform:2",
    "full:block:1",
    "op:save_matmul",
    "op:save_attention",
    "op:torchtitan",
    "none+offload=core_attn,attn_proj",
)
CASES = (
    *(("llama", setting) for setting in SETTINGS),
    *(
        ("gpt", setting)
        for setting in SETTINGS
        if setting not in ("op:save_attention", "op:torchtitan")
    ),  # wrong gradients under attention's dropout: refused
    *(
        ("experts", setting)
        for setting in (
            "none",
            "selective:moe",
            "selective:moe_act",
            "selective:layernorm",
            "full:uniform:1",
        )
    ),
    *(
        ("latent", setting)
        for setting in ("none", "selective:mla_up_proj", "selective:core_attn", "full:uniform:1")
    ),
)
ROUNDING = 0.02
"""Of gradients in bf16 (2^-8 a value) whose attention adds in an order of its own every time."""


def _on_gpu(model: ModelSpec, setting: str) -> Workload:
    local = replace(model, transformer_impl=TransformerImpl.LOCAL)
    return workload(local, setting, device=Device.CUDA, seq_length=64)


def _gradients(step: NativeStep) -> dict[str, torch.Tensor]:
    step.forward_backward(Phases())
    found = {name: p.grad.clone() for name, p in step.model.named_parameters()}
    step.optimizer.drop_gradients()
    return found


@pytest.mark.parametrize(("name", "setting"), CASES)
def test_setting(name: str, setting: str) -> None:
    one = _on_gpu(MODELS[name], setting)
    plain = _gradients(build_step(_on_gpu(MODELS[name], "none"), 3))
    step = build_step(one, 3)
    seen = _gradients(step)
    for key, gradient in plain.items():
        distance = torch.linalg.vector_norm((seen[key] - gradient).float())
        assert distance <= ROUNDING * torch.linalg.vector_norm(gradient.float()), key
    predicted = predict_layer(one)[0]
    assert step.saved_bytes_per_layer() == pytest.approx(predicted, rel=0.005)
    assert step.flops().replayed_per_layer == predict_layer(one)[1]


def test_loss_goes_down() -> None:
    step = build(_on_gpu(LLAMA, "selective:mlp"), 1)
    losses = [step.run(Phases()) for _ in range(12)]
    assert losses[-1] < losses[0] - 0.5
