"""The space that `--search optimum` looks at: micro batches, settings, splits of the layers."""

from collections.abc import Iterator

from msgspec.structs import replace

from advisor.answer.answer import Answer
from advisor.base.errors import UserError
from advisor.base.units import divisors
from advisor.frameworks.protocols import Decisions, FrameworkAdapter
from advisor.hardware.calibration import Calibration
from advisor.job.job import Job
from advisor.search.optimum.best_first import Branch
from advisor.search.optimum.stage_splits import StageSplits
from advisor.search.optimum.stage_table import StageTable

_SPLIT_FIELDS = (
    "num_layers_in_first_pipeline_stage",
    "num_layers_in_last_pipeline_stage",
    "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split",
    "pipeline_model_parallel_layout",
)
_GIVEN = "given"


def branches(usual: Answer, stack: FrameworkAdapter, calibration: Calibration) -> list[Branch]:
    """One for each micro batch; what was given stays. None where the framework has its menu alone.
    """
    found = []
    for job in _jobs(usual, stack):
        decisions = stack.decisions(job)
        if decisions is None:
            return []
        moves = _moves_layers(usual, stack)
        table = StageTable(job, calibration, StageSplits(job, moves=moves))
        fixed = table
        if table.splits.moves:
            fixed = StageTable(job, calibration, StageSplits(job, moves=False))
        found.append(Branch(table, fixed, decisions.groups))
    return found


def space(usual: Answer, stack: FrameworkAdapter, found: list[Branch]) -> tuple[str, ...]:
    """The decisions, a line each; none without branches."""
    decisions: Decisions | None = stack.decisions(usual.job) if found else None
    if decisions is None:
        return ()
    batches = sorted(branch.table.job.config.micro_batch_size for branch in found)
    splits = found[0].table.splits
    words = f"micro batch {', '.join(map(str, batches))}"
    lines = [decisions.space, words + (" (given)" if _is_given(usual, _MICRO_BATCH) else "")]
    if splits.moves:
        lines.append(
            f"{splits.number:,} splits of {splits.num_layers} layers over "
            f"{len(splits.choices)} stages"
        )
    return tuple(lines)


_MICRO_BATCH = "job.micro_batch_size"


def _is_given(usual: Answer, path: str) -> bool:
    return usual.origin.get(path) == _GIVEN


def _moves_layers(usual: Answer, stack: FrameworkAdapter) -> bool:
    """Whether the release reads a text of every chunk, and nobody has said how to split."""
    job = usual.job
    free = not any(_is_given(usual, f"layout.{name}") for name in _SPLIT_FIELDS)
    pattern = job.model.hybrid_layer_pattern is not None
    return free and not pattern and stack.splits(job.config).by_text


def _jobs(usual: Answer, stack: FrameworkAdapter) -> Iterator[Job]:
    """The job, and those with every other micro batch that divides its batch."""
    yield usual.job
    if _is_given(usual, _MICRO_BATCH):
        return
    config, layout = usual.job.config, usual.job.layout
    for size in divisors(config.global_batch_size // layout.data_parallel_size):
        if size == config.micro_batch_size:
            continue
        try:
            job = replace(usual.job, config=replace(config, micro_batch_size=size))
        except UserError:
            continue
        if not stack.check(stack.none, job):
            yield job
