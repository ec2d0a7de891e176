"""Titles of pictures, and names of rows in them."""

from collections.abc import Sequence

from advisor.answer.answer import Answer, RankedEvaluation
from advisor.base.units import human_count
from advisor.report.blocks import spec_lines
from advisor.report.job_changes import LayoutColumns


def job_title(advice: Answer) -> str:
    """Model, GPUs, precision, sequence and batch of the answer's job."""
    from advisor.layers.parameters import parameter_count

    job = advice.job
    return (
        f"{job.model.name} ({human_count(parameter_count(job.model).total)} parameters), "
        f"{job.num_gpus} x {job.gpu.name}, {job.config.precision}, "
        f"sequence {job.config.seq_length}, global batch {job.config.global_batch_size}"
    )


def rows_title(advice: Answer, num_shown: int, most: int) -> str:
    """The job, and below it how many rows a picture shows that has room for so many at `most`."""
    return f"{job_title(advice)}\n{rows_words(num_shown, len(advice.candidates), most)}"


def rows_words(num_shown: int, num_rows: int, most: int) -> str:
    """``10 of 26 rows; --top 24 shows more``."""
    if num_shown == num_rows:
        return "1 row" if num_rows == 1 else f"all {num_rows} rows"
    words = f"{num_shown} of {num_rows} rows"
    possible = min(most, num_rows)
    return f"{words}; --top {possible} shows more" if num_shown < possible else words


def row_title(advice: Answer, row: RankedEvaluation) -> str:
    """The job, and below it rank, setting and layout of one row."""
    job = row.evaluation.job
    layout = ", ".join(LayoutColumns([job], job).words(job))
    found = advice.fastest_found is not None and row is advice.fastest_found.candidate
    name = "fastest found" if found else f"row {row.rank}"
    return f"{job_title(advice)}\n{name}: {row.evaluation.setting.spec} ({layout})"


def row_label(row: RankedEvaluation, shown: Sequence[RankedEvaluation], width: int) -> str:
    """Rank and setting, and the layout where the rows differ in it."""
    evaluation = row.evaluation
    spec = "\n".join(spec_lines(evaluation.setting.spec, width))
    label = f"{row.rank}  {spec}"
    if all(other.evaluation.job == evaluation.job for other in shown):
        return label
    columns = LayoutColumns([one.evaluation.job for one in shown], shown[0].evaluation.job)
    return f"{label}\n{' '.join(columns.words(evaluation.job))}"
