"""What a recipe lends, without what is refused next to what is given: no value that nobody gave
makes a request illegal."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec.structs import asdict, replace

from advisor.base.errors import UserError
from advisor.base.record import defaults
from advisor.frameworks.registry import parts_of
from advisor.hardware.gpu import Gpu
from advisor.job.job import Job, JobConfig
from advisor.job.layout import DEGREES, ParallelLayout
from advisor.models.spec import ModelSpec
from advisor.request.completed import BATCH, FRAMEWORKS_OWN, Completed, completed
from advisor.request.given import Given
from advisor.request.origin import assumed, stated_fields
from advisor.request.recipe_choice import LentOptions, RecipeChoice

_REFUSED: Final = assumed("the recipe's value is refused with the given values")


def legal_with_given(
    given: Given, choice: RecipeChoice, shape: ModelSpec, gpu: Gpu, num_gpus: int
) -> tuple[RecipeChoice, Completed]:
    """`choice` without the fewest lent values that make the job illegal, and the job: values that
    the refusing rule reads, as without them another rule refuses the job, or none.

    `choice` as it is where what is given is illegal by itself: UserError, from here or from
    `Resolution.job`, then says why.
    """
    usual = dict(_lent(given, choice, shape))

    def refusal(names: frozenset[str]) -> str:
        return _refusal(given, _without(choice, names, usual), shape, gpu, num_gpus)

    legal = choice
    waiting = {frozenset[str](): refusal(frozenset())} if usual else {}
    while waiting:
        found = next((names for names, reason in waiting.items() if not reason), None)
        if found is not None:
            legal = _without(choice, found, usual)
            break
        fewer = ((names | {name}, was) for names, was in waiting.items() for name in usual)
        waiting = {names: now for names, was in fewer if (now := refusal(names)) != was}
    return legal, completed(given, legal, shape, gpu, num_gpus)


def _lent(given: Given, choice: RecipeChoice, shape: ModelSpec) -> Iterator[tuple[str, Any]]:
    """``GROUP.FIELD``, and the value without the recipe, of each that is lent; the degrees of a
    recipe that is given itself stay."""
    its, own = choice.as_it_stands, given.by_group
    kept = ("data_parallel_size",) if given.recipe is None else DEGREES
    lent = choice.lent.by_group if choice.lent else {}
    stated: dict[str, Mapping[str, Any]] = {}
    if its is not None:
        config = stated_fields(its.config, (*BATCH, *FRAMEWORKS_OWN))
        layout, model = stated_fields(its.layout, kept), dict(its.model_options)
        stated = {"layout": layout, "job": config, "model": model}
    usual = {"layout": defaults(ParallelLayout), "job": defaults(JobConfig), "model": asdict(shape)}
    for group, values in usual.items():
        for name in {**stated.get(group, {}), **lent.get(group, {})}:
            if name not in own[group]:
                yield f"{group}.{name}", values[name]


def _without(choice: RecipeChoice, names: frozenset[str], usual: Mapping[str, Any]) -> RecipeChoice:
    """`choice` with lent values as they are `usual`."""
    parts: dict[str, dict[str, Any]] = {"layout": {}, "job": {}, "model": {}}
    for path in sorted(names):
        group, _, name = path.partition(".")
        parts[group][name] = usual[path]
    return replace(choice, left_out=LentOptions(origin=_REFUSED, **parts)) if names else choice


def _refusal(given: Given, choice: RecipeChoice, shape: ModelSpec, gpu: Gpu, num_gpus: int) -> str:
    """Why no setting that is asked for, or none at all, is legal; empty where one is, or where the
    layout is yet to be chosen."""
    try:
        made = completed(given, choice, shape, gpu, num_gpus)
        if made.layout is None:
            return ""
        job = Job(
            model=made.model, layout=made.layout, config=made.config, gpu=gpu, num_gpus=num_gpus
        )
        settings = parts_of(job.config.framework).settings
        asked = tuple(map(settings.parse, given.recompute))
    except UserError as error:
        return str(error)
    found = [settings.check(one, job) for one in asked] or [settings.check_job(job)]
    if not all(found) or (not asked and settings.candidates(job)):
        return ""
    return f"{found[0][0].rule}: {found[0][0].reason}"
