"""Options of Megatron as fields of ours: those that are said, and Megatron-LM's own defaults."""

from collections.abc import Iterator
from typing import Any, Final

from advisor.base.errors import UserError
from advisor.base.fields import field_types, optional_type, parse
from advisor.frameworks.megatron.lint.settings import KINDS, ReadSettings, Said, convert
from advisor.frameworks.megatron.options import table
from advisor.frameworks.option import Option, Status, dashed
from advisor.reading.read_configuration import ReadValue, known

_OF_EXPERTS: Final = frozenset(
    [
        "moe_token_dispatcher_type",
        "moe_flex_dispatcher_backend",
        "moe_permute_fusion",
        "moe_grouped_gemm",
        "moe_use_legacy_grouped_gemm",
        "moe_router_fusion",
        "moe_router_dtype",
        "moe_shared_expert_overlap",
        "moe_expert_capacity_factor",
        "moe_pad_expert_input_to_capacity",
        "moe_token_drop_policy",
        "moe_apply_probs_on_input",
        "use_fused_weighted_squared_relu",
    ]
)
"""Options of experts that no shape of a model implies."""
_HOW_IT_RUNS: Final = frozenset(
    (
        *(
            row.name
            for part in table.sections("Implementation Dropout Loss Precision")
            for row in part.rows
        ),
        *_OF_EXPERTS,
        "activation_func_fp8_input_store",
        "mtp_num_layers",
    )
)
"""Options of a model that are not its shape; multi-token prediction is trained or left out."""
_OTHERWISE: Final = frozenset(
    (
        "virtual_pipeline_model_parallel_size",
        "num_layers_per_virtual_pipeline_stage",
        "use_layer_wise_param_layout",
        "check_for_nan_in_loss_and_grad",
        "cuda_graph_impl",
        "cuda_graph_modules",
        "bias_gelu_fusion",
        "bias_swiglu_fusion",
        "num_query_groups",
        "position_embedding_type",
    )
)
"""Options that are read together with others (job_values, spelled_model)."""
_LATENT: Final = (
    *("q_lora_rank", "kv_lora_rank"),
    *("qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim", "rope_type"),
)
_READ_WITH: Final = {
    **dict.fromkeys(_LATENT, "multi_latent_attention"),
    "attention_softmax_in_fp32": "transformer_impl",
}
"""Options that are read with another one alone, whose default does without."""


def is_direct(row: Option) -> bool:
    """Whether the option by itself says a field of ours."""
    part = row.ours.partition(".")[0]
    if row.status is not Status.MODELLED or part not in table.PARTS or row.name in _OTHERWISE:
        return False
    return row.value is None or row.means is not None


def said_options(read: ReadSettings) -> dict[str, ReadValue]:
    """Options by name as they are said, each in its own type; what is not known is left out."""
    found = {name: said for name in read.given.values if (said := _said(read, name)) is not None}
    for name, given in read.loose.items():
        row = table.option_of_flag(dashed(name)) or table.option_of_field(name)
        if row is None or row.name in found or row.name in read.given.values:
            continue
        if row.name not in KINDS or not known(given.value):
            continue
        value = False if table.switches_off(dashed(name)) else given.value
        if row.kind is tuple and isinstance(value, bool):
            continue
        try:
            found[row.name] = given.meaning(convert(row.name, value, name))
        except UserError:
            continue
    return found


def _said(read: ReadSettings, name: str) -> ReadValue | None:
    place = read.places.get(name)
    if place is None or name in read.given.unresolved:
        return None
    each = (read.loose.get(name), *read.loose.values())
    same = (given.written for given in each if given and given.place == place)
    return ReadValue(value=read.given.values[name], written=next(same, name), place=place)


def field_values(said: Said, *, shape: bool) -> dict[str, ReadValue]:
    """Fields of ours that the options say: those of the model's shape, or all others. What no field
    takes is left out (is_taken)."""
    found = {}
    for name, given in said.items():
        row = table.SETTINGS[name]
        if is_direct(row) and is_shape(row) == shape:
            means = row.meaning(given.value)
            if is_taken(row.ours, means):
                found[row.ours] = given.meaning(means)
    return found


def is_shape(row: Option) -> bool:
    """Whether the option is of the model's shape."""
    return row.ours.startswith("model.") and row.name not in _HOW_IT_RUNS


def is_taken(path: str, value: Any) -> bool:
    """Whether a field of ours takes the value; Megatron has dispatchers that are not modelled."""
    part, _, name = path.partition(".")
    if not isinstance(value, str):
        return True
    try:
        parse(value, field_types(table.PARTS[part])[name], path)
    except UserError:
        return False
    return True


def untaken_options(said: Said) -> Iterator[ReadValue]:
    """Options that are known and said, and that no prediction takes."""
    dispatcher = said.get("moe_token_dispatcher_type")
    flex = dispatcher is not None and dispatcher.value == "flex"
    for name, given in said.items():
        row = table.SETTINGS[name]
        if given.value in (row.default, row.omitted):
            continue
        if name == "moe_enable_deepep" and not flex:
            yield given  # with flex it is the backend that is modelled, without it nothing
            continue
        foreign = is_direct(row) and not is_taken(row.ours, row.meaning(given.value))
        foreign |= name == "cuda_graph_impl" and not is_taken(row.ours, given.value)
        if foreign or row.status in (Status.UNPRICED, Status.UNTIMED, Status.REFUSED):
            yield given


def omitted_values(read: ReadSettings, said: Said, *, shape: bool) -> dict[str, ReadValue]:
    """Fields of model and job by Megatron-LM's defaults of the options that its command line leaves
    out: those of the model's shape, or all others."""
    found = {}
    experts = not read.loose.keys().isdisjoint(("num_experts", "num_moe_experts"))
    for row in table.SETTINGS.values():
        if not is_direct(row) or is_shape(row) != shape or row.ours.startswith("layout."):
            continue
        if not (row.flag or row.off) or _is_mentioned(read, row):
            continue
        if _READ_WITH.get(row.name, "") not in ("", *said) or (
            row in table.SECTIONS["Experts"].rows and not experts
        ):
            continue
        default = row.meaning(row.omitted)
        part, _, name = row.ours.partition(".")
        if default is not None or optional_type(field_types(table.PARTS[part])[name]) is not None:
            found[row.ours] = read.omitted(default, f"no {row.flag or row.off}")
    return found


def _is_mentioned(read: ReadSettings, row: Option) -> bool:
    """Whether a document names the option, be it with a value that nobody knows."""
    flags = (row.name, row.flag, row.off)
    names = {flag.removeprefix("--").replace("-", "_") for flag in flags if flag}
    return row.name in read.given.values or bool(names & read.loose.keys())
