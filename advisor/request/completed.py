"""The recipe's values under what is given, completed: model, options and layout of a job as its
framework runs them, each value with its origin."""

from collections.abc import Mapping
from typing import Any, Final, Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from advisor.base.dtypes import Precision
from advisor.base.errors import UserError
from advisor.base.record import defaults
from advisor.base.rule import rows_of
from advisor.frameworks.framework_parts import JobSupport
from advisor.frameworks.registry import default_framework, parts_of
from advisor.hardware.gpu import Gpu, Vendor, check_budget
from advisor.job.job import JobConfig, check_precision, predates_ampere, sixteen_bits
from advisor.job.layout import ParallelLayout
from advisor.job.reinforcement import Algorithm, Reference
from advisor.job.samples import SampleMasks
from advisor.layers.family import family_of
from advisor.models.options import AttentionBackend, PositionEmbedding
from advisor.models.spec import ModelSpec
from advisor.request import origin as origin_fields
from advisor.request.given import Given
from advisor.request.layout_fields import lowered, made_legal, reshaped, whole_tensors
from advisor.request.origin import GIVEN, Origin, OriginKind, assumed, recipe
from advisor.request.recipe_choice import DEFAULT_SEQ_LENGTH, LentOptions, RecipeChoice
from advisor.request.recipes import Experiment

T = TypeVar("T", bound=Struct)

_DEFAULT_BATCH: Final = 128  # sequences, or four a GPU on larger jobs: a multiple of the GPUs
_BATCH: Final = ("seq_length", "micro_batch_size", "global_batch_size", "precision")
FRAMEWORKS_OWN: Final = ("framework", "framework_version")


class Sourced(Struct, Generic[T], frozen=True):
    """A value whose fields know their origins; a field without one has its default."""

    value: T
    origins: Mapping[str, Origin]

    def with_fields(self, origin: Origin, values: Mapping[str, Any]) -> "Sourced[T]":
        """The value with other fields, all set at once."""
        if not values:
            return self
        changed = dict.fromkeys(values, origin)
        return Sourced(replace(self.value, **values), {**self.origins, **changed})

    def turned_into(self, value: T, origin: Origin) -> "Sourced[T]":
        """`value`, whose differing fields come from `origin`."""
        changed = dict.fromkeys(origin_fields.changed_fields(self.value, value), origin)
        return Sourced(value, {**self.origins, **changed})

    def named(self, group: str, default: Origin) -> dict[str, Origin]:
        """``GROUP.FIELD`` -> origin, of every field."""
        names = self.value.__struct_fields__
        return {f"{group}.{name}": self.origins.get(name, default) for name in names}


class Completed(Struct, frozen=True, kw_only=True):
    """A job except its GPUs; `layout` None means: choose one. layout_fields: what flags, KEY=VALUE
    and recipes say of it. origins: of every field, ``GROUP.FIELD``."""

    model: ModelSpec
    config: JobConfig
    layout: ParallelLayout | None
    layout_fields: dict[str, Any]
    origins: dict[str, Origin]


def completed(
    given: Given, choice: RecipeChoice, shape: ModelSpec, gpu: Gpu, num_gpus: int
) -> Completed:
    """What is given, over the recipe, over what is usual; `shape` is the model as its preset has
    it. UserError where that makes no job."""
    jobs, its = parts_of(choice.framework).jobs, choice.as_it_stands
    model = _model(shape, given, choice)
    config = _job_config(num_gpus, given, choice, model.value)
    config = _with_phases(_in_sixteen_bits(config, gpu, given), given)
    config = _with_samples(config, given)
    _check_asked(model.value, config.value, gpu, jobs)
    config = _completed_config(config, jobs, given, choice, model.value)
    model, config = _as_framework_runs(model, config, jobs, gpu, given)
    _check_masks(model.value, config.value)
    lent, left_out = choice.lent.layout if choice.lent else {}, _left_out(choice, "layout")
    lent = {name: value for name, value in lent.items() if name not in left_out}
    fields = {**lent, **whole_tensors(config.value.optimizer), **given.layout_fields}
    layout = jobs.layout(fields, num_gpus)
    if layout is None:
        by_text = jobs.splits(config.value).by_text
        yields = given.recipe is None
        layout = _layout(fields, choice, model.value, num_gpus, by_text=by_text, yields=yields)
    default, no_default = _default(config.value), rows_of(_WHY)["no_frameworks"]
    origins = {
        **model.named("model", Origin(OriginKind.DEFAULT, model.value.name)),
        **_layout_origins(layout, given.layout_fields, its, choice.lent, default),
        **config.named("job", default),
        **{f"job.{k}": assumed(why) for k, why in no_default.items() if k not in config.origins},
        **dict.fromkeys(given.omitted, default),
        **dict.fromkeys(choice.left_out, _REFUSED),
    }
    return Completed(
        model=model.value, config=config.value, layout=layout, layout_fields=fields, origins=origins
    )


_REFUSED: Final = assumed("the recipe's value is refused with the given values")


def _left_out(choice: RecipeChoice, group: str) -> dict[str, Any]:
    """What is left out of one part of the job, by the names of its fields."""
    paths = ((path.partition("."), value) for path, value in choice.left_out.items())
    return {name: value for (part, _, name), value in paths if part == group}


def _layout_origins(
    layout: ParallelLayout | None,
    given: Mapping[str, Any],
    preset: Experiment | None,
    lent: LentOptions | None,
    default: Origin,
) -> dict[str, Origin]:
    """``layout.FIELD`` -> where it comes from, of a layout built of `given` fields over a preset's
    or over what is lent; what none of them says follows from the rest. Empty where the layout is
    yet to be chosen."""
    if layout is None:
        return {}
    found, usual, follows = {}, defaults(ParallelLayout), rows_of(_WHY)["follows"]
    for name in layout.__struct_fields__:
        value = getattr(layout, name)
        if name in given:
            origin = GIVEN
        elif preset is not None and value == getattr(preset.layout, name) != usual.get(name):
            origin = recipe(preset.name)
        elif lent is not None and name in lent.layout and value == lent.layout[name]:
            origin = lent.origin
        elif value == usual.get(name):
            origin = default
        else:
            origin = assumed(follows.get(name, "required by the other values"))
        found[f"layout.{name}"] = origin
    return found


_LEAST_CERTAIN, _MOST_CERTAIN = 0.5, 0.999
_WHY: Final = "assumed.json"
"""Why a value of the layout that nobody said follows from others, and why one of the job is assumed
that no framework has a default for."""


def _model(shape: ModelSpec, given: Given, choice: RecipeChoice) -> Sourced[ModelSpec]:
    """The model's shape, with the recipe's options of it, and what is given."""
    model, its = Sourced(shape, {}), choice.as_it_stands
    if choice.lent is not None:
        model = model.with_fields(choice.lent.origin, choice.lent.model)
    if its is not None:
        model = model.with_fields(recipe(its.name), dict(its.model_options))
    model = model.with_fields(_REFUSED, _left_out(choice, "model"))
    return model.with_fields(GIVEN, given.model_fields)


def _job_config(
    num_gpus: int, given: Given, choice: RecipeChoice, model: ModelSpec
) -> Sourced[JobConfig]:
    """Batch, precision and options: what is given over the recipe's, all at once, or over what is
    assumed where there is none."""
    base = base_config(num_gpus, choice, model)
    chosen: dict[str, Any] = {"framework": choice.framework}
    if base.value.framework != choice.framework:
        chosen["framework_version"] = ""  # of the other framework
    origins = {"framework": assumed("the framework that builds the model")}
    if choice.lent is not None:
        chosen |= choice.lent.job
        origins |= dict.fromkeys(choice.lent.job, choice.lent.origin)
    chosen |= _left_out(choice, "job")
    value = replace(base.value, **chosen | dict(given.job_fields))
    return Sourced(value, {**base.origins, **origins, **dict.fromkeys(given.job_fields, GIVEN)})


def _in_sixteen_bits(config: Sourced[JobConfig], gpu: Gpu, given: Given) -> Sourced[JobConfig]:
    """In fp16 where nobody asked for bf16 and the GPU has none."""
    usual, asked = sixteen_bits(gpu), "precision" in given.job_fields
    if asked or config.value.precision is not Precision.BF16 or usual is Precision.BF16:
        return config
    return config.with_fields(assumed(f"{gpu.name} has no bf16"), {"precision": usual})


def _with_phases(config: Sourced[JobConfig], given: Given) -> Sourced[JobConfig]:
    """Lengths, micro batch and reference as an algorithm has them, where nothing says others."""
    rl, found = config.value.rl, dict[str, Any]()
    if rl.longest and "seq_length" not in given.job_fields:
        found["seq_length"] = max(rl.longest, 0 if rl.prompt_length else config.value.seq_length)
    if rl.has_phases and "micro_batch_size" not in given.job_fields:
        found["micro_batch_size"] = 1
    if rl.algorithm is Algorithm.DPO and "rl.reference" not in (*given.keys, *given.omitted):
        its = Reference.ADAPTER_OFF if config.value.tuning.has_adapter else Reference.GPU
        found["rl"] = replace(rl, reference=its)
    return config.with_fields(assumed("as the algorithm needs it"), found)


def _with_samples(config: Sourced[JobConfig], given: Given) -> Sourced[JobConfig]:
    """One row a microbatch where tokens are budgeted, and samples that fit into it where nothing
    says how long they are."""
    budget, length = config.value.samples.token_budget, config.value.seq_length
    if budget is None:
        return config
    config = config.with_fields(assumed("a pack is one row"), {"micro_batch_size": 1})
    if "seq_length" in given.job_fields or config.value.rl.longest or budget >= length:
        return config
    return config.with_fields(assumed("no longer than the token budget"), {"seq_length": budget})


def _check_masks(model: ModelSpec, config: JobConfig) -> None:
    """UserError where rows of several samples have a mask that is not modelled."""
    masks = config.samples.masks
    if masks is SampleMasks.DENSE and not family_of(model).masks_rows:
        reason = f"is not modelled with layers of {config.framework}"
        raise UserError("samples.masks", masks, reason, "leave it out")


def base_config(num_gpus: int, choice: RecipeChoice, model: ModelSpec) -> Sourced[JobConfig]:
    """The recipe's options, or those of its batch alone where another framework ran it; else
    what is usual."""
    preset = choice.preset
    if preset is None:
        config = JobConfig(
            seq_length=min(DEFAULT_SEQ_LENGTH, model.max_position_embeddings),
            micro_batch_size=1,
            global_batch_size=max(4, -(-_DEFAULT_BATCH // num_gpus)) * num_gpus,
        )
        return Sourced(config, dict.fromkeys(_BATCH[:3], assumed("no recipe states it")))
    its = recipe(preset.name)
    if choice.as_it_stands is not None:
        stated = (*_BATCH, *origin_fields.stated_fields(preset.config, FRAMEWORKS_OWN))
        return Sourced(preset.config, dict.fromkeys(stated, its))
    batch = {name: getattr(preset.config, name) for name in _BATCH}
    batch["global_batch_size"] = max(1, batch["global_batch_size"] // num_gpus) * num_gpus
    return Sourced(JobConfig(**batch), dict.fromkeys(_BATCH, its))


def _completed_config(
    config: Sourced[JobConfig],
    jobs: JobSupport,
    given: Given,
    choice: RecipeChoice,
    model: ModelSpec,
) -> Sourced[JobConfig]:
    """With the framework's release, and the optimizer that the model's recipes have."""
    release = jobs.version(config.value.framework_version, model)
    if release != config.value.framework_version:
        newest = assumed("the newest release that has the model")
        config = config.with_fields(newest, {"framework_version": release})
    whole = given.layout_fields.get("use_distributed_optimizer") is not True
    settled = {**given.job_fields, **_left_out(choice, "job")}
    if choice.optimizer is None or "optimizer" in settled or not whole:
        return config
    lent = replace(config.value, optimizer=choice.optimizer)
    return config.turned_into(lent, assumed("as in the nearest recipe"))


def _as_framework_runs(
    model: Sourced[ModelSpec], config: Sourced[JobConfig], jobs: JobSupport, gpu: Gpu, given: Given
) -> tuple[Sourced[ModelSpec], Sourced[JobConfig]]:
    """Model and options as the framework makes them; UserError where it cannot run them."""
    own = frozenset(given.model_fields) | {f"job.{name}" for name in given.job_fields}
    seen = _as_it_sees(model.value, config.value)
    run_model, run_config = jobs.configure(model.value, seen, own)
    if run_model.vision and (not jobs.sees or family_of(run_model).vision is None):
        run_model = replace(run_model, vision=None)
        run_config = replace(run_config, samples=_as_it_sees(run_model, run_config).samples)
    run_model = _with_attention_of(gpu, run_model, asked="attention_backend" in own)
    origin = _default(run_config)
    return model.turned_into(run_model, origin), config.turned_into(run_config, origin)


def _as_it_sees(model: ModelSpec, config: JobConfig) -> JobConfig:
    """Tokens of images by their pixels; without a tower nothing that only a tower has."""
    samples, tuning, tower = config.samples, config.tuning, model.vision
    if tower is None:
        samples = replace(samples, image_tokens=None, max_pixels=None)
        tuning = replace(tuning, freeze_vision_model=False, freeze_vision_projection=False)
    elif samples.max_pixels and samples.image_tokens is None:
        tokens = samples.images * tower.tokens_of(samples.max_pixels)
        samples = replace(samples, image_tokens=min(tokens, config.seq_length))
    return replace(config, samples=samples, tuning=tuning)


def _with_attention_of(gpu: Gpu, model: ModelSpec, *, asked: bool) -> ModelSpec:
    """Attention that the GPU has. Without cuDNN flash attention, to which torch turns then
    (SDPBackend.CUDNN_ATTENTION is none of ROCm's); before Ampere Transformer Engine's unfused."""
    instead, backend = model.attention_backend, model.attention_backend
    if backend is AttentionBackend.FUSED and gpu.vendor is not Vendor.NVIDIA:
        instead = AttentionBackend.FLASH
    elif predates_ampere(gpu) and not model.transformer_impl.is_eager:
        instead = AttentionBackend.UNFUSED
    if asked and backend not in (instead, AttentionBackend.AUTO):
        kernel = "cuDNN's" if backend is AttentionBackend.FUSED else backend
        reason = f"is {kernel} attention, which does not run on {gpu.name}"
        field = "model.attention_backend"
        raise UserError(field, backend, reason, f"{field}={instead}")
    return model if instead is backend else replace(model, attention_backend=instead)


def _default(config: JobConfig) -> Origin:
    return Origin(OriginKind.DEFAULT, f"{config.framework} {config.framework_version}".strip())


def _layout(
    fields: dict[str, Any],
    choice: RecipeChoice,
    model: ModelSpec,
    num_gpus: int,
    *,
    by_text: bool,
    yields: bool,
) -> ParallelLayout | None:
    """The recipe's layout under given `fields`, completed; None where nothing says anything about
    it. by_text: whether the framework's release reads a split of the layers as text. yields: the
    recipe's degrees are lowered where they do not go with those that are given."""
    base = choice.preset.layout if choice.preset is not None else None
    base = base and replace(base, **_left_out(choice, "layout"))
    lower = lowered(fields, base, num_gpus) if base is not None and yields else {}
    layout = reshaped({**lower, **fields}, base, num_gpus)
    return layout and made_legal(layout, fields, model, as_text=by_text)


def _check_asked(model: ModelSpec, config: JobConfig, gpu: Gpu, jobs: JobSupport) -> None:
    """UserError on what positions, tensor cores or memory do not allow."""
    usual = sixteen_bits(gpu)
    if usual not in jobs.precisions:
        reason = f"{gpu.name} has only {usual}, which is not modelled for {jobs.framework}"
        fix = f"use a GPU that has bf16, or --framework {default_framework(model)}"
        raise UserError("job.precision", config.precision, reason, fix)
    learned = model.position_embedding_type is PositionEmbedding.LEARNED
    most = model.max_position_embeddings
    if learned and config.seq_length > most:
        reason = f"must not exceed max_position_embeddings = {most} of learned positions"
        fix = f"nearest: {most}, or raise model.max_position_embeddings"
        raise UserError("job.seq_length", config.seq_length, reason, fix)
    check_precision(config.precision, gpu)
    check_budget(config.memory_budget_bytes, gpu, "--memory-budget")
    if not _LEAST_CERTAIN <= config.certainty <= _MOST_CERTAIN:
        relation = f"must be from {_LEAST_CERTAIN} to {_MOST_CERTAIN}"
        raise UserError("--certainty", config.certainty, relation, "write e.g. 0.95")
