"""Transformer Engine's modules in place of the plain ones, in bf16 and FP8. NEVER RUN: it needs a
GPU and the transformer_engine package, and no machine of this project's tests has them."""

from contextlib import AbstractContextManager, nullcontext
from importlib import import_module
from typing import Any, Final

from torch import Tensor, nn

from advisor.base.dtypes import Precision
from advisor.base.errors import UserError
from advisor.layers.operators import Module
from advisor.models.layer_kind import LayerKind
from advisor.plan.recompute_plan import Segment
from harness.backends.native.modules.kernels import (
    NORM_EPSILON,
    bias_activation,
    bias_dropout_add,
    rotate,
)
from harness.backends.native.modules.model import LayerMaker
from harness.backends.native.modules.norm import Norm
from harness.backends.native.modules.settings import LayerSettings
from harness.backends.native.regions import Regions

_MLP: Final = frozenset(
    {Module.PRE_MLP_LAYERNORM, Module.LINEAR_FC1, Module.ACTIVATION, Module.LINEAR_FC2}
)
_RECIPES: Final = {
    Precision.FP8_DELAYED: "DelayedScaling",
    Precision.FP8_CURRENT: "Float8CurrentScaling",
    Precision.FP8_BLOCKWISE: "Float8BlockScaling",
    Precision.MXFP8: "MXFP8BlockScaling",
}


def engine_layers(precision: Precision) -> LayerMaker:
    """Maker of layers of Transformer Engine; UserError where the package cannot be loaded."""
    try:
        engine = import_module("transformer_engine.pytorch")
        recipes = import_module("transformer_engine.common.recipe")
    except (ImportError, RuntimeError, OSError) as error:
        raise UserError(
            "model.transformer_impl",
            "transformer_engine",
            f"the package does not load: {error}",
            "model.transformer_impl=local runs plain torch modules",
        ) from error
    recipe = getattr(recipes, _RECIPES[precision])() if precision.is_fp8 else None

    def make(
        settings: LayerSettings, segment: Segment, _: LayerKind, frequencies: Tensor | None
    ) -> nn.Module:
        return EngineLayer(settings, segment, frequencies, engine, recipe)

    return make


class EngineLayer(nn.Module):
    """Norms fused into the linear layers, DotProductAttention; 8 bits by `recipe` where given.

    Checkpoints are Transformer Engine's own, which replay the scaling state as well.
    """

    def __init__(
        self,
        settings: LayerSettings,
        segment: Segment,
        frequencies: Tensor | None,
        engine: Any,
        recipe: Any,
    ) -> None:
        super().__init__()
        model = settings.model
        self._engine, self._recipe, self._frequencies = engine, recipe, frequencies
        self._model = model
        self.replays_itself = segment.whole and segment.num_layers == 1
        self.regions = Regions(segment.runs, replay=engine.checkpoint)
        hidden, options = model.hidden_size, self._options(settings)
        norm = {"normalization": str(model.normalization), "eps": NORM_EPSILON}
        late_bias = {"bias": model.add_bias_linear, "return_bias": model.add_bias_linear}
        self.linear_qkv = engine.LayerNormLinear(
            hidden,
            model.query_projection_size + 2 * model.kv_projection_size,
            bias=model.add_bias_linear or model.add_qkv_bias,
            **norm,
            **options,
        )
        norms = [Norm(settings, model.kv_channels) if model.qk_layernorm else None for _ in "qk"]
        self.q_layernorm, self.k_layernorm = norms
        self.core_attention = engine.DotProductAttention(
            model.num_attention_heads,
            model.kv_channels,
            num_gqa_groups=model.num_query_groups,
            attention_dropout=model.attention_dropout,
            qkv_format="bshd",
            attn_mask_type="causal",
        )
        self.linear_proj = engine.Linear(
            model.query_projection_size, hidden, **late_bias, **options
        )
        self.linear_fc1 = engine.LayerNormLinear(
            hidden, model.fc1_size, **norm, **late_bias, **options
        )
        self.linear_fc2 = engine.Linear(model.ffn_hidden_size, hidden, **late_bias, **options)

    @staticmethod
    def _options(settings: LayerSettings) -> dict[str, Any]:
        return {"params_dtype": settings.dtype, "device": settings.device}

    def forward(self, x: Tensor) -> Tensor:
        """[b, s, hidden] to the same."""
        with self._eight_bits():
            if self.replays_itself:
                output: Tensor = self._engine.checkpoint(self._run, x)
                return output
            return self._run(x)

    def _eight_bits(self) -> AbstractContextManager[Any]:
        if self._recipe is None:
            return nullcontext()
        context: AbstractContextManager[Any] = self._engine.fp8_autocast(
            enabled=True, fp8_recipe=self._recipe
        )
        return context

    def _run(self, x: Tensor) -> Tensor:
        p = self._model.hidden_dropout
        query, key, value = self._query_key_value(x)
        context = self.regions.run(
            frozenset({Module.CORE_ATTENTION}), self.core_attention, query, key, value
        )
        branch, bias = _with_bias(self.linear_proj(context))
        x = bias_dropout_add(branch, bias, x, p)
        branch = self.regions.run(_MLP, self._mlp, x)
        return bias_dropout_add(branch, self._late_bias(self.linear_fc2), x, p)

    def _query_key_value(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        channels = self._model.kv_channels
        mixed = self.linear_qkv(x)
        grouped = mixed.view(*mixed.shape[:2], self._model.num_query_groups, -1)
        width = grouped.shape[-1] - 2 * channels
        query, key, value = grouped.split([width, channels, channels], dim=-1)
        query = query.reshape(*mixed.shape[:2], -1, channels)
        if self.q_layernorm is not None and self.k_layernorm is not None:
            query, key = self.q_layernorm(query), self.k_layernorm(key)
        if self._frequencies is not None:
            query, key = rotate(query, self._frequencies), rotate(key, self._frequencies)
        return query, key, value

    def _mlp(self, x: Tensor) -> Tensor:
        widened, bias = _with_bias(self.linear_fc1(x))
        activated = bias_activation(self._model.activation, widened, bias)
        branch, _ = _with_bias(self.linear_fc2(activated))
        return branch

    def _late_bias(self, linear: Any) -> Tensor | None:
        bias: Tensor | None = linear.bias if self._model.add_bias_linear else None
        return bias


def _with_bias(result: Any) -> tuple[Tensor, Tensor | None]:
    """What a module that hands on its bias returns, with or without one."""
    return result if isinstance(result, tuple) else (result, None)
