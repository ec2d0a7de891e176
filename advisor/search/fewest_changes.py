"""A row of a search without those changes of its job's options that do nothing for it."""

from typing import Any

from msgspec.structs import replace

from advisor.answer.evaluation import Evaluation
from advisor.base.errors import UserError
from advisor.frameworks.registry import adapter_of
from advisor.job.job import Job
from advisor.request.resolve import Resolution
from advisor.search.evaluate import Evaluator
from advisor.search.ranking import tier
from advisor.search.variants import PARTS, changed


def with_fewest_changes(row: Evaluation, resolution: Resolution) -> Evaluation:
    """`row` with each option as the resolution has it, one after the other, where that takes no
    more time and fits as well."""
    usual = _with_options(row.job, resolution)
    if usual is None:
        return row
    best = row
    for path in changed(usual, row.job):
        other = _evaluated(_reverted(best.job, usual, path), best)
        if other is not None:
            best = other
    return best


def _with_options(job: Job, resolution: Resolution) -> Job | None:
    """The same layout and micro batch with the resolution's own options."""
    before = resolution.layout or type(job.layout)()
    plain = replace(job, model=resolution.model)
    names = [path.partition(".")[2] for path in changed(plain, job)]
    del names
    flags = {name: getattr(before, name) for name in _flags(before, job)}
    config = replace(resolution.config, micro_batch_size=job.config.micro_batch_size)
    try:
        return replace(
            job, model=resolution.model, config=config, layout=replace(job.layout, **flags)
        )
    except UserError:
        return None
