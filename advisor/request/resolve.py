"""A request becomes a job in one pass: given -> recipe -> completed -> assumed -> checked. Each
step is one call, and each value keeps its origin."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from advisor.base.units import parse_gpus
from advisor.frameworks.registry import default_framework, parts_of
from advisor.hardware.catalogue import load_gpu
from advisor.hardware.gpu import Gpu
from advisor.job.job import Job, JobConfig
from advisor.job.layout import ParallelLayout
from advisor.models.presets import load_model
from advisor.models.spec import ModelSpec
from advisor.plan.recompute_plan import Setting
from advisor.request.assumptions import Facts, assumed_lines
from advisor.request.given import Given, read_given
from advisor.request.lent_and_legal import legal_with_given
from advisor.request.origin import GIVEN, SEARCHED, Origin, changed_fields, changed_values
from advisor.request.recipe_choice import RecipeChoice, Wanted, choose_recipe
from advisor.request.recipes import Experiment
from advisor.request.request import Request


class Resolution(Struct, frozen=True, kw_only=True):
    """A request with everything looked up; `layout` None means: choose one.

    layout_fields are those that flags, KEY=VALUE or nothing gave: a search keeps them.
    open_degrees: those that neither they nor a preset say, and that `layout` leaves at 1.
    shipped: the preset's own setting. borrowed: the preset is for another number of GPUs, so
    that a search of all layouts comes after it. recipe: what the job builds on, and
    recipe_framework whose that is, where it is known; differs: in what it is for another job.
    assumptions: in words; of_search: those of an answer whose layout a search chooses.
    without_graphs: see RecipeChoice.
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
    without_graphs: Mapping[str, Any] = field(default_factory=dict)
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
        """Origins of a job that a search has found: what it set next to what was resolved."""
        origins = dict(self.origins)
        before = self.layout or ParallelLayout()
        names = [f"layout.{name}" for name in changed_fields(before, job.layout)]
        names += [f"model.{name}" for name in changed_fields(self.model, job.model)]
        names += [f"layout.{name}" for name in self.open_degrees]
        names += [path for path, _ in changed_values("job", job.config, self.config)]
        if self.micro_batch_is_free and self.layout is None:
            names.append("job.micro_batch_size")
        return origins | dict.fromkeys(names, SEARCHED)


def resolve(request: Request) -> Resolution:
    """Look up model, GPU and recipe, and lay the given values over them. UserError where the
    request is wrong; that the job is legal, `Resolution.job` checks."""
    return resolve_given(read_given(request))


def resolve_given(given: Given) -> Resolution:
    """As `resolve`, of values that have been read."""
    wanted, model, gpu, choice = _looked_up(given)
    choice, made = legal_with_given(given, choice, model, gpu, wanted.num_gpus)
    its = choice.as_it_stands
    facts = Facts(
        given=given,
        choice=choice,
        model=made.model,
        config=made.config,
        layout=made.layout,
        gpu=gpu,
        num_gpus=wanted.num_gpus,
        first_framework=default_framework(None),
        sees=model.vision is not None,
    )
    shipped = its.shipped if its is not None else ""
    preset = choice.preset
    return Resolution(
        model=made.model,
        gpu=gpu,
        num_gpus=wanted.num_gpus,
        config=made.config,
        layout=made.layout,
        layout_fields=made.layout_fields,
        assumptions=assumed_lines(facts),
        of_search=assumed_lines(replace(facts, layout=None)),
        micro_batch_is_free="micro_batch_size" not in given.job_fields
        and made.config.samples.token_budget is None,
        open_degrees=choice.left_open if preset is None else (),
        shipped=parts_of(choice.framework).settings.parse(shipped) if shipped else None,
        borrowed=choice.borrowed and its is not None,
        recipe=preset.name if preset is not None else "",
        recipe_framework=preset.framework if preset is not None else None,
        differs=choice.differs,
        without_graphs=choice.without_graphs if its is not None else {},
        wanted=wanted if given.takes_recipe else None,
        origins=made.origins | dict.fromkeys(given.keys, GIVEN),
    )


def usual_recipe(given: Given) -> Experiment | None:
    """The recipe that a job builds on where nothing is said of its precision: one for 16 bits."""
    others = {name: value for name, value in given.job_fields.items() if name != "precision"}
    return _looked_up(replace(given, job_fields=others))[-1].preset


def _looked_up(given: Given) -> tuple[Wanted, ModelSpec, Gpu, RecipeChoice]:
    """What is named: model and GPUs; and the recipe for the framework that is named, or that builds
    the model."""
    num_gpus, gpu_type = parse_gpus(given.gpus)
    gpu = load_gpu(gpu_type, given.config_dir)
    model = load_model(given.model, given.config_dir)
    named = given.job_fields.get("framework")
    wanted = Wanted(
        model=model.name,
        num_gpus=num_gpus,
        gpu_type=gpu_type,
        precision=given.job_fields.get("precision"),
        framework=named,
        seq_length=given.job_fields.get("seq_length"),
        config_dir=given.config_dir,
    )
    return (
        wanted,
        model,
        gpu,
        choose_recipe(given, wanted, model, named or default_framework(model)),
    )
