"""The head of the page: the job, and everything that was assumed about it."""

from advisor.answer import Advice, CalibrationNote
from advisor.cost.calibration import Provenance
from advisor.job import Job
from advisor.layout import ParallelLayout
from advisor.models.spec import TransformerImpl
from advisor.report.text import LABEL_WIDTH, Screen, Style, labelled, wrap
from advisor.report.wording import chosen, gib
from advisor.units import human_count

_PROVENANCE = {
    Provenance.MEASURED: "measured on this type of machine",
    Provenance.PUBLISHED: "published runs",
    Provenance.DATASHEET: "datasheet peaks, uncalibrated",
}
_GAP = 3


def header_lines(advice: Advice, screen: Screen) -> list[str]:
    """Model and hardware, layout, budget, calibration and the advisor's own choices."""
    preset, others = _split_preset(advice.assumptions)
    pairs = [
        ("layout", layout_words(advice.job.layout), preset),
        ("budget", budget_words(advice), framework_words(advice.job)),
    ]
    lines = [screen.paint(line, Style.BOLD) for line in wrap(_job_words(advice.job), screen.width)]
    lines += _in_two_columns(pairs, screen.width)
    lines += labelled("calibration", _calibration_words(advice.calibration), screen.width)
    if others:
        lines += labelled("assumed", " · ".join(others), screen.width)
    return lines


def layout_words(layout: ParallelLayout) -> str:
    """``TP 4 +SP · PP 4 · VPP 5 · DP 2 · distributed optimizer``; degrees of one left out."""
    sp = " +SP" if layout.sequence_parallel else ""
    parts = [f"TP {layout.tensor_model_parallel_size}{sp}"]
    degrees = (
        ("CP", layout.context_parallel_size),
        ("PP", layout.pipeline_model_parallel_size),
        ("VPP", layout.virtual_pipeline_model_parallel_size),
        ("EP", layout.expert_model_parallel_size),
    )
    parts += [f"{name} {degree}" for name, degree in degrees if degree > 1]
    parts.append(f"DP {layout.data_parallel_size}")
    parts.append(
        "distributed optimizer" if layout.use_distributed_optimizer else "optimizer not sharded"
    )
    return " · ".join(parts)


def framework_words(job: Job) -> str:
    """``Megatron Core 0.19 with Transformer Engine``."""
    from advisor.report.flags import revision_words

    local = job.model.transformer_impl is TransformerImpl.LOCAL
    return f"{revision_words(job.config)} with {'local layers' if local else 'Transformer Engine'}"


def budget_words(advice: Advice) -> str:
    """``77.1 of 79.6 GiB a GPU (a full bar)``: the budget, and what the card has."""
    best = chosen(advice)
    card = advice.job.gpu.memory_bytes
    budget = best.evaluation.budget_bytes if best else advice.job.config.memory_budget_bytes
    return f"{gib(budget or card)} of {gib(card)} GiB a GPU (a full bar)"


def _job_words(job: Job) -> str:
    from advisor.models.parameters import parameter_count

    config = job.config
    return (
        f"{job.model.name} · {human_count(parameter_count(job.model).total)} parameters · "
        f"{job.num_gpus} x {job.gpu.name} · {config.precision} · sequence {config.seq_length} · "
        f"micro batch {config.micro_batch_size} · global batch {config.global_batch_size}"
    )


def _calibration_words(note: CalibrationNote) -> str:
    return f"{note.name} ({_PROVENANCE[note.provenance]}): {note.summary}".rstrip(": ")


def _split_preset(assumptions: tuple[str, ...]) -> tuple[str, list[str]]:
    """The preset's name, which stands beside the layout, and the other assumptions."""
    preset = next((text for text in assumptions if text.startswith("preset ")), "")
    return preset, [text for text in assumptions if text != preset]


def _in_two_columns(pairs: list[tuple[str, str, str]], width: int) -> list[str]:
    """Label, text, and a text at the right edge; one that does not fit gets a line of its own."""
    lines = []
    for label, left, right in pairs:
        space = width - LABEL_WIDTH - len(left)
        if len(right) + _GAP <= space:
            lines.append(f"{label:<{LABEL_WIDTH}}{left}{right:>{space}}".rstrip())
        else:
            lines += [*labelled(label, left, width), *labelled("", right, width)]
    return lines
