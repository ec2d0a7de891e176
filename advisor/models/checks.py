"""What a model's shape excludes: UserErrors on what Megatron refuses, or what is not modelled.

Rows of configs/rules/models.json, with their sources.
"""

from collections.abc import Callable, Iterator, Mapping
from math import inf, nextafter
from operator import attrgetter
from typing import Any, ClassVar, Final

from advisor.base.errors import nearest_divisors
from advisor.base.rule import Match, Rule, refuse, rows_of
from advisor.models.layer_kind import LayerKind, Mixer
from advisor.models.layer_kinds import (
    LINEAR_MIXERS,
    hybrid_kinds,
    layer_kinds,
    mamba_heads,
    with_linear_attention,
)
from advisor.models.model_fields import ModelFields
from advisor.models.options import AttentionVariant


def check_model(model: ModelFields) -> None:
    """Raise UserError on a shape that is none, or that excludes itself."""
    refuse(_TABLES["shape"], model)
    skipped = model.window_attn_skip_freq
    if skipped is not None and not skipped.isdigit():
        skipped.expand(model.num_layers, "model.window_attn_skip_freq")
    if model.num_moe_experts is not None:
        refuse(_TABLES["experts"], model)
    refuse(_TABLES["variants"], model)
    if model.no_rope_freq is not None:
        model.no_rope_freq.expand_from_one(model.num_layers, "model.no_rope_freq")
    model.moe_layer_freq.expand(model.num_layers, "model.moe_layer_freq")
    refuse(_TABLES["mixers"], model)
    if model.linear_attention_freq is not None:
        with_linear_attention((LayerKind(),) * model.num_layers, model.linear_attention_freq)
    mixers = {kind.mixer for kind in layer_kinds(model)}
    of_mixers = {
        "delta_net": Mixer.GATED_DELTA_NET in mixers,
        "mamba": Mixer.MAMBA in mixers,
        "sparse": model.has_sparse_attention,
        # next to such layers, or with an output gate, softmax attention is plain MHA or GQA
        "plain_attention": mixers & LINEAR_MIXERS or model.attention_output_gate,
    }
    refuse((rule for name, has in of_mixers.items() if has for rule in _TABLES[name]), model)


class ModelRule(Rule[[ModelFields]], frozen=True, kw_only=True):
    """A rule on the fields of a model."""

    names: ClassVar[tuple[str, ...]] = ("model",)


def _uneven_groups(m: ModelFields) -> Match | None:
    groups, experts = m.moe_router_num_groups, m.num_moe_experts or 0
    if groups is None or (groups >= 1 and experts % groups == 0):
        return None
    return Match(
        f"must divide num_moe_experts = {experts}", f"nearest: {nearest_divisors(experts, groups)}"
    )


def _not_of_the_groups(m: ModelFields) -> bool:
    chosen = m.moe_router_group_topk
    return chosen is not None and not 1 <= chosen <= (m.moe_router_num_groups or 0)


def _lacks_keys(m: ModelFields) -> bool:
    """Whether a layer that reuses keys has none of its kind before those that do."""
    kinds = layer_kinds(m)
    return {kind.mixer for kind in kinds} != {k.mixer for k in kinds if not k.reuses_keys}


def _other_length(m: ModelFields) -> str:
    letters = len(hybrid_kinds(m.hybrid_layer_pattern or ""))
    return "" if letters == m.num_layers else str(letters)


def _cuts(whole: int, part: int) -> str:
    """``96`` where no `part` of it is whole."""
    return str(whole) if whole % part else ""


_GDN: Final = AttentionVariant.GATED_DELTA_NET
_INDEXED: Final = (
    *("multi_latent_attention", "dsa_indexer_n_heads", "dsa_indexer_head_dim", "dsa_indexer_topk"),
)
_CODE: Final[dict[str, Callable[[ModelFields, Any], object]]] = {
    "given": lambda _, value: value is not None,
    "cuts_heads": lambda m, value: (
        m.num_attention_heads % (value or 1) and nearest_divisors(m.num_attention_heads, value)
    ),
    "unequal_groups": lambda m, value: value != m.num_attention_heads,
    "more_than_all": lambda m, value: value > (m.num_moe_experts or 0),
    "uneven_groups": lambda m, _: _uneven_groups(m),
    "not_of_the_groups": lambda m, _: _not_of_the_groups(m),
    "lacks_keys": lambda m, _: _lacks_keys(m),
    "other_shared_width": lambda m, value: (
        value and m.moe_shared_expert_intermediate_size != m.ffn_hidden_size
    ),
    "one_without_the_other": lambda m, value: (
        (m.experimental_attention_variant == _GDN) != bool(value)
    ),
    "other_length": lambda m, _: _other_length(m),
    "has_experts": lambda _, value: "E" in (value or ""),
    "cuts_value_heads": lambda m, value: m.linear_num_value_heads % value,
    "cuts_mamba": lambda m, value: _cuts(2 * m.hidden_size, value),
    "cuts_mamba_heads": lambda m, value: _cuts(mamba_heads(m), value),
    "has_no_indexer": lambda m, _: not all(getattr(m, name) for name in _INDEXED),
}
"""Conditions that are no list of values, of a model and the value of the field."""


def _rules(row: Mapping[str, Any]) -> Iterator[ModelRule]:
    """A rule for each of its `names`, where the fields of `when` have their values and those of
    `unless` have others: that the value is outside of bounds, that `code` finds something, or that
    the field is set at all."""
    most = _LIMITS.get(row.get("most"), row.get("most", inf))
    high = nextafter(row["below"], -inf) if "below" in row else most
    low = nextafter(row["above"], inf) if "above" in row else row.get("least", -inf)
    for name in row["names"].split():
        is_set: _Test = attrgetter(name)
        given = _given(row) if row.keys() & {"when", "unless"} else None
        if row.keys() & {"least", "most", "above", "below"}:
            when = _is_outside(is_set, low, high)
        elif "code" in row:
            when = _found_by(_CODE[row["code"]], is_set)
        else:  # most fields are unset: they are asked first
            given, when = is_set, is_set if given is None else given
        yield ModelRule(
            field=f"model.{name}",
            given=given,
            when=when,
            reason=row.get("reason", "").replace("<most>", str(most)),
            fix=row.get("fix", ""),
        )


_Test = Callable[[ModelFields], object]


def _is_outside(get: Callable[[ModelFields], Any], low: float, high: float) -> _Test:
    return lambda model: (value := get(model)) is not None and not low <= value <= high


def _found_by(code: Callable[[ModelFields, Any], object], get: _Test) -> _Test:
    return lambda model: code(model, get(model))


def _given(row: Mapping[str, Any]) -> _Test:
    has, other = (
        [(attrgetter(path), value) for path, value in row.get(key, {}).items()]
        for key in ("when", "unless")
    )
    return lambda model: (
        all(_is(get(model), value) for get, value in has)
        and not any(_is(get(model), value) for get, value in other)
    )


def _is(found: object, wanted: object) -> bool:
    return found in wanted if isinstance(wanted, list) else found == wanted


_FILE: Final = rows_of("models.json")
_LIMITS: Final = _FILE["limits"]
MOST_LAYERS: Final[int] = _LIMITS["most_layers"]
_TABLES: Final = {
    name: tuple(rule for row in rows for rule in _rules(row))
    for name, rows in _FILE["tables"].items()
}
