"""Transformer Engine's layer wired to stand-ins of its modules: the real ones never ran here."""

import sys
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from cases import GPT, LLAMA, workload  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from advisor.base.dtypes import Precision  # noqa: E402
from advisor.base.errors import UserError  # noqa: E402
from advisor.frameworks.megatron.setting import parse_setting  # noqa: E402
from advisor.models.spec import ModelSpec, TransformerImpl  # noqa: E402
from advisor.plan.recompute_plan import RecomputePlan  # noqa: E402
from harness.backends.native import predict  # noqa: E402
from harness.backends.native.modules.model import GptModel, initialise  # noqa: E402
from harness.backends.native.modules.settings import LayerSettings  # noqa: E402
from harness.backends.native.modules.transformer_engine import engine_layers  # noqa: E402
from harness.backends.native.setting import parse_native_setting  # noqa: E402
from harness.trial.trial import Device  # noqa: E402

NO_DROPOUT = {"hidden_dropout": 0.0, "attention_dropout": 0.0}


class Linear(nn.Module):
    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        return_bias: bool = False,
        params_dtype: Any = None,
        device: Any = None,
    ) -> None:
        super().__init__()
        where = {"dtype": params_dtype, "device": device}
        self.weight = nn.Parameter(torch.empty(out_features, in_features, **where))
        self.bias = nn.Parameter(torch.empty(out_features, **where)) if bias else None
        self.return_bias = return_bias

    def forward(self, x: Tensor) -> Any:
        if self.return_bias:
            return functional.linear(x, self.weight), self.bias
        return functional.linear(x, self.weight, self.bias)


class LayerNormLinear(Linear):
    def __init__(
        self,
        in_features: int,
        out_features: int,
        eps: float = 1e-5,
        bias: bool = True,
        normalization: str = "LayerNorm",
        **options: Any,
    ) -> None:
        super().__init__(in_features, out_features, bias=bias, **options)
        self.eps, self.normalization = eps, normalization
        self.layer_norm_weight = nn.Parameter(torch.empty(in_features))

    def forward(self, x: Tensor) -> Any:
        norm = functional.rms_norm if self.normalization == "RMSNorm" else functional.layer_norm
        return super().forward(norm(x, x.shape[-1:], self.layer_norm_weight, eps=self.eps))


class DotProductAttention(nn.Module):
    def __init__(
        self,
        num_attention_heads: int,
        kv_channels: int,
        num_gqa_groups: int,
        attention_dropout: float,
        qkv_format: str,
        attn_mask_type: str,
    ) -> None:
        super().__init__()
        assert (qkv_format, attn_mask_type) == ("bshd", "causal")

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        q, k, v = (tensor.transpose(1, 2) for tensor in (query, key, value))
        out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return out.transpose(1, 2).flatten(2)


class StandIn(ModuleType):
    """transformer_engine.pytorch, of plain torch."""

    Linear, LayerNormLinear = Linear, LayerNormLinear
    DotProductAttention = DotProductAttention

    def __init__(self) -> None:
        super().__init__("transformer_engine.pytorch")
        self.replays, self.recipes = 0, []

    def checkpoint(self, function: Any, *inputs: Tensor) -> Any:
        self.replays += 1
        return checkpoint(function, *inputs, use_reentrant=False)

    def fp8_autocast(self, enabled: bool, fp8_recipe: Any) -> AbstractContextManager[None]:
        self.recipes.append(fp8_recipe)
        return nullcontext()


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> StandIn:
    stand_in, recipes = StandIn(), ModuleType("transformer_engine.common.recipe")
    recipes.MXFP8BlockScaling = lambda: "mxfp8"
    monkeypatch.setitem(sys.modules, "transformer_engine", ModuleType("transformer_engine"))
    monkeypatch.setitem(sys.modules, "transformer_engine.pytorch", stand_in)
    monkeypatch.setitem(sys.modules, "transformer_engine.common", ModuleType("common"))
    monkeypatch.setitem(sys.modules, "transformer_engine.common.recipe", recipes)
    monkeypatch.setattr(predict, "find_spec", lambda _: object())
    return stand_in


def _gradients(model: ModelSpec, setting: str, precision: Precision) -> dict[str, Tensor]:
    one = workload(model, setting, device=Device.CUDA)
    spec = predict.native_model(one)
    assert spec.transformer_impl is TransformerImpl.TRANSFORMER_ENGINE
    plan: RecomputePlan = predict.native_plan(one, parse_native_setting(setting))
    settings = LayerSettings(
        model=spec, seq_length=32, dtype=torch.float32, device=torch.device("cpu")
    )
    built = GptModel(settings, plan, make_layer=engine_layers(precision))
    initialise(built, 1)
    tokens = torch.arange(33)[None]
    torch.autograd.backward(built.loss(built(tokens[:, :-1]), tokens[:, 1:]))
    return {name: p.grad for name, p in built.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("model", [LLAMA, replace(GPT, **NO_DROPOUT)], ids=["llama", "gpt"])  # type: ignore[arg-type]
@pytest.mark.parametrize(
    ("setting", "replays"),
    [
        ("selective:core_attn,mlp", 4),
        ("full:block:1", 1),
        ("full:uniform:1", 2),
    ],
)
def test_settings_reach_the_engines_checkpoint(
    engine: StandIn, model: ModelSpec, setting: str, replays: int
) -> None:
    plain = _gradients(model, "none", Precision.BF16)
    assert engine.replays == 0
    again = _gradients(model, setting, Precision.BF16)
    assert engine.replays == replays
    assert parse_setting(setting).spec == setting
    assert plain.keys() == again.keys()
    assert all(torch.equal(plain[name], again[name]) for name in plain)
    assert engine.recipes == []


def test_eight_bits_enter_the_engines_autocast(engine: StandIn) -> None:
    _gradients(LLAMA, "none", Precision.MXFP8)
    assert engine.recipes == ["mxfp8"] * LLAMA.num_layers


def test_a_package_that_does_not_load_is_a_users_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformer_engine", None)
    with pytest.raises(UserError, match=r"does not load.*transformer_impl=local"):
        engine_layers(Precision.BF16)
