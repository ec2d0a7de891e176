"""The spaces that searches look at setting by setting: micro batches, settings, splits of the
layers for `--search optimum`; a few jobs, with all that a framework can be asked for, after a
search of layouts, which leaves out settings that send activations to the host."""

from collections.abc import Collection, Iterable, Iterator

from msgspec.structs import replace

from advisor.base.errors import UserError
from advisor.base.units import divisors, many
from advisor.frameworks.part_types import Decisions
from advisor.frameworks.registry import parts_of
from advisor.hardware.calibration import Calibration
from advisor.job.job import Job
from advisor.job.pipeline_split import most_layers_of_chunk
from advisor.plan.recompute_plan import Setting
from advisor.search.optimum.best_first import BestFirst, Branch, Found
from advisor.search.optimum.stage_table import StageSplits, StageTable

_SPLIT_FIELDS = (
    "num_layers_in_first_pipeline_stage",
    "num_layers_in_last_pipeline_stage",
    "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split",
    "pipeline_model_parallel_layout",
)


def branches(job: Job, calibration: Calibration, given: Collection[str] = ()) -> list[Branch]:
    """One for each micro batch of `job`; `given` fields of it (``GROUP.FIELD``) stay. None where
    the framework has its menu alone."""
    found = []
    moves = _moves_layers(job, given)
    decisions = parts_of(job.config.framework).optimum.decisions(job)
    if decisions is None:
        return []
    for one in each_micro_batch(job, free=_MICRO_BATCH not in given):
        table = StageTable(one, calibration, StageSplits(one, moves=moves))
        fixed = table
        if table.splits.moves:
            fixed = StageTable(one, calibration, StageSplits(one, moves=False))
        found.append(Branch(table, fixed, decisions))
    return found


def space(found: list[Branch]) -> tuple[str, ...]:
    """The decisions, a line each; none without branches."""
    if not found:
        return ()
    batches = sorted(branch.table.job.config.micro_batch_size for branch in found)
    splits = found[0].table.splits
    lines = [found[0].decisions.space, f"micro batch {', '.join(map(str, batches))}"]
    if splits.number > 1:
        lines.append(
            f"{many(splits.number)} splits of {splits.num_layers} layers over "
            f"{len(splits.choices)} stages"
        )
    return tuple(lines)


_MICRO_BATCH = "job.micro_batch_size"


def _moves_layers(job: Job, given: Collection[str]) -> bool:
    """Whether the release reads a text of every chunk, and nobody has said how to split."""
    free = not any(f"layout.{name}" in given for name in _SPLIT_FIELDS)
    pattern = job.model.hybrid_layer_pattern is not None
    splits = parts_of(job.config.framework).jobs.splits(job.config)
    return free and not pattern and splits.by_text


def each_micro_batch(job: Job, *, free: bool) -> Iterator[Job]:
    """The job, and those with every other micro batch that divides its batch, if that is `free`."""
    yield job
    if not free:
        return
    config, settings = job.config, parts_of(job.config.framework).settings
    for size in divisors(config.global_batch_size // job.layout.data_parallel_size):
        if size == config.micro_batch_size:
            continue
        try:
            other = replace(job, config=replace(config, micro_batch_size=size))
        except UserError:
            continue
        if not settings.check_job(other):
            yield other


def fastest_beyond_the_menu(jobs: Iterable[Job], calibration: Calibration, below: float) -> Found:
    """The fastest that fits and takes less than `below` seconds; nothing where nothing does, or
    where the menu is all. Jobs with as many layers in a chunk are looked at with the same settings.
    """
    branches: list[Branch] = []
    known: dict[int, Decisions | None] = {}
    for job in dict.fromkeys(jobs):
        layers = most_layers_of_chunk(job.model, job.layout)
        if layers not in known:
            known[layers] = parts_of(job.config.framework).optimum.decisions(job)
        decisions = known[layers]
        if decisions is not None:
            table = StageTable(job, calibration, StageSplits(job, moves=False))
            branches.append(Branch(table, table, decisions))

    def is_legal(setting: Setting, job: Job) -> bool:
        return not parts_of(job.config.framework).settings.check(setting, job)

    return BestFirst(branches, calibration, is_legal, below).run()
