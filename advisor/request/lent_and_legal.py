"""What a recipe lends, without what is refused next to what is given: no value that nobody gave
makes a request illegal."""

from typing import Any

from msgspec.structs import asdict, replace

from advisor.base.errors import UserError
from advisor.base.record import defaults
from advisor.frameworks.registry import parts_of
from advisor.hardware.gpu import Gpu
from advisor.job.job import Job, JobConfig
from advisor.job.layout import ParallelLayout
from advisor.models.spec import ModelSpec
from advisor.request.completed import BATCH, FRAMEWORKS_OWN, Completed, completed
from advisor.request.given import Given
from advisor.request.layout_fields import SEARCHED
from advisor.request.origin import GROUPS, stated_fields
from advisor.request.recipe_choice import RecipeChoice


def legal_with_given(
    given: Given, choice: RecipeChoice, shape: ModelSpec, gpu: Gpu, num_gpus: int
) -> tuple[RecipeChoice, Completed]:
    """`choice` without the fewest lent values that make the job illegal, and the job. Such a value
    is read by the rule that refuses: without it another one refuses the job, or none. `choice` as
    it is where what is given is illegal by itself: UserError says so, here or in `Resolution.job`.
    """
    usual = _lent(given, choice, shape)

    def without(names: frozenset[str]) -> RecipeChoice:
        return replace(choice, left_out={path: usual[path] for path in sorted(names)})

    def refusal(names: frozenset[str]) -> str:
        return _refusal(given, without(names), shape, gpu, num_gpus)

    waiting = {frozenset[str](): refusal(frozenset())} if usual else {}
    while waiting and all(waiting.values()):
        fewer = ((names | {name}, was) for names, was in waiting.items() for name in usual)
        waiting = {names: now for names, was in fewer if (now := refusal(names)) != was}
    legal = without(next((names for names, refused in waiting.items() if not refused), frozenset()))
    return legal, completed(given, legal, shape, gpu, num_gpus)


def _lent(given: Given, choice: RecipeChoice, shape: ModelSpec) -> dict[str, Any]:
    """``GROUP.FIELD`` -> value without the recipe, of each that is lent; what layouts decide comes
    last, and of a recipe that is given itself it stays."""
    its, lent = choice.as_it_stands, choice.lent
    names = {(part, name) for part in GROUPS for name in (getattr(lent, part) if lent else ())}
    names |= {("job", "optimizer")} if choice.optimizer else set()
    if its is not None:
        kept = ("data_parallel_size",) if given.recipe is None else SEARCHED
        names |= {("layout", name) for name in stated_fields(its.layout, kept)}
        own = (*BATCH, *FRAMEWORKS_OWN)
        names |= {("job", name) for name in stated_fields(its.config, own)}
        names |= {("model", name) for name, _ in its.model_options}
    usual = {"layout": defaults(ParallelLayout), "job": defaults(JobConfig), "model": asdict(shape)}
    return {
        f"{group}.{name}": usual[group][name]
        for group, name in sorted(names, key=lambda one: (one[1] in SEARCHED, one))
        if name not in given.by_group[group]
    }


def _refusal(given: Given, choice: RecipeChoice, shape: ModelSpec, gpu: Gpu, num_gpus: int) -> str:
    """Why no setting that is asked for, or none at all, is legal; empty where one is. Of a layout
    that is yet to be chosen, one with tensor parallelism stands for all."""
    try:
        made = completed(given, choice, shape, gpu, num_gpus)
        if made.layout is None:
            fields = {"tensor_model_parallel_size": 2, **given.layout_fields}
            given = replace(given, layout_fields=fields)
            made = completed(given, choice, shape, gpu, num_gpus)
        layout = made.layout or ParallelLayout()
        job = Job(model=made.model, layout=layout, config=made.config, gpu=gpu, num_gpus=num_gpus)
        settings = parts_of(job.config.framework).settings
        asked = tuple(map(settings.parse, given.recompute))
    except UserError as error:
        return str(error)
    found = [settings.check(one, job) for one in asked] or [settings.check_job(job)]
    if not all(found) or (not asked and settings.candidates(job)):
        return ""
    return f"{found[0][0].rule}: {found[0][0].reason}"
