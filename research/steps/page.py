"""docs/times.md: what step times are made of, every fitted constant, and every error.

python -m research.steps.page    write it
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import fmean
from textwrap import fill
from typing import Final

from advisor.base.configuration import packaged_configs
from advisor.hardware.calibration import JobClass
from advisor.learning.time_residual import WIDTHS
from advisor.search.step_time_band import EXCHANGE_ERROR, GAINS, job_class
from research.kernels.least_squares import Errors
from research.rows import all_targets
from research.rows.targets import Kind
from research.steps.constants import CONSTANTS, GENERATIONS
from research.steps.known import LEAST_ERROR, LEAST_ROWS, tells
from research.steps.page_head import HEAD
from research.steps.pairs import pairs
from research.steps.published import WAYS, Report, report
from research.steps.scores import Scored, changes, choices, family, score
from research.steps.step_differences import MEASURED_HERE, WIDENED, differences, inside

PAGE: Final = Path(__file__).parents[2] / "docs" / "times.md"
_GPUS: Final = {"a100": "A100", "h100": "H100, H200", "b200": "B200, B300, GB200, GB300"}
_CLASSES: Final = {
    Kind.DENSE: "Megatron, dense models",
    Kind.EXPERTS: "Megatron, models with experts",
    Kind.EAGER: "PyTorch stacks (FSDP, DeepSpeed)",
}


def page(done: Report, scored: Sequence[Scored]) -> str:
    """The page of a fit, and of all rows as the shipped calibrations predict them."""
    parts = (
        HEAD,
        "## How large are the errors?\n",
        *_errors(done),
        *_decisions(scored),
        "\n## What do EP overlap, dispatchers and CUDA graphs gain?\n",
        *_gains(done, scored),
        "\n## How sure is the difference of two settings?\n",
        *_differences(),
        "\n## Constants fitted on whole steps\n",
        *_step_constants(done),
        "\n## Constants of kernels and collectives\n",
        *_kernel_constants(),
        "\n## Errors by model and GPU\n",
        *_families(scored),
        "\n## Known to be off\n",
        *_known_classes(done),
        _known(scored),
    )
    return re.sub(r"(\d)%", r"\1 %", "\n".join(parts))


def _errors(done: Report) -> Iterator[str]:
    """By class of jobs and GPU, and what leaving rows out in each way does."""
    ways = " | ".join(f"without the {way}" for way in WAYS)
    yield f"| class | GPU | rows | fitted | {ways} | band |"
    yield "|---|---|---|---|" + "---|" * len(WAYS) + "---|"
    for kind, words in _CLASSES.items():
        of_it = [i for i, target in enumerate(done.targets) if target.kind is kind]
        for gpu in sorted({done.targets[i].job.gpu.name for i in of_it}):
            there = [i for i in of_it if done.targets[i].job.gpu.name == gpu]
            yield _error_row(done, words, gpu, there, done.band(kind, gpu))
        yield _error_row(done, words, "all (band: other GPUs)", of_it, done.unseen_band(kind))


def _error_row(done: Report, words: str, gpu: str, rows: Sequence[int], band: float) -> str:
    cells = [done.fit_errors, *(done.left_out_errors[way] for way in WAYS)]
    errors = " | ".join(_two(errors[i] for i in rows) for errors in cells)
    return f"| {words} | {gpu} | {len(rows)} | {errors} | ±{band:.0%} |"


def _two(errors: Iterable[float]) -> str:
    found = Errors.of(errors)
    return f"{found.mean:.1%}, {found.worst:+.0%}"


def _decisions(scored: Sequence[Scored]) -> Iterator[str]:
    comparable = [one for one in scored if one.target.comparable]
    made, moved = choices(comparable), changes(comparable)
    regrets = [choice.regret for choice in made]
    ranked = [choice.rank_correlation for choice in made if len(choice.alternatives) > 2]
    right = fmean(change.is_right for change in moved)
    rank = fmean(ranked)
    yield (
        f"\n- {len(made)} jobs were measured with two or more layouts or settings. The choice\n"
        f"  that is predicted to be fastest takes on average {fmean(regrets):.1%} longer than the\n"
        f"  fastest one measured, {max(regrets):.1%} at most. For jobs with three or more, the\n"
        f"  rank correlation is {rank:.2f}.\n"
        f"- Of {len(moved)} measured changes of more than 2 %, {right:.0%} are predicted with the\n"
        "  right sign."
    )


def _gains(done: Report, scored: Sequence[Scored]) -> Iterator[str]:
    """Pairs of runs, as predicted and with the model left out of the fit."""
    text = (
        "Published runs of one model before and after such a change: seconds of a step for as many "
        "tokens. Releases differ in software as well, and most recipes change several options at "
        "once. So a row that rests on EP overlap outside one CUDA graph of a step, or on DeepEP, "
        f"has a band of ±{EXCHANGE_ERROR:.0%}, and more where runs like it are "
        "[known to be off](#known-to-be-off)."
    )
    yield fill(text, 98, break_on_hyphens=False) + "\n"
    yield "| before → after | what changes | published | predicted | left out |"
    yield "|---|---|---|---|---|"
    errors = {one.target.name: one.error for one in scored}
    names = (target.name for target in done.targets)
    unseen = errors | dict(zip(names, done.left_out_errors["model"], strict=True))
    targets, doubts = [one.target for one in scored], []
    for pair, other in zip(pairs(targets, errors), pairs(targets, unseen), strict=True):
        figures = f"{pair.measured:+.0%} | {pair.predicted:+.0%} | {other.predicted:+.0%}"
        mark = " (in doubt)" if pair.doubt else ""
        yield f"| {pair.name}{mark} | {', '.join(sorted(pair.changed))} | {figures} |"
        doubts += [f"- {pair.name}: {pair.doubt}."] if pair.doubt else []
    yield "\nIn doubt, so neither fitted on nor counted:\n"
    yield from (fill(doubt, 98, subsequent_indent="  ") for doubt in doubts)
    yield "\n" + fill("; ".join(gain.words for gain in GAINS) + ".", 98)


def _differences() -> Iterator[str]:
    """Widths that say which choice is a toss, and what learns from measured runs."""
    found = tuple(differences())
    here = [one for one in found if one.kind == MEASURED_HERE]
    published = [one for one in found if one.kind != MEASURED_HERE]
    terms = ", ".join(
        f"{getattr(WIDTHS, name):.0%} {words}"
        for name, words in (
            ("recompute", "for replays"),
            ("communication", "for exposed communication"),
            ("host", "for waiting for the host"),
        )
    )
    command = f"`python{_WHOLE}-m{_WHOLE}research.steps.step_differences`"
    for text in (
        "Two settings of one job share most errors of their predictions. So their difference is "
        "better known than either step time. The errors that they do not share have these "
        f"standard deviations: {WIDTHS.job:.1%} per row if layout or batch differs; "
        f"{WIDTHS.setting:.1%} per row, except `none`, if the setting differs; and a percentage of "
        f"the difference between the two steps' shares of a part: {terms}. {command} fits them "
        "on the rows above and on runs measured here. They are then multiplied by "
        f"{WIDENED:g}, since errors of fitted rows are smaller than those of others.",
        f"Check: nine of ten differences should lie inside their bands. {inside(published):.0%} of "
        f"{len(published)} published differences do, and {inside(here):.0%} of {len(here)} "
        "measured here.",
        'An answer says "measure these two" if the second of two rows that fit is faster by 1 % '
        "or more with a probability of at least 20 %. [Learning](learning.md) says how measured "
        "runs change that.",
    ):
        yield fill(text, 98, break_on_hyphens=False).replace(_WHOLE, " ") + "\n"


_WHOLE: Final = "\xa0"
"""A blank at which no line breaks."""


def _step_constants(done: Report) -> Iterator[str]:
    families = len({target.family for target in done.targets})
    yield (
        f"{len(done.fit.widths)} numbers are fitted on {len(done.targets)} rows of {families}\n"
        "families. A family is a model on a GPU in a precision and a framework, from one source.\n"
        "Each constant has one value for all GPUs: what differs between GPUs follows from\n"
        "datasheets and isolated kernels.\n"
        "\n"
        "Each constant has a prior: a value and a width that its source suggests. The column\n"
        "`width left` says how much of that width remains after the fit. At 100 % the rows say\n"
        "nothing about the constant.\n"
    )
    yield "| constant | unit | value | prior | width left | source |"
    yield "|---|---|---|---|---|---|"
    fitted = done.fit.values(GENERATIONS[0])
    for constant in CONSTANTS:
        prior = f"{constant.value:g} ±{constant.sigma:.0%}"
        left = f"{done.fit.widths[constant.name]:.0%}"
        value = f"{constant.unit or 'times'} | {fitted[constant.field]:.3g}"
        yield f"| `{constant.field}` | {value} | {prior} | {left} | {constant.reason} |"


def _kernel_constants() -> Iterator[str]:
    """From the comments of the files, which `published` writes."""
    found: dict[str, dict[str, tuple[str, str]]] = defaultdict(dict)
    for name in GENERATIONS:
        text = (packaged_configs() / "calibration" / f"{name}.yaml").read_text(encoding="utf-8")
        for field, value, about in re.findall(r"^(\w+): (\S+)  # (.+)$", text, re.MULTILINE):
            if not about.startswith("whole steps"):
                found[field][name] = value, about
    yield "| constant | " + " | ".join(_GPUS.values()) + " | fitted on |"
    yield "|---|" + "---|" * len(_GPUS) + "---|"
    for field in sorted(found):
        of_it = found[field]
        values = " | ".join(of_it.get(name, ("", ""))[0] for name in GENERATIONS)
        about = "; ".join(dict.fromkeys(about for _, about in of_it.values()))
        yield f"| `{field}` | {values} | {about} |"


def _families(scored: Sequence[Scored]) -> Iterator[str]:
    groups: dict[tuple[str, ...], list[Scored]] = defaultdict(list)
    for one in scored:
        key = family(one.target)
        assert isinstance(key, tuple)
        judged = "judged" if one.target.judged_only else "fitted"
        groups[(*map(str, key), judged)].append(one)
    yield "| source | model | GPU | precision | framework | use | rows | mean | worst | inside |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for key in sorted(groups):
        rows = groups[key]
        errors = Errors.of(row.error for row in rows)
        inside = fmean(row.is_inside for row in rows)
        figures = f"{errors.mean:.1%} | {errors.worst:+.0%} | {inside:.0%}"
        yield f"| {' | '.join(key)} | {len(rows)} | {figures} |"


def _known_classes(done: Report) -> Iterator[str]:
    """What every answer of such a job says as well: it is in the files of the calibrations."""
    models: dict[JobClass, dict[str, None]] = defaultdict(dict)
    for target in filter(tells, all_targets()):
        models[job_class(target.job)][target.job.model.name] = None
    yield (
        "In each of these classes all rows are predicted too fast, or all too slow, on average "
        f"by\n{LEAST_ERROR:.0%} or more. A class has {LEAST_ROWS} rows or more. An answer for such "
        "a job says so.\n"
    )
    for error in (error for name in GENERATIONS for error in done.known_errors[name]):
        rows = f"{error.rows} rows: {', '.join(models[error.of])}"
        yield fill(
            f"- {error.of.description}: {error.description}; {rows}", 98, subsequent_indent="  "
        )
    yield "\nOther known errors:\n"


def _known(scored: Sequence[Scored]) -> str:
    """What is off for a reason that is known, or that no row tells."""
    error = {one.target.name: one.error for one in scored}
    mpt = max(-value for name, value in error.items() if name.startswith("MPT "))
    plain, asynchronous = (
        next(one for one in scored if f" TP8 {how}op:" in one.target.name) for how in ("", "async ")
    )
    predicted = 1 - asynchronous.predicted / plain.predicted
    measured = 1 - asynchronous.target.seconds / plain.target.seconds
    return f"""\
- **gpt-oss 120B in bf16 on GB200** is judged, not fitted on. Neither another dispatcher nor overlap
  changed the measured step, so something that the rows do not show limits the step.
- **MPT at long sequences** is predicted up to {mpt:.0%} too fast: its attention (2023) was slower
  than FlashAttention-2. Rows in which attention takes more than a tenth of the step are judged, not
  fitted on.
- **B300 and GB300** use B200's constants, though attention there is up to 20 % faster.
- **Without effect on a predicted time**: `delay_wgrad_compute`, the number of SMs of HybridEP and
  `use_transformer_engine_op_fuser`.
- **Asynchronous TP of torchtitan** is predicted to shorten a step by {predicted:.0%}; one pair of
  runs shows {measured:.0%}.
- **Left out**: data loading, logging, checkpoints and evaluation.
"""


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(report(), tuple(score(all_targets()))), encoding="utf-8")


if __name__ == "__main__":
    main()
