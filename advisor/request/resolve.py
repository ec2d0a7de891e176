"""From a request to a job: what is given, what a preset gives, what the advisor assumes."""

from dataclasses import dataclass, fields, replace
from typing import Any

from advisor.base.dtypes import DType, Precision
from advisor.base.errors import UserError
from advisor.base.fields import field_types, override_all, parse, parse_all
from advisor.base.units import human_bytes, nearest_names, parse_bytes, parse_gpus
from advisor.frameworks.megatron.revisions import resolve_revision
from advisor.frameworks.protocols import Stack
from advisor.frameworks.registry import stack_of
from advisor.hardware.catalogue import load_gpu
from advisor.hardware.gpu import Gpu
from advisor.job.job import CudaGraphImpl, Framework, Job, JobConfig, Optimizer, check_precision
from advisor.job.layout import ParallelLayout
from advisor.models.mixers import LINEAR_MIXERS
from advisor.models.presets import load_model
from advisor.models.spec import CrossEntropyFusion, ModelSpec, PositionEmbedding
from advisor.models.variants import of_providers
from advisor.plan.recompute_plan import Setting
from advisor.request.experiments import (
    Experiment,
    find_experiment,
    nearest_experiment,
    nearest_recipe,
)
from advisor.request.layout_fields import completed, open_degrees, reshaped
from advisor.request.optimizer_change import lent_optimizer, under_optimizer, whole_tensors
from advisor.request.request import Request

_DEFAULT_SEQ_LENGTH = 4096
_DEFAULT_BATCH = 128  # sequences, or four a GPU on larger jobs: a multiple of the GPUs
_GROUPS = ("model", "layout", "job")
_BUDGET = "memory_budget_bytes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """A request with everything looked up; `layout` None means: choose one.

    layout_fields are those that flags, KEY=VALUE or nothing gave: a search keeps them.
    open_degrees: those that neither they nor a preset say, and that `layout` leaves at 1.
    shipped: the preset's own setting. borrowed: the preset is for another number of GPUs, so
    that a search of all layouts stands behind it.
    """

    model: ModelSpec
    gpu: Gpu
    num_gpus: int
    config: JobConfig
    layout: ParallelLayout | None
    layout_fields: dict[str, Any]
    assumptions: tuple[str, ...]
    micro_batch_is_free: bool
    open_degrees: tuple[str, ...] = ()
    shipped: Setting | None = None
    borrowed: bool = False

    def job(self, layout: ParallelLayout, micro_batch_size: int | None = None) -> Job:
        """The job with `layout`, and another micro batch where given."""
        config = self.config
        if micro_batch_size is not None:
            config = replace(config, micro_batch_size=micro_batch_size)
        return Job(
            model=self.model, layout=layout, config=config, gpu=self.gpu, num_gpus=self.num_gpus
        )


def resolve(request: Request, *, borrow: bool = True) -> Resolution:
    """Look up model, GPU and preset, and lay the given values over them.

    borrow: whether a recipe for another number of the same GPUs will do.
    """
    overrides = _split_overrides(request.overrides)
    num_gpus, gpu_type = parse_gpus(request.gpus)
    gpu = load_gpu(gpu_type, request.config_dir)
    model = load_model(request.model, request.config_dir)
    precision = parse(request.precision, Precision, "--precision") if request.precision else None
    layout_fields = _layout_fields(request, overrides["layout"])
    wanted = (model.name, num_gpus, gpu_type, precision, request.config_dir, request.seq_length)
    named = request.framework or overrides["job"].get("framework")
    framework = parse(named, Framework, "--framework") if named else _builder(model)
    stack = stack_of(framework)
    preset = find_experiment(*wanted, complete=not layout_fields)
    left_open: tuple[str, ...] = ()
    if preset is None and stack.runs_presets:
        left_open = open_degrees(layout_fields, model, _seq_length(request, overrides["job"]))
    borrowed = borrow and bool(left_open)
    if borrowed:
        preset = nearest_experiment(*wanted)
    if not named and framework is Framework.MEGATRON_BRIDGE and preset is not None:
        framework = preset.framework or framework  # NeMo builds what Bridge builds
        stack = stack_of(framework)
    optimizer = overrides["job"].get("optimizer")
    if preset is not None and optimizer is not None:
        preset = under_optimizer(preset, parse(optimizer, Optimizer, "job.optimizer"))
    if preset is not None and stack.runs_presets:
        model = preset.configure(model)
    model = override_all(model, overrides["model"], "model.")
    base = _base_config(preset, model, num_gpus, stack)
    chosen = {"framework": framework} | ({} if precision is None else {"precision": precision})
    config = _config(request, overrides["job"], base, chosen)
    _check_positions(model, config)
    check_precision(config.precision, gpu)
    _check_budget(config, gpu)
    config = replace(config, framework_version=stack.version(config.framework_version, model))
    whole = layout_fields.get("use_distributed_optimizer") is not True
    if preset is None and optimizer is None and stack.runs_presets and whole:
        config = lent_optimizer(config, nearest_recipe(*wanted))
    model, config = stack.configure(model, config, frozenset(overrides["model"]))
    layout_fields = {**whole_tensors(config.optimizer), **layout_fields}
    layout = stack.layout(layout_fields, num_gpus)
    if layout is None:
        layout = reshaped(layout_fields, preset, num_gpus)
        if layout is not None:
            release = resolve_revision(config.framework, config.framework_version)
            as_text = release.splits_by_text
            layout = completed(layout, layout_fields, model, as_text=as_text)
    its_own = preset if stack.runs_presets else None
    return Resolution(
        model=model,
        gpu=gpu,
        num_gpus=num_gpus,
        config=config,
        layout=layout,
        layout_fields=layout_fields,
        assumptions=_assumptions(
            request, preset, config, model, layout, borrowed, left_open, stack
        ),
        micro_batch_is_free=request.micro_batch_size is None
        and "micro_batch_size" not in (overrides["job"]),
        open_degrees=left_open if preset is None else (),
        shipped=its_own.shipped if its_own else None,
        borrowed=borrowed and its_own is not None,
    )


def _seq_length(request: Request, overrides: dict[str, str]) -> int:
    """Tokens of one sequence as far as the request says them."""
    text = overrides.get("seq_length", "")
    return int(text) if text.isdigit() else request.seq_length or _DEFAULT_SEQ_LENGTH


def _split_overrides(pairs: tuple[str, ...]) -> dict[str, dict[str, str]]:
    """KEY=VALUE pairs by their group: model, layout or job."""
    groups: dict[str, dict[str, str]] = {group: {} for group in _GROUPS}
    for pair in pairs:
        path, _, text = pair.partition("=")
        group, _, key = path.partition(".")
        if "nvme" in pair.lower():
            raise UserError(
                path,
                text,
                "offload to NVMe (ZeRO-Infinity) is not modelled, to the host it is",
                "job.optimizer_cpu_offload=true job.param_cpu_offload=true",
            )
        if group not in groups or not key:
            raise UserError(
                path,
                text,
                "is not a known key",
                f"write model.KEY, layout.KEY or job.KEY; {_known_key(path)}",
            )
        groups[group][key] = text
    return groups


def _known_key(path: str) -> str:
    keys = {
        f"{group}.{field.name}"
        for group, cls in zip(_GROUPS, (ModelSpec, ParallelLayout, JobConfig), strict=True)
        for field in fields(cls)
    }
    name = path.rpartition(".")[2]
    same = sorted(key for key in keys if key.endswith(f".{name}"))
    return f"did you mean {same[0]}?" if same else nearest_names(path, keys)


def _layout_fields(request: Request, overrides: dict[str, str]) -> dict[str, Any]:
    """Fields of ParallelLayout that the request gives; a flag and a KEY=VALUE may not differ."""
    hints = field_types(ParallelLayout)
    given = {
        name: getattr(request, name) for name in hints if getattr(request, name, None) is not None
    }
    for key, text in overrides.items():
        if key not in hints:
            raise UserError(f"layout.{key}", text, "is not a known key", nearest_names(key, hints))
        value = parse(text, hints[key], f"layout.{key}")
        if given.setdefault(key, value) != value:
            raise UserError(f"layout.{key}", text, f"the flag says {given[key]}", "give one")
    return given


def _config(
    request: Request,
    overrides: dict[str, str],
    config: JobConfig,
    chosen: dict[str, Any],
) -> JobConfig:
    """Batch, precision and run-time options: what is given over those of `config`, all at once."""
    given = chosen | {
        name: getattr(request, name)
        for name in ("seq_length", "micro_batch_size", "global_batch_size")
        if getattr(request, name) is not None
    }
    if request.framework_version is not None:
        given["framework_version"] = request.framework_version
    if request.memory_budget is not None:
        given["memory_budget_bytes"] = parse_bytes(request.memory_budget, "--memory-budget")
    texts = dict(overrides)
    budget = texts.get(_BUDGET, "0")
    if not budget.isdigit():
        texts[_BUDGET] = str(parse_bytes(budget, f"job.{_BUDGET}"))
    return replace(config, **given | parse_all(JobConfig, texts, "job."))


def _builder(model: ModelSpec) -> Framework:
    """The framework that builds the model, where the request names none: Megatron-LM if its command
    line can, else Megatron Bridge, or transformers for blocks that only that has."""
    if not model.transformer_impl.is_megatron:
        return Framework.HUGGINGFACE
    own = next(of_providers(model), None) is not None
    return Framework.MEGATRON_BRIDGE if own else Framework.MEGATRON_LM


def _base_config(
    preset: Experiment | None, model: ModelSpec, num_gpus: int, stack: Stack
) -> JobConfig:
    """The preset's options, or those of its batch alone where another framework ran it; else
    defaults."""
    if preset is None:
        return JobConfig(
            seq_length=min(_DEFAULT_SEQ_LENGTH, model.max_position_embeddings),
            micro_batch_size=1,
            global_batch_size=max(4, -(-_DEFAULT_BATCH // num_gpus)) * num_gpus,
        )
    if stack.runs_presets:
        return preset.config
    batch = preset.config.global_batch_size
    return JobConfig(
        seq_length=preset.config.seq_length,
        micro_batch_size=preset.config.micro_batch_size,
        global_batch_size=max(1, batch // num_gpus) * num_gpus,
        precision=preset.config.precision,
    )


def _check_budget(config: JobConfig, gpu: Gpu) -> None:
    budget = config.memory_budget_bytes
    if budget is not None and budget > gpu.memory_bytes:
        card = human_bytes(gpu.memory_bytes)
        raise UserError(
            "--memory-budget",
            human_bytes(budget),
            f"is more than the {card} of {gpu.name}",
            "leave it out for the whole card, or name a GPU that has more in --gpus",
        )


def _check_positions(model: ModelSpec, config: JobConfig) -> None:
    learned = model.position_embedding_type is PositionEmbedding.LEARNED
    if learned and config.seq_length > model.max_position_embeddings:
        raise UserError(
            "job.seq_length",
            config.seq_length,
            f"must not exceed max_position_embeddings = {model.max_position_embeddings} of "
            "learned positions",
            f"nearest: {model.max_position_embeddings}, or raise model.max_position_embeddings",
        )


def _lent(preset: Experiment, layout: ParallelLayout | None) -> str:
    """What is taken from a preset for another number of GPUs."""
    ranks = layout.data_parallel_size if layout else preset.layout.data_parallel_size
    given = "" if layout == preset.layout else ", but for what is given"
    return f"its layout and batch a replica{given}, with DP {ranks}"


def _assumptions(
    request: Request,
    preset: Experiment | None,
    config: JobConfig,
    model: ModelSpec,
    layout: ParallelLayout | None,
    borrowed: bool,
    left_open: tuple[str, ...],
    stack: Stack,
) -> tuple[str, ...]:
    """What the request did not say."""
    said: list[str] = []
    by_key = any(pair.startswith("job.framework=") for pair in request.overrides)
    named = request.framework is not None or by_key
    if not named and config.framework is not Framework.MEGATRON_LM:
        said.append(f"framework {config.framework}")
    if preset is not None and not stack.runs_presets:
        said.append(f"batch of preset {preset.name}")
    elif preset is not None:
        said.append(f"preset {preset.name}")
        if borrowed:
            said.append(_lent(preset, layout))
        if layout is not None and not preset.splits_as_published:
            said.append("layers split as evenly as can be, which the preset does not say")
        if preset.not_modelled:
            said.append(f"without the preset's {', '.join(preset.not_modelled)}")
    else:
        for name, words in (
            ("seq_length", "sequence length"),
            ("micro_batch_size", "micro batch"),
            ("global_batch_size", "global batch"),
        ):
            chosen_later = name == "micro_batch_size" and (layout is None or left_open)
            if getattr(request, name) is None and not chosen_later:
                said.append(f"{words} {getattr(config, name)}")
        by_name = any(pair.startswith("job.optimizer=") for pair in request.overrides)
        if config.optimizer.is_muon and not by_name:
            said.append(f"{config.optimizer} as in the nearest recipe")
    if config.cuda_graph_impl is not CudaGraphImpl.NONE:
        said.append("memory and time as without CUDA graphs")
    if config.main_grads_dtype is not DType.FP32:
        said.append("bf16 main gradients")
    if config.optimizer_cpu_offload:
        said.append("Adam on the host at 50 GB/s a GPU")
    if config.expandable_segments:
        said.append("expandable segments")
    if model.num_moe_experts is not None:
        busiest = f"{config.moe_load_imbalance:g} x the mean"
        said.append(f"busiest expert rank {busiest}")
        said.append("times of experts not checked against measured runs")
    linear = sorted({str(kind.mixer) for kind in model.layer_kinds if kind.mixer in LINEAR_MIXERS})
    if linear:
        said.append(f"{' and '.join(linear)} layers read in their kernels' sources, not measured")
    if model.cross_entropy_fusion is not CrossEntropyFusion.NONE:
        said.append(f"fused cross entropy ({model.cross_entropy_fusion})")
    return tuple(said)
