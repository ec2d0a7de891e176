"""Settings of Megatron as our own fields: layout, batch, precision, model, recompute."""

from collections.abc import Iterator
from functools import cache
from typing import Any, Final

from advisor.base.errors import UserError
from advisor.base.fields import field_types, parse
from advisor.frameworks.megatron.lint.settings import ReadSettings
from advisor.frameworks.megatron.options.table import SETTINGS
from advisor.frameworks.megatron.raw import RawSettings, graphs_of
from advisor.frameworks.megatron.revisions import resolve_revision
from advisor.frameworks.megatron.setting import Granularity, Method, RecomputeSetting
from advisor.frameworks.names import Framework
from advisor.frameworks.option_status import Status
from advisor.job.job import RECIPES_OF_PRECISIONS, JobConfig
from advisor.job.layout import ParallelLayout
from advisor.models.presets import load_preset, model_names
from advisor.models.spec import ModelSpec
from advisor.reading.document_keys import known, truth, whole
from advisor.reading.read_configuration import ReadValue

_RENAMED: Final = {
    "decoder_first_pipeline_num_layers": "num_layers_in_first_pipeline_stage",
    "decoder_last_pipeline_num_layers": "num_layers_in_last_pipeline_stage",
    "num_virtual_stages_per_pipeline_rank": "virtual_pipeline_model_parallel_size",
}
_BATCH: Final = {
    "encoder_seq_length": "seq_length",
    "sequence_length": "seq_length",
    "seq_length": "seq_length",
    "micro_batch_size": "micro_batch_size",
    "global_batch_size": "global_batch_size",
}
_OFF_BY_DEFAULT: Final = (
    "use_distributed_optimizer",
    "overlap_grad_reduce",
    "overlap_param_gather",
)
_DEGREES: Final = (
    "tensor_model_parallel_size",
    "pipeline_model_parallel_size",
    "context_parallel_size",
)
_OF_EXPERTS: Final = (
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
)
"""Options of experts that no shape of a model implies."""
_FUSIONS: Final = (
    "apply_rope_fusion",
    "masked_softmax_fusion",
    "bias_dropout_fusion",
    "gradient_accumulation_fusion",
)
"""On in Megatron-LM unless a switch says otherwise."""
_GRAPHS: Final = (
    "cuda_graph_impl",
    "cuda_graph_modules",
    "enable_cuda_graph",
    "external_cuda_graph",
)
_RECIPES: Final = {
    str(recipe): str(precision) for precision, recipe in RECIPES_OF_PRECISIONS.items()
}
_RECOMPUTE: Final = ("recompute_", "offload_", "distribute_saved", "cpu_offloading", "fine_grained")


def read_values(read: ReadSettings, settings: RawSettings) -> dict[str, ReadValue]:
    """Values by path of our fields; what is not known is left out."""
    found = dict(_layout(read, settings))
    for name, field in _BATCH.items():
        given = read.loose.get(name)
        number = whole(given.value) if given is not None else None
        if given is not None and number is not None and number > 0:
            found[f"job.{field}"] = _as(given, number)
    found |= _implementation(read)
    found |= _run(read)
    found |= _graphs(read, settings)
    found = {path: value for path, value in found.items() if _is_taken(path, value)}
    precision = _precision(read)
    if precision is not None:
        found["job.precision"] = precision
    return found


def _as(given: ReadValue, value: Any) -> ReadValue:
    return ReadValue(value=value, written=given.written, place=given.place)


def _layout(read: ReadSettings, settings: RawSettings) -> Iterator[tuple[str, ReadValue]]:
    types = {name: str(kind) for name, kind in field_types(ParallelLayout).items()}
    for name, given in read.loose.items():
        field = _RENAMED.get(name, name)
        if field not in types or not known(given.value):
            continue
        value: Any = given.value
        if "bool" in types[field]:
            value = truth(given.value)
        elif "int" in types[field] and "tuple" not in types[field]:
            value = whole(given.value)
        if value is not None:
            yield f"layout.{field}", _as(given, value)
    per_stage = read.loose.get("num_layers_per_virtual_pipeline_stage")
    chunks = settings.virtual_pipeline_model_parallel_size
    if per_stage is not None and chunks:
        yield "layout.virtual_pipeline_model_parallel_size", _as(per_stage, chunks)
    if read.given.framework == Framework.MEGATRON_LM:
        yield from _left_out(read)


def _left_out(read: ReadSettings) -> Iterator[tuple[str, ReadValue]]:
    """What a command of Megatron-LM does not say is off, or 1; a recipe would have a word in it."""
    defaults: dict[str, Any] = dict.fromkeys(_OFF_BY_DEFAULT, False) | dict.fromkeys(_DEGREES, 1)
    if read.loose.keys() & {"tensor_model_parallel_size"}:
        defaults["sequence_parallel"] = False
    if "num_experts" in read.loose:
        defaults["expert_model_parallel_size"] = 1
    for name, value in defaults.items():
        if name not in read.loose:
            written = f"no --{name.replace('_', '-')}"
            yield f"layout.{name}", ReadValue(value=value, written=written, place=read.place)


def _implementation(read: ReadSettings) -> dict[str, ReadValue]:
    """What a job is made of beside its shape."""
    found = {
        f"model.{name}": _as(read.loose[name], str(read.loose[name].value))
        for name in ("attention_backend", "transformer_impl")
        if name in read.loose and known(read.loose[name].value)
    }
    fusion = read.loose.get("cross_entropy_loss_fusion")
    if fusion is not None and truth(fusion.value):
        impl = read.loose.get("cross_entropy_fusion_impl")
        name = str(impl.value) if impl is not None else "native"
        found["model.cross_entropy_fusion"] = _as(fusion, name)
    reduced = read.loose.get("grad_reduce_in_bf16")
    if reduced is not None and truth(reduced.value):
        found["job.main_grads_dtype"] = _as(reduced, "bf16")
    if read.given.values.get("expandable_segments"):
        place = read.places["expandable_segments"]
        found["job.expandable_segments"] = ReadValue(
            value=True, written="expandable_segments:True", place=place
        )
    return found


def _run(read: ReadSettings) -> dict[str, ReadValue]:
    """How experts and fusions run; what a command of Megatron-LM leaves out is its default."""
    found = {}
    whole_command = read.given.framework == Framework.MEGATRON_LM
    for name in (*_OF_EXPERTS, *_FUSIONS):
        if name in read.given.values:
            if (said := _said(read, name)) is not None:
                found[f"model.{name}"] = said
        elif whole_command and name in _OF_EXPERTS and "num_experts" in read.loose:
            row = SETTINGS[name]
            found[f"model.{name}"] = ReadValue(
                value=row.default, written=f"no {row.flag}", place=read.place
            )
    return found


def _graphs(read: ReadSettings, settings: RawSettings) -> dict[str, ReadValue]:
    """CUDA graphs in the newest spelling; a script that does not name them has none."""
    said = [given for name in _GRAPHS if (given := _said(read, name)) is not None]
    if not said:
        return {}
    revision = resolve_revision(read.given.framework, read.given.version)
    graphs = graphs_of(settings, revision)
    found = {"job.cuda_graph_impl": _as(said[0], graphs.impl)}
    if graphs.modules:
        found["job.cuda_graph_modules"] = _as(said[-1], graphs.modules)
    return found


def _said(read: ReadSettings, name: str) -> ReadValue | None:
    """An option as it is written, with its value in the option's type; None where it is not given
    or its text is not known."""
    place = read.places.get(name)
    if place is None or place in read.unresolved.values():
        return None
    same = (given.written for given in read.loose.values() if given.place == place)
    return ReadValue(value=read.given.values[name], written=next(same, name), place=place)


def _is_taken(path: str, given: ReadValue) -> bool:
    """Whether a field of ours takes the value; Megatron has dispatchers that are not modelled."""
    group, _, name = path.partition(".")
    part = {"model": ModelSpec, "job": JobConfig}.get(group)
    if part is None or not isinstance(given.value, str):
        return True
    try:
        parse(given.value, field_types(part)[name], path)
    except UserError:
        return False
    return True


def untaken_values(read: ReadSettings) -> tuple[ReadValue, ...]:
    """Options that are known and said, and that no prediction takes."""
    found = []
    for name in read.given.values:
        row, given = SETTINGS[name], _said(read, name)
        if given is None or given.value == row.default:
            continue
        unknown = name in _OF_EXPERTS and not _is_taken(f"model.{name}", given)
        unknown |= name == "cuda_graph_impl" and not _is_taken(f"job.{name}", given)
        if unknown or row.status in (Status.UNPRICED, Status.REFUSED):
            found.append(given)
    return tuple(found)


def _precision(read: ReadSettings) -> ReadValue | None:
    values = read.given.values
    for name in ("fp8_format", "mixed_precision", "precision_config", "fp8"):
        given = read.loose.get(name)
        if given is not None and values.get("fp8"):
            recipe = str(values.get("fp8_recipe") or "delayed")
            return _as(given, _RECIPES[recipe]) if recipe in _RECIPES else None
    mixed = read.loose.get("mixed_precision")
    if mixed is not None and isinstance(mixed.value, str):
        named = mixed.value.partition("_")[0]
        return _as(mixed, named) if named in ("bf16", "fp16") else None
    for name in ("fp16", "bf16"):
        given = read.loose.get(name)
        if given is not None and truth(given.value):
            return _as(given, name)
    return None


def recompute_values(read: ReadSettings) -> tuple[ReadValue, ...]:
    """The options that say what is recomputed, as they are written."""
    return tuple(
        given
        for name, given in read.loose.items()
        if name.startswith((*_RECOMPUTE, "activations_c"))
    )


def recompute_spec(settings: RawSettings) -> str | None:
    """The setting in the spelling of --recompute; None where it is none that can be spelt."""
    modules = settings.recomputed_modules
    if settings.full:
        number, method = settings.recompute_num_layers, settings.recompute_method
        if number is None or method not in list(Method):
            return None
        setting = RecomputeSetting(
            granularity=Granularity.FULL,
            method=Method(method),
            num_layers=number,
            distribute_saved_activations=settings.distribute_saved_activations,
        )
    elif settings.selective or modules:
        setting = RecomputeSetting(granularity=Granularity.SELECTIVE, modules=modules)
    elif settings.recompute_granularity is not None:
        return None
    else:
        setting = RecomputeSetting()
    text = setting.spec
    if settings.fine_grained_activation_offloading and settings.offload_modules:
        text += "+offload=" + ",".join(settings.offload_modules)
    if settings.cpu_offloading_num_layers > 0:
        text += f"+cpu_offloading={settings.cpu_offloading_num_layers}"
    return text


def model_of_shape(read: ReadSettings) -> str:
    """The preset with the shape that a command line spells out; empty where there is none."""
    loose = read.loose
    sizes = {
        name: whole(loose[name].value) if name in loose else None
        for name in ("num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size")
    }
    hidden, heads = sizes["hidden_size"], sizes["num_attention_heads"]
    if not (sizes["num_layers"] and hidden and heads):
        return ""
    groups = whole(loose["num_query_groups"].value) if "num_query_groups" in loose else heads
    experts = loose.get("num_experts") or loose.get("num_moe_experts")
    wanted = (
        sizes["num_layers"],
        hidden,
        heads,
        sizes["ffn_hidden_size"] or 4 * hidden,
        groups,
        whole(experts.value) if experts is not None else None,
    )
    names = [name for name, shape in _shapes() if shape == wanted]
    for option, field in (
        ("vocab_size", "vocab_size"),
        ("max_position_embeddings", "max_position_embeddings"),
    ):
        number = whole(loose[option].value) if option in loose else None
        same = [name for name in names if getattr(load_preset(name).spec, field) == number]
        names = same or names
    return names[0] if names else ""


@cache
def _shapes() -> tuple[tuple[str, tuple[int | None, ...]], ...]:
    found = []
    for name in model_names():
        spec = load_preset(name).spec
        found.append(
            (
                name,
                (
                    spec.num_layers,
                    spec.hidden_size,
                    spec.num_attention_heads,
                    spec.ffn_hidden_size,
                    spec.num_query_groups,
                    spec.num_moe_experts,
                ),
            )
        )
    return tuple(found)
