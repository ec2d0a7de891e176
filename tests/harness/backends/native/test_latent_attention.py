"""Models with multi-latent attention: every setting's gradients, bytes and FLOPs."""

import pytest
from msgspec.structs import replace

torch = pytest.importorskip("torch")

from cases import EXPERTS, LLAMA, workload  # noqa: E402
from seen import SEED, alive_after_forward, assert_as_predicted  # noqa: E402

from advisor.layers.operators import Module  # noqa: E402
from advisor.models.layer_pattern import LayerPattern  # noqa: E402
from advisor.models.options import ScoreFunction  # noqa: E402
from advisor.plan.recompute_plan import ReplayRun  # noqa: E402
from harness.backends.native.modules.attention import LatentAttention  # noqa: E402
from harness.backends.native.modules.kernels import flash_attention  # noqa: E402
from harness.backends.native.modules.layer_settings import LayerSettings  # noqa: E402
from harness.backends.native.predict import predict_layer  # noqa: E402
from harness.backends.native.regions import Regions  # noqa: E402
from harness.backends.native.step import build_step  # noqa: E402
from tests.advisor.toys import latent  # noqa: E402

V2_LITE = latent(LLAMA, 24, 16, 8, 12, hidden_dropout=0.1)
V3 = latent(
    EXPERTS,
    *(24, 16, 8, 12),
    q_lora_rank=40,
    num_layers=3,
    moe_layer_freq=LayerPattern("[0,1,1]"),
    moe_shared_expert_intermediate_size=40,
    moe_router_score_function=ScoreFunction.SIGMOID,
    moe_router_enable_expert_bias=True,
    moe_router_num_groups=2,
    moe_router_group_topk=1,
    hidden_dropout=0.1,
)
MODELS = {"v2 lite": V2_LITE, "v3": V3}
SETTINGS = (
    *("selective:mla_up_proj", "selective:core_attn", "selective:mla_up_proj,layernorm"),
    "selective:mla_up_proj,core_attn,layernorm,moe_act,shared_experts,mlp",
    *("selective:mla_up_proj,moe,mlp", "full:uniform:1", "full:block:1"),
)


@pytest.mark.parametrize("setting", ["none", *SETTINGS])
@pytest.mark.parametrize("name", MODELS)
def test_setting(name: str, setting: str) -> None:
    assert_as_predicted(MODELS[name], setting)


SHAPES = {
    "no norms": replace(V2_LITE, qk_layernorm=False),
    "equal heads, the CPU's own kernel": replace(V2_LITE, v_head_dim=24),
    "attention dropout": replace(V3, attention_dropout=0.1),
}


@pytest.mark.parametrize("name", SHAPES)
def test_saved_bytes_of_shapes(name: str) -> None:
    for setting in ("none", "selective:mla_up_proj"):
        one = workload(SHAPES[name], setting, seq_length=16)
        assert build_step(one, SEED).saved_bytes_per_layer() == predict_layer(one)[0]


@pytest.mark.parametrize("setting", ["none", "selective:mla_up_proj,layernorm"])
def test_nothing_else_is_alive(setting: str) -> None:
    one = workload(V2_LITE, setting)
    assert alive_after_forward(one) == 2 * predict_layer(one)[0]


def plain_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = torch.einsum("bqhc,bkhc->bhqk", q, k) * q.shape[-1] ** -0.5
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return torch.einsum("bhqk,bkhc->bqhc", scores.masked_fill(future, -torch.inf).softmax(-1), v)


def test_attention_with_narrow_values() -> None:
    """fp32: sums of 24 and 12 products."""
    tensors = [torch.randn(2, 8, 4, width, requires_grad=True) for width in (24, 24, 12)]
    ours, theirs = (
        [out, *torch.autograd.grad(out.square().sum(), tensors)]
        for out in (flash_attention(*tensors, 0.0), plain_attention(*tensors))
    )
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("drops", [True, False])
def test_layer_is_its_formula(drops: bool) -> None:
    """q, k and v from compressed vectors, without rotation; one rotary key for all heads."""
    model = replace(V3, qk_layernorm=False, num_layers=1, moe_layer_freq=LayerPattern("1"))
    layer = LatentAttention(
        LayerSettings(model=model, seq_length=8, dtype=torch.float32, device=torch.device("cpu")),
        None,
    )
    weights = dict(layer.named_parameters())
    for weight in weights.values():
        torch.nn.init.normal_(weight, std=0.2, generator=torch.Generator().manual_seed(SEED))
    x = torch.randn(2, 8, 64, requires_grad=True)
    modules = frozenset({Module.QKV_UP_PROJ})
    regions = Regions((ReplayRun(modules, True, Module.CORE_ATTENTION),) if drops else ())
    query = x @ weights["linear_q_down_proj.weight"].t()
    query = query @ weights["up_projections.linear_q_up_proj.weight"].t()
    combined = x @ weights["linear_kv_down_proj.weight"].t()
    wide = combined[..., :24] @ weights["up_projections.linear_kv_up_proj.weight"].t()
    wide = wide.view(2, 8, 4, 28)
    key = torch.cat((wide[..., :16], combined[:, :, None, 24:].expand(-1, -1, 4, -1)), dim=-1)
    context = plain_attention(query.view(2, 8, 4, 24), key, wide[..., 16:]).flatten(2)
    wanted = [x, *weights.values()]
    ours, theirs = (
        [out, *torch.autograd.grad(out.square().sum(), wanted)]
        for out in (layer(x, regions), context @ weights["linear_proj.weight"].t())
    )
    for one, other in zip(ours, theirs, strict=True):  # fp32: sums of up to 64 products
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4 * other.abs().max().item())
