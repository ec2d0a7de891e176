"""Models with experts: every setting's gradients, bytes and FLOPs."""

from typing import Any

import pytest
from msgspec.structs import replace

torch = pytest.importorskip("torch")

from cases import EXPERTS, workload  # noqa: E402
from seen import SEED, alive_after_forward, assert_as_predicted  # noqa: E402

from advisor.models.layer_pattern import LayerPattern  # noqa: E402
from advisor.models.options import LoadBalancing, RouterDType, ScoreFunction  # noqa: E402
from advisor.models.spec import ModelSpec  # noqa: E402
from harness.backends.native.modules.layer_settings import LayerSettings  # noqa: E402
from harness.backends.native.modules.moe import MoeLayer, take_turns  # noqa: E402
from harness.backends.native.predict import predict_layer  # noqa: E402
from harness.backends.native.regions import Regions  # noqa: E402
from harness.backends.native.step import build_step  # noqa: E402

MIXTRAL = replace(EXPERTS, hidden_dropout=0.1)
QWEN = replace(
    EXPERTS,
    num_moe_experts=8,
    moe_router_topk=3,
    moe_ffn_hidden_size=24,
    qk_layernorm=True,
    moe_router_dtype=RouterDType.FP32,
)
DENSE_FIRST = replace(
    EXPERTS,
    num_layers=3,
    moe_layer_freq=LayerPattern("[0,1,1]"),
    num_moe_experts=6,
    hidden_dropout=0.1,
    moe_shared_expert_intermediate_size=40,
    moe_shared_expert_gate=True,
    moe_router_score_function=ScoreFunction.SIGMOID,
    moe_router_enable_expert_bias=True,
    moe_router_load_balancing_type=LoadBalancing.SEQ_AUX_LOSS,
)
MODELS = {"mixtral": MIXTRAL, "qwen": QWEN, "dense first": DENSE_FIRST}
SETTINGS = (
    *("selective:moe", "selective:moe_act", "selective:shared_experts", "selective:layernorm"),
    *("selective:mlp", "selective:core_attn", "selective:moe,layernorm"),
    *("selective:core_attn,moe_act,shared_experts,layernorm,mlp", "selective:moe,mlp"),
    *("full:uniform:1", "full:uniform:2", "full:block:1", "none+offload=core_attn,mlp_norm"),
)


@pytest.mark.parametrize("setting", ["none", *SETTINGS])
@pytest.mark.parametrize("name", MODELS)
def test_setting(name: str, setting: str) -> None:
    assert_as_predicted(MODELS[name], setting)


FP32_GROUPS = {"moe_router_dtype": RouterDType.FP32, "moe_router_num_groups": 3}
SEQUENCES = {"moe_router_load_balancing_type": LoadBalancing.SEQ_AUX_LOSS}
ROUTERS: dict[str, ModelSpec] = {
    "softmax before top-k": replace(MIXTRAL, moe_router_pre_softmax=True, moe_router_topk=1),
    "sigmoid": replace(QWEN, moe_router_score_function=ScoreFunction.SIGMOID),
    "16-bit sigmoid": replace(MIXTRAL, moe_router_score_function=ScoreFunction.SIGMOID),
    "bias and groups": replace(DENSE_FIRST, **FP32_GROUPS, moe_router_group_topk=2),
    "16-bit, loss of sequences": replace(MIXTRAL, **SEQUENCES),
    "no loss": replace(QWEN, moe_router_load_balancing_type=LoadBalancing.NONE),
    "shared, no gate": replace(MIXTRAL, moe_shared_expert_intermediate_size=32),
    "rows do not divide": replace(MIXTRAL, num_moe_experts=7, moe_router_topk=3),
}


@pytest.mark.parametrize("name", ROUTERS)
def test_saved_bytes_of_routers(name: str) -> None:
    one = workload(ROUTERS[name], seq_length=16)
    assert build_step(one, SEED).saved_bytes_per_layer() == predict_layer(one)[0]


@pytest.mark.parametrize("setting", ["none", "selective:moe_act", "selective:layernorm"])
def test_bytes_of_each_kind(setting: str) -> None:
    """A dense layer and two with experts keep what models of one kind alone keep."""
    models = [
        *(replace(DENSE_FIRST, moe_layer_freq=LayerPattern(text)) for text in ("[0,0,0]", "1")),
        DENSE_FIRST,
    ]
    dense, moe, mixed = (
        build_step(workload(model, setting), SEED).saved_bytes_per_layer() for model in models
    )
    assert dense != moe
    assert mixed == (dense + 2 * moe) // 3


@pytest.mark.parametrize("setting", ["none", "selective:moe", "selective:moe_act,shared_experts"])
def test_nothing_else_is_alive(setting: str) -> None:
    one = workload(DENSE_FIRST, setting)
    assert alive_after_forward(one) // 3 == predict_layer(one)[0]


def test_experts_take_turns() -> None:
    chosen = take_turns(10, 4, 3, torch.device("cpu"))
    assert all(len(set(row)) == 3 for row in chosen.tolist())
    assert sorted(chosen.flatten().bincount().tolist()) == [7, 7, 8, 8]


def layer_of(model: ModelSpec, **settings: Any) -> MoeLayer:
    kind = {"dtype": torch.float64, "device": torch.device("cpu")}
    layer = MoeLayer(LayerSettings(model=model, seq_length=8, **kind, **settings))
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(SEED))
    return layer


def token_by_token(layer: MoeLayer, x: torch.Tensor, topk: int) -> torch.Tensor:
    """The layer's formula: probability times SwiGLU MLP, summed over the experts of each token."""
    rows, experts = [], layer.router.num_experts
    for number, token in enumerate(x.flatten(0, 1)):
        chosen = [(number * topk + i) % experts for i in range(topk)]
        probs = (layer.router.weight[chosen] @ token).softmax(-1)
        out = torch.zeros_like(token)
        for prob, expert in zip(probs, chosen, strict=True):
            gate, value = (layer.experts.linear_fc1.weight[expert] @ token).chunk(2)
            hidden = torch.nn.functional.silu(gate) * value
            out = out + prob * (layer.experts.linear_fc2.weight[expert] @ hidden)
        rows.append(out)
    return torch.stack(rows).view_as(x)


def test_layer_is_its_formula() -> None:
    """Probabilities come from an fp32 softmax: errors of 2^-24, some of them added up."""
    layer = layer_of(replace(EXPERTS, num_moe_experts=5, moe_router_topk=3))
    x = torch.randn(2, 8, 64, dtype=torch.float64, requires_grad=True) / 8
    wanted = [x, *layer.parameters()]
    results = []
    for output in (layer(x, Regions()), token_by_token(layer, x, 3)):
        gradients = torch.autograd.grad(output.square().sum(), wanted)
        results.append([output, *gradients])
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5 * theirs.abs().max().item())


@pytest.mark.parametrize(
    ("kind", "groups"), [(LoadBalancing.AUX_LOSS, 1), (LoadBalancing.SEQ_AUX_LOSS, 2)]
)
def test_gradient_of_the_auxiliary_loss(kind: LoadBalancing, groups: int) -> None:
    """experts x coefficient / (tokens^2 x topk) x sum(scores x tokens of the expert), a mean over
    sequences; half of it here, as the step has two microbatches. 3 experts do not divide 16."""
    model = replace(
        EXPERTS, num_moe_experts=3, moe_aux_loss_coeff=0.1, moe_router_load_balancing_type=kind
    )
    router = layer_of(model, num_microbatches=2).router
    x = torch.randn(2, 8, 64, dtype=torch.float64) / 8
    probs, routing_map = router(x)
    (ours,) = torch.autograd.grad(probs.sum() * 0, router.weight)
    scores = (x.flatten(0, 1) @ router.weight.t()).softmax(-1).view(groups, -1, 3)
    counts, tokens = routing_map.view(groups, -1, 3).sum(1), 16 // groups
    losses = 3 * 0.1 / (tokens**2 * 2) * (scores.sum(1) * counts).sum(-1)
    (theirs,) = torch.autograd.grad(losses.mean() / 2, router.weight)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-8)  # scores are fp32
    assert theirs.abs().max() > 1e-6
