"""A request becomes a job: given -> recipe -> completed -> assumed -> checked, each value with its
origin."""

from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from advisor.base.errors import UserError
from advisor.base.units import parse_gpus
from advisor.frameworks.protocols import FrameworkAdapter
from advisor.frameworks.registry import adapter_of, default_framework
from advisor.hardware.catalogue import load_gpu
from advisor.hardware.gpu import Gpu, Vendor, check_budget
from advisor.job.job import Job, JobConfig, check_precision
from advisor.job.layout import ParallelLayout
from advisor.models.options import AttentionBackend, CrossEntropyFusion, PositionEmbedding
from advisor.models.presets import load_model
from advisor.models.spec import ModelSpec
from advisor.plan.recompute_plan import Setting
from advisor.request.assumptions import Facts, said_assumptions
from advisor.request.experiments import Experiment, Wanted
from advisor.request.given import Given, read_given
from advisor.request.layout_fields import (
    completed,
    divides_gpus,
    layout_origins,
    reshaped,
    without_degrees,
)
from advisor.request.optimizer_change import lent_optimizer, whole_tensors
from advisor.request.origin import (
    GIVEN,
    SEARCHED,
    Origin,
    OriginKind,
    Sourced,
    assumed,
    changed_fields,
    recipe,
    stated_fields,
)
from advisor.request.recipe_choice import DEFAULT_SEQ_LENGTH, RecipeChoice, choose_recipe
from advisor.request.request import Request

_DEFAULT_BATCH: Final = 128  # sequences, or four a GPU on larger jobs: a multiple of the GPUs
_BATCH: Final = ("seq_length", "micro_batch_size", "global_batch_size", "precision")
_FRAMEWORKS_OWN: Final = ("framework", "framework_version")


class Resolution(Struct, frozen=True, kw_only=True):
    """A request with everything looked up; `layout` None means: choose one.

    layout_fields are those that flags, KEY=VALUE or nothing gave: a search keeps them.
    open_degrees: those that neither they nor a preset say, and that `layout` leaves at 1.
    shipped: the preset's own setting. borrowed: the preset is for another number of GPUs, so
    that a search of all layouts stands behind it. recipe: what the job builds on, and
    recipe_framework whose that is, where it is known; differs: in what it is for another job.
    assumptions: in words; of_search: those of an answer whose layout a search chooses.
    wanted: what recipes of the job are looked for by; None where none may say anything.
    origins: of every field, ``GROUP.FIELD``.
    """

    model: ModelSpec
    gpu: Gpu
    num_gpus: int
    config: JobConfig
    layout: ParallelLayout | None
    layout_fields: dict[str, Any]
    assumptions: tuple[str, ...]
    of_search: tuple[str, ...]
    micro_batch_is_free: bool
    open_degrees: tuple[str, ...] = ()
    shipped: Setting | None = None
    borrowed: bool = False
    recipe: str = ""
    recipe_framework: str | None = None
    differs: tuple[str, ...] = ()
    wanted: Wanted | None = None
    origins: Mapping[str, Origin] = field(default_factory=dict)

    def job(self, layout: ParallelLayout, micro_batch_size: int | None = None) -> Job:
        """The job with `layout`, and another micro batch where given."""
        config = self.config
        if micro_batch_size is not None:
            config = replace(config, micro_batch_size=micro_batch_size)
        return Job(
            model=self.model, layout=layout, config=config, gpu=self.gpu, num_gpus=self.num_gpus
        )

    def origins_of(self, job: Job) -> dict[str, Origin]:
        """Origins of a job that a search has found: what it set beside what was resolved."""
        origins = dict(self.origins)
        before = self.layout or ParallelLayout()
        names = [f"layout.{name}" for name in changed_fields(before, job.layout)]
        names += [f"model.{name}" for name in changed_fields(self.model, job.model)]
        names += [f"layout.{name}" for name in self.open_degrees]
        names += [f"job.{name}" for name in changed_fields(self.config, job.config)]
        if self.micro_batch_is_free and self.layout is None:
            names.append("job.micro_batch_size")
        return origins | dict.fromkeys(names, SEARCHED)


class _Subject(Struct, frozen=True, kw_only=True):
    """What is looked up first: the model, the GPUs and the framework."""

    model: ModelSpec
    gpu: Gpu
    num_gpus: int
    gpu_type: str
    framework: str

    @property
    def adapter(self) -> FrameworkAdapter:
        return adapter_of(self.framework)


def resolve(request: Request) -> Resolution:
    """Look up model, GPU and recipe, and lay the given values over them. UserError where the
    request is wrong."""
    return resolve_given(read_given(request))


def resolve_given(given: Given) -> Resolution:
    """As `resolve`, of values that have been read."""
    subject = _looked_up(given)
    choice = choose_recipe(given, _wanted(given, subject), subject.model, subject.framework)
    subject = _under_recipe(subject, given, choice)
    model = _model(subject, given, choice)
    config = _job_config(subject, given, choice, model.value)
    repeats = config.value.deterministic_mode
    if repeats and "cross_entropy_fusion" not in given.model_fields:
        unfused = replace(model.value, cross_entropy_fusion=CrossEntropyFusion.NONE)
        model = model.turned_into(unfused, _REPEATS)
    _check_asked(model.value, config.value, subject.gpu)
    config = _completed_config(config, subject, given, choice, model.value)
    model, config = _as_framework_runs(model, config, subject, given)
    lent = choice.lent.layout if choice.lent else {}
    alone = {"tp_comm_overlap": False} if repeats else {}
    fields = {**lent, **whole_tensors(config.value.optimizer), **alone, **given.layout_fields}
    free = given.layout_is_free
    layout = _layout(fields, subject, choice, model.value, config.value, free=free)
    return _resolution(given, subject, choice, model, config, layout, fields)


_REPEATS: Final = assumed("off under deterministic_mode")


def usual_recipe(given: Given) -> Experiment | None:
    """The recipe that a job builds on where nothing is said of its precision: one for 16 bits."""
    unsaid = {name: value for name, value in given.job_fields.items() if name != "precision"}
    given = replace(given, job_fields=unsaid)
    subject = _looked_up(given)
    wanted = _wanted(given, subject)
    return choose_recipe(given, wanted, subject.model, subject.framework).preset


def _looked_up(given: Given) -> _Subject:
    """Model and GPUs by their names; the framework that is named, or that builds the model."""
    num_gpus, gpu_type = parse_gpus(given.gpus)
    gpu = load_gpu(gpu_type, given.config_dir)
    model = load_model(given.model, given.config_dir)
    framework = given.framework or default_framework(model)
    return _Subject(model=model, gpu=gpu, num_gpus=num_gpus, gpu_type=gpu_type, framework=framework)


def _wanted(given: Given, subject: _Subject) -> Wanted:
    """What a recipe is looked for by."""
    return Wanted(
        model=subject.model.name,
        num_gpus=subject.num_gpus,
        gpu_type=subject.gpu_type,
        precision=given.precision,
        framework=given.framework,
        seq_length=given.seq_length,
        config_dir=given.config_dir,
    )


def _under_recipe(subject: _Subject, given: Given, choice: RecipeChoice) -> _Subject:
    """Where no framework is named, a recipe may say which one of a family it is, but for one that
    lacks an option that is given."""
    if given.framework is not None or choice.preset is None:
        return subject
    its = subject.adapter.for_recipe(choice.preset.framework)
    asked = {**given.job_fields, "framework": its}
    try:
        adapter_of(its).check_options(replace(choice.preset.config, **asked))
    except UserError:
        return subject
    return replace(subject, framework=its)


def _model(subject: _Subject, given: Given, choice: RecipeChoice) -> Sourced[ModelSpec]:
    """The model's shape, with the recipe's options of it, and what is given."""
    model, its = Sourced(subject.model, {}), choice.as_it_stands
    if choice.lent is not None:
        model = model.with_fields(choice.lent.origin, choice.lent.model)
    if its is not None:
        model = model.with_fields(recipe(its.name), dict(its.model_options))
    return model.with_fields(GIVEN, given.model_fields)


def _job_config(
    subject: _Subject, given: Given, choice: RecipeChoice, model: ModelSpec
) -> Sourced[JobConfig]:
    """Batch, precision and options: what is given over the recipe's, all at once, or over what is
    assumed where there is none."""
    base = _base_config(subject.num_gpus, choice, model)
    chosen: dict[str, Any] = {"framework": subject.framework}
    if base.value.framework != subject.framework:
        chosen["framework_version"] = ""  # of the other framework
    origins = (
        {} if given.framework else {"framework": assumed("the framework that builds the model")}
    )
    if choice.lent is not None:
        chosen |= choice.lent.job
        origins |= dict.fromkeys(choice.lent.job, choice.lent.origin)
    over = Sourced(replace(base.value, **chosen | dict(given.job_fields)), base.origins)
    return Sourced(
        over.value, {**over.origins, **origins, **dict.fromkeys(given.job_fields, GIVEN)}
    )


def _base_config(num_gpus: int, choice: RecipeChoice, model: ModelSpec) -> Sourced[JobConfig]:
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
    if choice.whole:
        stated = (*_BATCH, *stated_fields(preset.config, _FRAMEWORKS_OWN))
        return Sourced(preset.config, dict.fromkeys(stated, its))
    batch = max(1, preset.config.global_batch_size // num_gpus) * num_gpus
    config = JobConfig(
        seq_length=preset.config.seq_length,
        micro_batch_size=preset.config.micro_batch_size,
        global_batch_size=batch,
        precision=preset.config.precision,
    )
    return Sourced(config, dict.fromkeys(_BATCH, its))


def _completed_config(
    config: Sourced[JobConfig],
    subject: _Subject,
    given: Given,
    choice: RecipeChoice,
    model: ModelSpec,
) -> Sourced[JobConfig]:
    """With the framework's release, and the optimizer that the model's recipes have."""
    release = subject.adapter.version(config.value.framework_version, model)
    if release != config.value.framework_version:
        newest = assumed("the newest release that has the model")
        config = config.with_fields(newest, {"framework_version": release})
    whole = given.layout_fields.get("use_distributed_optimizer") is not True
    unsaid = "optimizer" not in given.job_fields and choice.preset is None
    if unsaid and whole:
        lent = lent_optimizer(config.value, choice.lends_optimizer, subject.adapter)
        config = config.turned_into(lent, assumed("as in the nearest recipe"))
    return config


def _as_framework_runs(
    model: Sourced[ModelSpec], config: Sourced[JobConfig], subject: _Subject, given: Given
) -> tuple[Sourced[ModelSpec], Sourced[JobConfig]]:
    """Model and options as the framework makes them; UserError where it cannot run them."""
    own = frozenset(given.model_fields) | {f"job.{name}" for name in given.job_fields}
    run_model, run_config = subject.adapter.configure(model.value, config.value, own)
    run_model = _with_attention_of(subject.gpu, run_model, asked="attention_backend" in own)
    origin = _default(run_config)
    return model.turned_into(run_model, origin), config.turned_into(run_config, origin)


def _with_attention_of(gpu: Gpu, model: ModelSpec, *, asked: bool) -> ModelSpec:
    """Without cuDNN's attention where there is no cuDNN: flash attention, to which torch turns then
    (SDPBackend.CUDNN_ATTENTION is none of ROCm's)."""
    if model.attention_backend is not AttentionBackend.FUSED or gpu.vendor is Vendor.NVIDIA:
        return model
    if asked:
        raise UserError(
            "model.attention_backend",
            model.attention_backend,
            f"is cuDNN's attention, which does not run on {gpu.name}",
            "model.attention_backend=flash",
        )
    return replace(model, attention_backend=AttentionBackend.FLASH)


def _default(config: JobConfig) -> Origin:
    release = f"{config.framework} {config.framework_version}".strip()
    return Origin(OriginKind.DEFAULT, release)


def _layout(
    given: dict[str, Any],
    subject: _Subject,
    choice: RecipeChoice,
    model: ModelSpec,
    config: JobConfig,
    *,
    free: bool,
) -> ParallelLayout | None:
    """The framework's own idea of the layout, else the recipe's under what is given, completed;
    None where nothing says anything about it. free: the recipe's degrees give way where they do not
    go with those that are given."""
    own = subject.adapter.layout(given, subject.num_gpus)
    if own is not None:
        return own
    base = choice.preset.layout if choice.preset is not None else None
    if base is not None and free and not divides_gpus(given, base, subject.num_gpus):
        base = without_degrees(base)
    layout = reshaped(given, base, subject.num_gpus)
    if layout is None:
        return None
    return completed(layout, given, model, as_text=subject.adapter.splits(config).by_text)


_NO_FRAMEWORKS: Final = {
    "memory_budget_bytes": assumed("all of the GPU's memory"),
    "moe_load_imbalance": assumed("balanced experts; fit probabilities allow for imbalance"),
    "transformer_engine_version": assumed("the newest known release"),
    "expandable_segments": assumed("off, torch's default"),
    "mean_packed_length": assumed("sequences are not packed"),
}
"""Fields of a job that no framework has a default for."""


def _resolution(
    given: Given,
    subject: _Subject,
    choice: RecipeChoice,
    model: Sourced[ModelSpec],
    config: Sourced[JobConfig],
    layout: ParallelLayout | None,
    layout_fields: dict[str, Any],
) -> Resolution:
    """All of it together, with what was assumed, in words and as origins."""
    facts = _facts(given, choice, subject, model.value, config.value, layout)
    its_own = choice.as_it_stands
    shipped = its_own.shipped if its_own is not None else ""
    origins = {
        **model.named("model", Origin(OriginKind.DEFAULT, model.value.name)),
        **layout_origins(layout, given.layout_fields, its_own, choice.lent, _default(config.value)),
        **config.named("job", _default(config.value)),
        **{f"job.{k}": why for k, why in _NO_FRAMEWORKS.items() if k not in config.origins},
        **dict.fromkeys(given.unsaid, _default(config.value)),
    }
    return Resolution(
        model=model.value,
        gpu=subject.gpu,
        num_gpus=subject.num_gpus,
        config=config.value,
        layout=layout,
        layout_fields=layout_fields,
        assumptions=said_assumptions(facts),
        of_search=said_assumptions(replace(facts, layout=None)),
        micro_batch_is_free="micro_batch_size" not in given.job_fields,
        open_degrees=choice.left_open if choice.preset is None else (),
        shipped=subject.adapter.parse(shipped) if shipped else None,
        borrowed=choice.borrowed and its_own is not None,
        recipe=choice.preset.name if choice.preset is not None else "",
        recipe_framework=choice.preset.framework if choice.preset is not None else None,
        differs=choice.differs,
        wanted=_wanted(given, subject) if given.takes_recipe else None,
        origins=origins,
    )


def _facts(
    given: Given,
    choice: RecipeChoice,
    subject: _Subject,
    model: ModelSpec,
    config: JobConfig,
    layout: ParallelLayout | None,
) -> Facts:
    return Facts(
        given=given,
        choice=choice,
        model=model,
        config=config,
        layout=layout,
        gpu=subject.gpu,
        num_gpus=subject.num_gpus,
        first_framework=default_framework(None),
    )


def _check_asked(model: ModelSpec, config: JobConfig, gpu: Gpu) -> None:
    """UserError on what positions, tensor cores or memory do not allow."""
    _check_positions(model, config)
    check_precision(config.precision, gpu)
    check_budget(config.memory_budget_bytes, gpu, "--memory-budget")


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
