"""Settings of Megatron as our own fields: layout, batch, precision, model, recompute."""

import re
from collections.abc import Iterator
from math import prod
from typing import Any, Final

from advisor.base.dtypes import Precision
from advisor.base.fields import field_types
from advisor.frameworks.megatron.lint.option_values import field_values, is_taken, omitted_values
from advisor.frameworks.megatron.lint.peft_section import adapter_values
from advisor.frameworks.megatron.lint.settings import Fields, ReadSettings, Said
from advisor.frameworks.megatron.lint.yaml_config import MIXED_PRECISION
from advisor.frameworks.megatron.options import table
from advisor.frameworks.megatron.options.values import FSDP_STRATEGIES
from advisor.frameworks.megatron.raw import RawSettings, graphs_of
from advisor.frameworks.megatron.revisions import resolve_revision
from advisor.frameworks.megatron.setting import Granularity, Method, RecomputeSetting
from advisor.frameworks.names import Framework
from advisor.frameworks.option import Status, dashed
from advisor.job.job import RECIPES_OF_PRECISIONS
from advisor.job.layout import ParallelLayout
from advisor.job.pipeline_split import chunk_texts
from advisor.models.options import CrossEntropyFusion
from advisor.reading.read_configuration import (
    EXPANDABLE_SEGMENTS,
    ReadValue,
    UnknownValue,
    as_whole_number,
    expandable_segments,
    known,
    truth,
)

RENAMED_LAYOUT: Final = {
    "decoder_first_pipeline_num_layers": "num_layers_in_first_pipeline_stage",
    "decoder_last_pipeline_num_layers": "num_layers_in_last_pipeline_stage",
    "num_virtual_stages_per_pipeline_rank": "virtual_pipeline_model_parallel_size",
}
BATCH: Final = {
    "encoder_seq_length": "seq_length",
    "sequence_length": "seq_length",
    "seq_length": "seq_length",
    "micro_batch_size": "micro_batch_size",
    "global_batch_size": "global_batch_size",
}
_STRATEGY: Final = "data_parallel_sharding_strategy"
CHUNKS: Final = "layout.virtual_pipeline_model_parallel_size"
_LEFT_OUT: Final[dict[str, Any]] = {
    "use_distributed_optimizer": False,
    "overlap_grad_reduce": False,
    "overlap_param_gather": False,
    "tensor_model_parallel_size": 1,
    "pipeline_model_parallel_size": 1,
    "context_parallel_size": 1,
}
_GRAPHS: Final = (
    "cuda_graph_impl",
    "cuda_graph_modules",
    "enable_cuda_graph",
    "external_cuda_graph",
)
_RECIPES: Final = {
    str(recipe): str(precision) for precision, recipe in RECIPES_OF_PRECISIONS.items()
}
_NO_FUSION: Final = str(CrossEntropyFusion.NONE)
_RECOMPUTE: Final = (
    *("recompute_", "offload_", "distribute_saved", "cpu_offloading", "fine_grained"),
    "activations_c",
)


def read_values(read: ReadSettings, settings: RawSettings, said: Said) -> dict[str, ReadValue]:
    """Values by path of our fields, except the model's shape; what is not known is left out.

    Of Megatron-LM what is not said has its default: all words are in the command. Where some are
    not known, the model's options may be among them, and stay the model's.
    """
    found = dict(_layout(read, settings)) | field_values(said, shape=False)
    for name, field in BATCH.items():
        if name in read.loose:
            given = read.loose[name]
            if (number := as_whole_number(given.value) or 0) > 0:
                found[f"job.{field}"] = given.meaning(number)
    found |= dict(_implementation(read, said))
    found |= _graphs(read, said, settings)
    found |= dict(adapter_values(read))
    found = {path: value for path, value in found.items() if is_taken(path, value.value)}
    precision = _precision(read)
    if precision is not None:
        found["job.precision"] = precision
    if read.given.framework == Framework.MEGATRON_LM and read.has_defaults:
        omitted = omitted_values(read, said, shape=False)
        of_model = "model." if read.unknown else ()
        kept = {path: value for path, value in omitted.items() if not path.startswith(of_model)}
        return kept | found
    return found | dict(provider_values(read, said))


def _layout(read: ReadSettings, settings: RawSettings) -> Fields:
    types = {name: str(kind) for name, kind in field_types(ParallelLayout).items()}
    for name, given in read.loose.items():
        field = RENAMED_LAYOUT.get(name, name)
        if field not in types or not known(given.value):
            continue
        value: Any = given.value
        if "bool" in types[field]:
            value = truth(given.value)
        elif "int" in types[field] and "tuple" not in types[field]:
            value = as_whole_number(given.value)
        if value is not None:
            yield f"layout.{field}", given.meaning(value)
    per_stage = read.loose.get("num_layers_per_virtual_pipeline_stage")
    chunks = settings.virtual_pipeline_model_parallel_size
    if per_stage is not None and chunks:
        yield CHUNKS, per_stage.meaning(chunks)
    text = read.loose.get("pipeline_model_parallel_layout")
    if text is not None and known(text.value):
        made = len(chunk_texts(str(text.value))) // settings.pipeline_model_parallel_size
        if made:
            yield CHUNKS, text.meaning(made)
    fsdp, strategy = read.loose.get("use_megatron_fsdp"), read.loose.get(_STRATEGY)
    if fsdp is not None and truth(fsdp.value):
        row, launched = table.SETTINGS[_STRATEGY], read.given.framework == Framework.MEGATRON_LM
        name = strategy.value if strategy else row.omitted if launched else row.default
        if name in FSDP_STRATEGIES:
            yield "layout.data_parallel_sharding", fsdp.meaning(FSDP_STRATEGIES[name])
    if read.given.framework == Framework.MEGATRON_LM and read.has_defaults:
        yield from _left_out(read)


def _left_out(read: ReadSettings) -> Fields:
    """What a command of Megatron-LM does not say is off, or 1; a recipe would have a word in it."""
    defaults = dict(_LEFT_OUT)
    if "tensor_model_parallel_size" in read.loose:
        defaults["sequence_parallel"] = False
    if "num_experts" in read.loose:
        defaults["expert_model_parallel_size"] = 1
    for name, value in defaults.items():
        if name not in read.loose:
            yield f"layout.{name}", read.omitted(value, f"no {dashed(name)}")


def _implementation(read: ReadSettings, said: Said) -> Fields:
    fusion, path = said.get("cross_entropy_loss_fusion"), "model.cross_entropy_fusion"
    if fusion is not None:
        impl = said.get("cross_entropy_fusion_impl")
        used = "native" if impl is None else impl.value
        yield path, fusion.meaning(used if fusion.value else _NO_FUSION)
    elif read.given.framework == Framework.MEGATRON_LM and not read.unknown:
        yield path, read.omitted(_NO_FUSION, "no --cross-entropy-loss-fusion")
    for name in ("bias_activation_fusion", "bias_gelu_fusion", "bias_swiglu_fusion"):
        if name in said:
            yield "model.bias_activation_fusion", said[name]
    recipe = said.get("fp8_recipe")
    if recipe is not None and not read.given.values.get("fp8"):
        yield "job.fp8_recipe", recipe
    reduced = _fsdp_gradients(read, said) or _gradients(said)
    if reduced is not None:
        yield "job.main_grads_dtype", reduced
    segments = expandable_segments(read.environment)
    if segments is not None:
        yield EXPANDABLE_SEGMENTS, segments


def _fsdp_gradients(read: ReadSettings, said: Said) -> ReadValue | None:
    """The type of Megatron-FSDP's main gradients, which has an option of its own, and no other from
    0.19 on: without it the weights' type."""
    fsdp, own = said.get("use_megatron_fsdp"), said.get("megatron_fsdp_main_grads_dtype")
    if fsdp is None or not fsdp.value:
        return None
    if own is not None and own.value == "fp32":
        return own.meaning("fp32")
    only = resolve_revision(read.given.framework, read.given.version).at_least(0, 19)
    return (own or fsdp).meaning("bf16") if only else None


def _gradients(said: Said) -> ReadValue | None:
    """The type of the gradient buffer; None where nothing says it: fp32. --fp16 alone reduces in 16
    bits, --bf16 alone in fp32."""
    in_bf16, in_fp32 = said.get("grad_reduce_in_bf16"), said.get("grad_reduce_in_fp32")
    if in_bf16 is not None and in_bf16.value:
        return in_bf16.meaning("bf16")
    if in_fp32 is not None:
        return in_fp32.meaning("fp32" if in_fp32.value else "bf16")
    half, accumulates = said.get("fp16"), said.get("accumulate_allreduce_grads_in_fp32")
    if half is not None and half.value:
        return half.meaning("fp32" if accumulates is not None and accumulates.value else "bf16")
    return None


def _graphs(read: ReadSettings, said: Said, settings: RawSettings) -> dict[str, ReadValue]:
    """CUDA graphs in the newest spelling; a script that does not name them has none."""
    named = [said[name] for name in _GRAPHS if name in said]
    if not named:
        return {}
    graphs = graphs_of(settings, resolve_revision(read.given.framework, read.given.version))
    found = {"job.cuda_graph_impl": named[0].meaning(graphs.impl)}
    if graphs.modules:
        found["job.cuda_graph_modules"] = named[-1].meaning(graphs.modules)
    return found


def _precision(read: ReadSettings) -> ReadValue | None:
    values, loose = read.given.values, read.loose
    names_of_fp8 = ("fp8_format", MIXED_PRECISION, "precision_config", "fp8")
    eight = [name for name in names_of_fp8 if name in loose]
    if eight and values.get("fp8"):
        recipe = str(values.get("fp8_recipe") or "delayed")
        return loose[eight[0]].meaning(_RECIPES[recipe]) if recipe in _RECIPES else None
    four = [name for name in ("fp4_format", "fp4") if name in loose]
    if four and values.get("fp4"):
        return loose[four[0]].meaning(str(Precision.NVFP4))
    mixed = loose.get(MIXED_PRECISION)
    if mixed is not None and isinstance(mixed.value, str):
        four_bits = str(Precision.NVFP4) in mixed.value
        named = str(Precision.NVFP4) if four_bits else mixed.value.partition("_")[0]
        return mixed.meaning(named) if named in ("bf16", "fp16", Precision.NVFP4) else None
    on = (name for name in ("fp16", "bf16") if name in loose and truth(loose[name].value))
    return next((loose[name].meaning(name) for name in on), None)


def recompute_values(read: ReadSettings) -> tuple[ReadValue, ...]:
    """The options that say what is recomputed, as they are written."""
    return tuple(given for name, given in read.loose.items() if name.startswith(_RECOMPUTE))


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
        if settings.activation_offload_fraction != 1.0:
            text += f"+offload_fraction={settings.activation_offload_fraction:g}"
    if settings.cpu_offloading_num_layers > 0:
        text += f"+cpu_offloading={settings.cpu_offloading_num_layers}"
    return text


def num_microbatches(read: ReadSettings) -> int | None:
    """Without a global batch Megatron-LM makes one microbatch a step (validate_args)."""
    said = "global_batch_size" in read.loose or read.unknown
    return 1 if read.given.framework == Framework.MEGATRON_LM and not said else None


def num_gpus(read: ReadSettings) -> int | None:
    """GPUs of a performance script of Bridge, or nodes and their GPUs of NeMo."""
    if read.given.framework == Framework.MEGATRON_LM:
        return None
    for names in (("ng",), ("num_gpus",), ("num_nodes", "num_gpus_per_node")):
        given = (as_whole_number(read.loose[name].value) for name in names if name in read.loose)
        numbers = [number for number in given if number]
        if len(numbers) == len(names):
            return prod(numbers)
    return None


_ROPE: Final = "apply_rope_fusion"
_ACTIVATION: Final = "bias_activation_fusion"
_ON: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    Framework.MEGATRON_BRIDGE: {
        _ROPE: ("llama2", "llama3", "nemotron4"),
        _ACTIVATION: (*("llama", "nemotron", "gpt", "deepseek"), *("kimi", "moonlight", "glm")),
    },
    Framework.NEMO: {
        _ROPE: ("llama2", "llama3", "mixtral", "nemotron4"),
        _ACTIVATION: ("llama", "nemotron", "gpt", "deepseek", "mixtral"),
    },
}
"""Families whose class sets a fusion."""
_OWN_FUSIONS: Final = re.compile(r"\d+gpu_|perf_recipes|scripts/performance|setup_experiment\.py")
"""Performance scripts, and recipes for a number of GPUs, which set them."""


def provider_values(read: ReadSettings, said: Said) -> Fields:
    """Both fusions of the model that the configuration names; nothing of performance scripts and
    recipes, which set their own, of NeMo 1, and where every field is written out."""
    families = _ON.get(read.given.framework)
    if families is None or read.is_complete or not read.model or read.given.version == "1":
        return
    if any(_OWN_FUSIONS.search(text) for text in read.texts):
        return
    for name, fused in families.items():
        if name not in said:
            yield (
                f"model.{name}",
                read.omitted(read.model.startswith(fused), f"{read.model} in the library"),
            )


RECOMPUTE: Final = "recompute"


def unknown_values(read: ReadSettings) -> Iterator[UnknownValue]:
    """In the order of the document; options without effect on memory and time are passed over."""
    found = [*_unknown_options(read), *_unknown_precision(read)]
    found += [UnknownValue(written="", text=text, place=at) for text, at in read.unknown]
    yield from sorted(found, key=lambda one: one.place)


def _unknown_options(read: ReadSettings) -> Iterator[UnknownValue]:
    for name, given in read.loose.items():
        path = _path_of(name)
        if path is not None and not known(given.value):
            text = str(given.value)
            if given.place.file.endswith(".py"):  # an expression, no variable of a shell
                text = text.removeprefix("$")
            yield UnknownValue(written=given.written, text=text, place=given.place, path=path)


def _unknown_precision(read: ReadSettings) -> Iterator[UnknownValue]:
    """Without either type Megatron-LM trains in fp32, which is not modelled."""
    whole_command = read.given.framework == Framework.MEGATRON_LM and not read.unknown
    if whole_command and not {"bf16", "fp16"} & read.loose.keys():
        yield UnknownValue(
            written="no --bf16 and no --fp16", text="", place=read.place, path="job.precision"
        )


def _path_of(name: str) -> str | None:
    """The field that an option means; empty where it is none, None where it does not matter."""
    if name in BATCH:
        return f"job.{BATCH[name]}"
    field = RENAMED_LAYOUT.get(name, name)
    if field in ParallelLayout.__struct_fields__:
        return f"layout.{field}"
    row = table.option_of_flag(dashed(name)) or table.option_of_field(name)
    if row is None or row.name not in table.SETTINGS or row.status is Status.HARMLESS:
        return None
    part = row.ours.partition(".")[0]
    if part == RECOMPUTE:
        return RECOMPUTE
    return row.ours if part in table.PARTS else ""
