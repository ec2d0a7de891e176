"""The model behind a recipe that a script lays its own values over, as its name tells."""

from collections.abc import Iterable
from functools import cache
from typing import Any, Final

from advisor.frameworks.megatron.raw import RawSettings
from advisor.models.presets import load_preset

_FACTS: Final = (
    "num_layers",
    "num_attention_heads",
    "num_query_groups",
    "num_moe_experts",
    "moe_ffn_hidden_size",
    "moe_shared_expert_intermediate_size",
    "multi_latent_attention",
    "experimental_attention_variant",
    "add_bias_linear",
)
_ANOTHER: Final[dict[str, Any]] = {
    "num_moe_experts": 8,
    "moe_grouped_gemm": True,
    "moe_layer_freq": "([0]*1+[1]*3)",
    "moe_shared_expert_intermediate_size": 1024,
    "multi_latent_attention": True,
    "experimental_attention_variant": "gated_delta_net",
    "transformer_impl": "local",
    "attention_backend": "unfused",
}
"""Facts of some other model, with which the rules about labels say nothing."""


@cache
def facts(model: str) -> dict[str, Any]:
    """Fields of RawSettings that the model decides."""
    spec = load_preset(model).spec
    values = {name: getattr(spec, name) for name in _FACTS}
    if spec.num_moe_experts is not None:
        values["moe_grouped_gemm"] = True
        values["moe_token_dispatcher_type"] = "alltoall"
        values["moe_layer_freq"] = str(spec.moe_layer_freq)
    return {
        name: str(value) if name == "experimental_attention_variant" else value
        for name, value in values.items()
        if value is not None
    }


def over_recipe(settings: RawSettings, model: str, given: Iterable[str]) -> RawSettings:
    """The settings over what the recipe's model decides; what is given stays."""
    known = facts(model) if model else {}
    kept = set(given)
    return settings.changed(**{name: known[name] for name in known if name not in kept})


def another_model(settings: RawSettings, given: Iterable[str]) -> RawSettings:
    """The same settings over a recipe of another kind."""
    open_facts = {name: value for name, value in _ANOTHER.items() if name not in set(given)}
    return settings.changed(**open_facts)
