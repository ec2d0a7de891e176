"""Jobs that every search looks at: on the layout of the usual answer, and on those of recipes."""

from collections.abc import Iterator
from contextlib import suppress

from msgspec.structs import replace

from advisor.base.errors import UserError
from advisor.frameworks.registry import parts_of, runs_recipes
from advisor.job.job import Job
from advisor.request.layout_fields import SEARCHED
from advisor.request.recipe_choice import experiments_on
from advisor.request.resolve import Resolution


def known_jobs(resolution: Resolution) -> tuple[Job, ...]:
    """Legal ones, each once, the usual layout's first. What is given stays as it is."""
    settings = parts_of(resolution.config.framework).settings
    found = dict.fromkeys(_jobs(resolution))
    return tuple(job for job in found if not settings.check_job(job))


def _jobs(resolution: Resolution) -> Iterator[Job]:
    """The layouts of recipes alone are theirs: batch and options are the job's."""
    if resolution.layout is not None and not resolution.open_degrees:
        with suppress(UserError):
            yield resolution.job(resolution.layout)
    if resolution.wanted is None or not runs_recipes(resolution.config.framework):
        return
    given = resolution.layout_fields
    for recipe in experiments_on(resolution.wanted):
        layout = recipe.layout
        if any(
            given.get(name, getattr(layout, name)) != getattr(layout, name) for name in SEARCHED
        ):
            continue
        size = recipe.config.micro_batch_size if resolution.micro_batch_is_free else None
        try:
            yield resolution.job(replace(layout, **given), size)
        except UserError:
            continue
