"""What a recipe lends, without what is refused next to what is given: no value that nobody gave
makes a request illegal."""

from typing import Any, Final

from msgspec.structs import asdict, replace

from advisor.base.errors import UserError
from advisor.frameworks.registry import parts_of
from advisor.hardware.gpu import Gpu
from advisor.job.job import Job
from advisor.job.layout import ParallelLayout
from advisor.models.spec import ModelSpec
from advisor.request.completed import FRAMEWORKS_OWN, Completed, base_config, completed
from advisor.request.given import Given
from advisor.request.layout_fields import SEARCHED
from advisor.request.origin import GIVEN, stated_fields
from advisor.request.recipe_choice import LentOptions, RecipeChoice


def legal_with_given(
    given: Given, choice: RecipeChoice, shape: ModelSpec, gpu: Gpu, num_gpus: int
) -> tuple[RecipeChoice, Completed]:
    """`choice` without the fewest lent values that make the job illegal, and the job. Such a value
    is read by the rule that refuses: without it another one refuses the job, or none. `choice` as
    it is where what is given is illegal by itself: UserError says so, here or in `Resolution.job`.
    """
    refused, made = _tried(given, choice, shape, gpu, num_gpus)
    if made is not None and not refused:
        return choice, made
    usual = _lent(given, choice, shape, num_gpus)

    def without(names: frozenset[str]) -> RecipeChoice:
        return replace(choice, left_out={path: usual[path] for path in sorted(names)})

    def refusal(names: frozenset[str]) -> str:
        return _tried(given, without(names), shape, gpu, num_gpus)[0]

    waiting = {frozenset[str](): refused}
    while waiting and all(waiting.values()) and len(next(iter(waiting))) < _MOST:
        fewer = ((names | {name}, was) for names, was in waiting.items() for name in usual)
        waiting = {names: now for names, was in fewer if (now := refusal(names)) != was}
    legal = without(next((names for names, refused in waiting.items() if not refused), frozenset()))
    return legal, completed(given, legal, shape, gpu, num_gpus)


def _lent(given: Given, choice: RecipeChoice, shape: ModelSpec, num_gpus: int) -> dict[str, Any]:
    """``GROUP.FIELD`` -> value without the recipe, of each that may be lent. Layout and batch of a
    recipe come last; they stay where it is given itself, or nothing of layout and model is."""
    config, layout = base_config(num_gpus, RecipeChoice(), shape).value, ParallelLayout()
    usual = {"layout": asdict(layout), "job": asdict(config), "model": asdict(shape)}
    last = SEARCHED | {"micro_batch_size", "global_batch_size"}
    lent = choice.lent or LentOptions(origin=GIVEN)
    found = {"layout": {*lent.layout}, "job": {"optimizer", *lent.job}, "model": {*lent.model}}
    yields = given.recipe is None and (given.layout_fields or given.model_fields)
    fixed = _FIXED if yields else _FIXED | last
    if choice.preset is not None:
        found["layout"] |= stated_fields(choice.preset.layout, fixed).keys()
    if (its := choice.as_it_stands) is not None:
        found["job"] |= stated_fields(its.config, fixed).keys()
        found["model"] |= dict(its.model_options).keys()
    names = [(of, name) for of, own in given.by_group.items() for name in found[of] - own.keys()]
    order = sorted(names, key=lambda one: (one[1] in last, one))
    return {f"{group}.{name}": usual[group][name] for group, name in order}


_MOST: Final = 4
"""Values that are left out together (a judgement: two were enough in 3,740 requests)."""
_FIXED: Final = frozenset(("seq_length", "precision", *FRAMEWORKS_OWN, "data_parallel_size"))


def _tried(
    given: Given, choice: RecipeChoice, shape: ModelSpec, gpu: Gpu, num_gpus: int
) -> tuple[str, Completed | None]:
    """Why no setting that is asked for, or none at all, is legal, empty where one is; and what was
    completed. Of a layout that is yet to be chosen, one with tensor parallelism stands for all."""
    made = None
    try:
        made = own = completed(given, choice, shape, gpu, num_gpus)
        if own.layout is None:
            fields = {"tensor_model_parallel_size": 2, **given.layout_fields}
            own = completed(replace(given, layout_fields=fields), choice, shape, gpu, num_gpus)
        layout = own.layout or ParallelLayout()
        job = Job(model=own.model, layout=layout, config=own.config, gpu=gpu, num_gpus=num_gpus)
        settings = parts_of(job.config.framework).settings
        asked = tuple(map(settings.parse, given.recompute))
    except UserError as error:
        return str(error), made
    found = [settings.check(one, job) for one in asked or (settings.none,)]
    if not all(found) or (not asked and settings.candidates(job)):
        return "", made
    return f"{found[0][0].rule}: {found[0][0].reason}", made
