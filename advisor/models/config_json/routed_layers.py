"""Which layers of a Hugging Face config.json have experts, and routers that no single key gives.

Source: the rows of configs/rules/model_families.json that name this code.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from advisor.models.config_json.families import Family
from advisor.models.config_json.keys import HuggingFaceConfig
from advisor.models.config_json.windows import each_nth
from advisor.models.layer_pattern import EVERY_LAYER, LayerPattern
from advisor.models.options import LoadBalancing, RouterDType, ScoreFunction


def _experts_in(chosen: Iterable[bool]) -> dict[str, Any]:
    entries = [int(has) for has in chosen]
    every = EVERY_LAYER if all(entries) else LayerPattern.read(entries, "moe_layer_freq")
    return {"moe_layer_freq": every}


def sparse_steps(config: HuggingFaceConfig, _: Family, before: Mapping[str, Any]) -> dict[str, Any]:
    """Layer i has experts where (i + 1) is a multiple of the step, and i is no dense layer."""
    step = config.positive("decoder_sparse_step", 1)
    dense = config.get("mlp_only_layers", tuple[int, ...], ())
    if step == 1 and not dense:
        return {}
    layers = range(before["num_layers"])
    return _experts_in((i + 1) % step == 0 and i not in dense for i in layers)


def ernie_layers(config: HuggingFaceConfig, _: Family, before: Mapping[str, Any]) -> dict[str, Any]:
    """From one layer to another, in each Nth layer."""
    layers = before["num_layers"]
    first = config.get("moe_layer_start_index", int, 1)
    last = config.get("moe_layer_end_index", int, -1)
    last = layers - 1 if last == -1 else last
    every = config.positive("moe_layer_interval", 1)
    return _experts_in(first <= i <= last and (i + 1) % every == 0 for i in range(layers))


def deepseek_layers(
    config: HuggingFaceConfig, _: Family, before: Mapping[str, Any]
) -> dict[str, Any]:
    """All layers but the first_k_dense_replace, or those that mlp_layer_types calls dense."""
    layers = before["num_layers"]
    kinds = config.get("mlp_layer_types", tuple[str, ...], ())
    dense = config.get("first_k_dense_replace", int, kinds.count("dense"))
    if kinds and kinds != ("dense",) * dense + ("sparse",) * (layers - dense):
        raise config.refuse(
            "mlp_layer_types", "must be dense in the first layers, and sparse in all others"
        )
    if config.get("moe_layer_freq", int, 1) != 1 or not 0 <= dense <= layers:
        raise config.refuse(
            "moe_layer_freq",
            "must be 1, with first_k_dense_replace between 0 and num_hidden_layers",
        )
    return {"moe_layer_freq": LayerPattern(f"[0]*{dense}+[1]*{layers - dense}" if dense else "1")}


def deepseek_router(
    config: HuggingFaceConfig, _: Family, before: Mapping[str, Any]
) -> dict[str, Any]:
    """GLM, noaux_tc and models with an indexer have sigmoid scores and a bias of every expert."""
    method = config.get("topk_method", str, None)
    biased = before.get("moe_router_enable_expert_bias", False) or method == "noaux_tc"
    scores = ScoreFunction.SIGMOID if biased else ScoreFunction.SOFTMAX
    sigmoid = config.get("scoring_func", str, str(scores)) == "sigmoid"
    by_sequence = config.get("seq_aux", bool, False)
    return {
        **group_fields(config, 1 if method == "greedy" else config.get("n_group", int, 1)),
        "moe_router_score_function": ScoreFunction.SIGMOID if sigmoid else ScoreFunction.SOFTMAX,
        "moe_router_pre_softmax": not sigmoid,
        "moe_router_enable_expert_bias": biased,
        "moe_router_dtype": RouterDType.FP32 if biased else None,
        "moe_router_load_balancing_type": (
            LoadBalancing.SEQ_AUX_LOSS if by_sequence else LoadBalancing.AUX_LOSS
        ),
    }


def group_fields(
    config: HuggingFaceConfig, groups: int, default_topk: int | None = None
) -> dict[str, Any]:
    """Groups of experts limit the choice where there are several."""
    if groups <= 1:
        return {}
    return {
        "moe_router_num_groups": groups,
        "moe_router_group_topk": config.positive("topk_group", default_topk),
    }


def check_indexer(config: HuggingFaceConfig, *_: Any) -> dict[str, Any]:
    """Refuse layers without an indexer of their own."""
    for key, kind in (("layer_types", "indexed_attention"), ("indexer_types", "full")):
        if set(config.get(key, tuple[str, ...], ())) - {kind}:
            raise config.refuse(key, f"must be {kind} in every layer: no other is modelled")
    return {}


def minimax_fields(
    config: HuggingFaceConfig, family: Family, before: Mapping[str, Any]
) -> dict[str, Any]:
    """Attention of one kind; rotary positions of so many channels of a head."""
    config.check_fixed({"attn_type_list": [1] * before["num_layers"]}, family.why)
    rotary = config.get("rotary_dim", int, None)
    head = config.positive("head_dim", family.head_dim)
    return {} if rotary is None else {"rotary_percent": rotary / head}


def llama4_layers(
    config: HuggingFaceConfig, _: Family, before: Mapping[str, Any]
) -> dict[str, Any]:
    """Experts in each Nth layer, rotary positions but in each Nth layer, attention in chunks where
    they are."""
    return {"moe_layer_freq": _interleaved(config), "no_rope_freq": _bare_layers(config)}


def _interleaved(config: HuggingFaceConfig) -> LayerPattern:
    """Layers of moe_layers, or each interleave_moe_layer_step-th."""
    layers = config.positive("num_hidden_layers")
    step = config.positive("interleave_moe_layer_step", 1)
    chosen = config.get("moe_layers", tuple[int, ...], tuple(range(step - 1, layers, step)))
    experts = [int(layer in chosen) for layer in range(layers)]
    if all(experts):
        return EVERY_LAYER
    return _repeated(experts) or LayerPattern.read(experts, "moe_layers")


def _repeated(entries: list[int]) -> LayerPattern | None:
    """``[0,1]*24`` for what repeats so."""
    head = entries[: entries.index(1) + 1] if 1 in entries else []
    times = len(entries) // len(head) if head else 0
    if head * times != entries:
        return None
    return LayerPattern(f"[{','.join(map(str, head))}]*{times}")


def _bare_layers(config: HuggingFaceConfig) -> LayerPattern:
    """Layers without rotary positions: the zeros of no_rope_layers, which is named for the
    opposite, or each Nth; those alone see the whole sequence."""
    layers = config.positive("num_hidden_layers")
    every = config.positive("no_rope_layer_interval", 4)
    rotary = config.get("no_rope_layers", tuple[int, ...], ())
    rotary = rotary or tuple(int(layer % every != 0) for layer in range(1, layers + 1))
    types = tuple("chunked_attention" if has else "full_attention" for has in rotary)
    if config.get("layer_types", tuple[str, ...], types) != types:
        raise config.refuse(
            "layer_types", "must be chunked_attention exactly where no_rope_layers is 1"
        )
    bare = [not has for has in rotary]
    return each_nth(bare) or LayerPattern.read([int(one) for one in bare], "no_rope_layers")
