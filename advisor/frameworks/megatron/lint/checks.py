"""The findings on settings of Megatron, each at the value without which it would not be."""

import re
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

from msgspec.structs import replace

from advisor.base import rule
from advisor.base.place import Place
from advisor.base.rule import Finding, Level
from advisor.frameworks.megatron.lint.read_rules import DEPRECATED, READ_RULES, silenced
from advisor.frameworks.megatron.lint.settings import Given, ReadSettings
from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.rules.engine import find
from advisor.frameworks.names import Framework
from advisor.models.presets import load_preset


def launched(given: Given, revision: Revision, model: str = "") -> RawSettings:
    """What Megatron-LM's argument check makes of the settings before the configuration sees them,
    or what they are over a recipe for `model`.

    Source: megatron-core 0.19.2 training/arguments.py:1391-1399.
    """
    settings = given.settings()
    if model:
        known = facts(model)
        settings = settings.changed(**{n: known[n] for n in known if n not in given.values})
    alone = settings.sequence_parallel and settings.tensor_model_parallel_size == 1
    if alone and revision.framework == Framework.MEGATRON_LM:
        return settings.changed(sequence_parallel=False)
    return settings


def findings(read: ReadSettings, revision: Revision) -> tuple[Finding, ...]:
    """Everything to be said of the settings, worst first."""
    settings = launched(read.given, revision, read.model)
    found = [
        *read.faults,
        *rule.findings(READ_RULES, read, settings, revision),
        *rule.findings(DEPRECATED, read, settings, revision),
        *_of_rules(read, settings, revision),
    ]
    return tuple(sorted(found, key=lambda finding: list(Level).index(finding.level)))


def _of_rules(read: ReadSettings, settings: RawSettings, revision: Revision) -> Iterator[Finding]:
    anyhow = None
    if read.partial and not read.model:
        another = {name: _ANOTHER[name] for name in _ANOTHER if name not in read.given.values}
        anyhow = {finding.rule for finding in find(settings.changed(**another), revision)}
    for finding in find(settings, revision):
        if not silenced(finding.rule, read) and (anyhow is None or finding.rule in anyhow):
            yield replace(finding, place=_cause(read, finding, revision))


def _cause(read: ReadSettings, finding: Finding, revision: Revision) -> Place:
    """The value without which the rule says nothing, or something else; the one that the rule
    names, where there are several."""
    causes = _causes(read, finding, revision, same_words=False)
    causes = causes or _causes(read, finding, revision, same_words=True)
    words = re.findall(r"[\w.]+", finding.reason)
    for (name, text), place in read.item_places.items():
        if name in causes and text in words:
            return place
    causes = causes or [name for name in read.places if name in words]
    named = sorted((name for name in causes if name in words), key=words.index)
    first = [*named, *(name for name in causes if name.startswith("recompute_")), *causes]
    return read.places[first[0]] if first else read.place


def _causes(
    read: ReadSettings, finding: Finding, revision: Revision, *, same_words: bool
) -> list[str]:
    """Values without which the rule says nothing, or with `same_words` not this."""

    def still_says(given: Given) -> bool:
        again = find(launched(given, revision, read.model), revision)
        same = (f for f in again if f.rule == finding.rule)
        return any(not same_words or f.reason == finding.reason for f in same)

    names = (name for name in read.given.values if name in read.places)
    return [name for name in names if not still_says(read.without(name))]


def understood(settings: RawSettings) -> str:
    """The recompute fields in a few words, as Megatron understands them."""
    if settings.selective or settings.moe_layer_recompute:
        return f"selective recompute of {', '.join(settings.recomputed_modules) or 'nothing'}"
    if settings.recompute_granularity is None:
        return "no recompute"
    how, number = settings.recompute_method or "no method", settings.recompute_num_layers
    many = "no number of layers" if number is None else f"{number} layer{'s' * (number != 1)}"
    return f"{settings.recompute_granularity} recompute, {how}, {many}"


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
