"""Rules on the recompute and offload fields: what TransformerConfig refuses of them, and what it
accepts and does not read.
"""

from typing import Final

from advisor.frameworks.megatron.raw import RawSettings
from advisor.frameworks.megatron.revisions import Revision
from advisor.frameworks.megatron.rules.conditions import Unknown, selects, unknown, unknown_to
from advisor.frameworks.megatron.rules.stated import stated


def _unknown_modules(raw: RawSettings, revision: Revision) -> Unknown | None:
    """Labels that the release does not accept, with the releases that do."""
    if not raw.selective or not revision.recompute_modules:
        return None
    found = unknown_to(revision, "recompute_modules", raw.effective_modules)
    if found is not None and "," in found.first:
        return Unknown(found.names, instead="separate the modules by spaces")
    return found


CONFIG_RULES: Final = stated(
    "recompute_fields",
    recompute_granularity=lambda raw, _: unknown(
        (raw.recompute_granularity,), ("full", "selective")
    ),
    recompute_method=lambda raw, _: unknown((raw.recompute_method,), ("block", "uniform")),
    recompute_modules=_unknown_modules,
)


def _unread_modules(raw: RawSettings, _: Revision) -> dict[str, str] | None:
    """Not the promoted default, which a dumped configuration shows even where nothing is
    recomputed."""
    modules = raw.recompute_modules
    if raw.selective or not modules or modules == ("core_attn",):
        return None
    return {"modules": ", ".join(modules), "granularity": raw.recompute_granularity or "unset"}


def _unread_method(raw: RawSettings, _: Revision) -> str:
    """The fields of full recompute that are set."""
    fields = ("recompute_method", "recompute_num_layers")
    given = [name for name in fields if getattr(raw, name) is not None]
    return " and ".join(f"{name} = {getattr(raw, name)}" for name in given)


def _why_not_distributed(raw: RawSettings, _: Revision) -> str:
    if not raw.full:
        return f"recompute_granularity is {raw.recompute_granularity or 'unset'}, not full"
    return "tensor_model_parallel_size is 1" if raw.tensor_model_parallel_size <= 1 else ""


def _more_layers_than_chunk(raw: RawSettings, revision: Revision) -> str:
    """The layers of a model chunk, where more of them are to be recomputed."""
    number, layers = raw.recompute_num_layers, raw.layers_per_chunk
    refused = raw.recompute_method == "uniform" and revision.uniform_must_divide
    if not raw.full or number is None or layers is None or number <= layers or refused:
        return ""
    return f"{layers}"


def _recomputed_and_offloaded(raw: RawSettings, _: Revision) -> list[str]:
    both = [m for m in raw.offload_modules if selects(raw, m)]
    return both or (["every layer"] if raw.full and raw.offload_modules else [])


UNREAD_RULES: Final = stated(
    "recompute_fields.unread",
    modules_without_selective=_unread_modules,
    method_without_full=_unread_method,
    distribute_ignored=_why_not_distributed,
    more_layers_than_chunk=_more_layers_than_chunk,
    offload_without_switch=lambda raw, _: raw.offload_modules,
    offload_of_recomputed=_recomputed_and_offloaded,
)
"""Fields first, then whole layers and offloading. Of selective recompute Megatron-LM's arguments
refuse a method, and NeMo 1's own transformer demands one."""
