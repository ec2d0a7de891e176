"""Colours, hatches and words that all pictures share; the explorer page has the same words.

Colours are Okabe and Ito's, which colour-blind readers tell apart; hatches tell them apart in grey.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from advisor.answer.answer import Answer, RankedEvaluation
from advisor.base.units import GIB, human_count
from advisor.report.breaking import spec_lines
from advisor.report.explain_page import COMPONENTS
from advisor.report.job_changes import LayoutColumns
from advisor.report.wording import PHASES as PART_WORDS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BLUE, SKY, GREEN, ORANGE = "#0072B2", "#56B4E9", "#009E73", "#E69F00"
YELLOW, PINK, VERMILION = "#F0E442", "#CC79A7", "#D55E00"
GREY, LIGHT, PALE = "#666666", "#BBBBBB", "#EEEEEE"


class Look(Struct, frozen=True):
    """Colour and hatch of one thing, its name in a legend."""

    name: str
    colour: str
    hatch: str = ""

    @property
    def fill(self) -> dict[str, Any]:
        """What matplotlib's bars and patches take."""
        return {
            "facecolor": self.colour,
            "hatch": self.hatch,
            "edgecolor": "white" if self.hatch else self.colour,
            "linewidth": 0.0,
        }


COMPONENT_LOOKS: Final = dict(
    zip(
        COMPONENTS,
        (
            Look("weights", BLUE),
            Look("gradients", SKY, "///"),
            Look("optimizer", GREEN),
            Look("activations", ORANGE),
            Look("transient", YELLOW, "..."),
            Look("overhead", PINK, "\\\\\\"),
        ),
        strict=True,
    )
)
FORWARD, BACKWARD = Look("forward", SKY), Look("backward", BLUE)
REPLAY = Look(PART_WORDS["recompute"], ORANGE, "////")
COMMUNICATION = Look("exposed communication", PINK, "xxxx")
BUBBLE = Look("pipeline bubble", PALE)
OPTIMIZER = Look("optimizer", GREEN, "----")
OFFLOAD = Look("offload", YELLOW, "....")
WAITING = Look(PART_WORDS["host"], GREY, "\\\\\\\\")
PHASES: Final = {
    "forward": FORWARD,
    "backward": BACKWARD,
    "recompute": REPLAY,
    "exposed_communication": COMMUNICATION,
    "offload": OFFLOAD,
    "host": WAITING,
    "pipeline_bubble": BUBBLE,
    "optimizer": OPTIMIZER,
}
"""Parts of a TimeBreakdown, in the order in which they are stacked."""


def legend_patches(looks: Sequence[Look]) -> list[Any]:
    """A patch for each, for a legend."""
    from matplotlib.patches import Patch

    return [Patch(**look.fill, label=look.name) for look in looks]


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
    columns = LayoutColumns([row.evaluation.job], row.evaluation.job)
    cells = zip(columns.titles, columns.cells(row.evaluation.job), strict=True)
    layout = ", ".join(f"{title} {cell}" for title, cell in cells)
    return f"{job_title(advice)}\nrow {row.rank}: {row.evaluation.setting.spec} ({layout})"


def row_label(row: RankedEvaluation, shown: Sequence[RankedEvaluation], width: int) -> str:
    """Rank and setting, and the layout where the rows differ in it."""
    evaluation = row.evaluation
    spec = "\n".join(spec_lines(evaluation.setting.spec, width))
    label = f"{row.rank}  {spec}"
    if all(other.evaluation.job == evaluation.job for other in shown):
        return label
    columns = LayoutColumns([one.evaluation.job for one in shown], shown[0].evaluation.job)
    cells = zip(columns.titles, columns.cells(evaluation.job), strict=True)
    return f"{label}\n{' '.join(f'{title} {cell}' for title, cell in cells)}"


def draw_budget(axes: "Axes", budget_bytes: int, *, horizontal: bool = False) -> None:
    """A dashed line at the budget, GiB."""
    budget = budget_bytes / GIB
    line = axes.axhline if horizontal else axes.axvline
    line(budget, color="black", linestyle="--", linewidth=1.2, label=f"budget {budget:.1f} GiB")
