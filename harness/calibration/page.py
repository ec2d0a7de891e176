"""docs/times.md: what step times are made of, every fitted constant, and every error.

python -m harness.calibration.page    write it
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
from advisor.learning.step_errors import WIDTHS
from advisor.search.known_errors import job_class
from harness.calibration.constants import CONSTANTS, GENERATIONS
from harness.calibration.known import LEAST_ERROR, LEAST_ROWS, tells
from harness.calibration.published import Report, report
from harness.calibration.rows import all_targets
from harness.calibration.scores import Scored, changes, choices, family, score
from harness.calibration.step_differences import MEASURED_HERE, WIDENED, differences, inside
from harness.calibration.targets import Kind

PAGE: Final = Path(__file__).parents[2] / "docs" / "times.md"
_GPUS: Final = {"a100": "A100", "h100": "H100, H200", "b200": "B200, B300, GB200, GB300"}
_CLASSES: Final = {
    Kind.DENSE: "Megatron, dense models",
    Kind.EXPERTS: "Megatron, models with experts",
    Kind.EAGER: "PyTorch stacks (FSDP, DeepSpeed)",
}
_HEAD: Final = """\
# Step times: what they are made of, their constants, their errors

Written by `python -m harness.calibration.page`; a test compares it with the fit.

A step is the longest stage's passes, the pipeline around them, what data parallelism leaves
exposed, and the optimizer (`advisor/time/job_time.py`). A pass is the sum of its operators:

- **GEMMs** by their shape: tiles and waves over the SMs, depth, traffic of thin ones, the clock
  that the power limit leaves, casts to 8 and 4 bits; experts share waves (`advisor/time/gemm.py`).
- **Attention** by length, head sizes, mask, direction and kernel: FlashAttention-2, or the kernels
  of cuDNN and FlashAttention-3; the exponentials beside the products (`advisor/time/attention.py`).
- **Everything else** by the bytes that it moves; torch's own kernels reach less than fused ones,
  and `torch.compile` fuses them.
- **Communication** by what crosses which link: rings, trees and NVLink's switches by size,
  all-to-all and the flex dispatchers by where the experts are (`advisor/time/network`). A step
  waits for the slowest of many GPUs.
- **The processor** that launches kernels: operations, modules, quantized tensors, results that a
  dispatcher waits for. What a CUDA graph holds is one launch (`advisor/time/launches.py`).
- **Overlap**: a part of what runs beside something else costs time all the same, as it takes SMs
  and memory bandwidth. `overlap_moe_expert_parallel_comm` puts the experts' exchange beside the
  kernels of another microbatch.

Constants of single kernels and of collectives are fitted on published benchmarks of these alone
(`results/published/kernels`). What is left for whole steps is in the second table.
"""


def page(done: Report, scored: Sequence[Scored]) -> str:
    """The page of a fit, and of all rows as the shipped calibrations predict them."""
    parts = (
        _HEAD,
        "## Errors\n",
        *_errors(done),
        *_decisions(scored),
        "\n## Differences\n",
        *_differences(),
        "\n## Constants fitted on whole steps\n",
        *_step_constants(done),
        "\n## Constants of kernels and collectives\n",
        *_kernel_constants(),
        "\n## Rows by family\n",
        *_families(scored),
        "\n## Known to be off\n",
        *_known_classes(done),
        _known(scored),
    )
    return re.sub(r"(\d)%", r"\1 %", "\n".join(parts))


def _errors(done: Report) -> Iterator[str]:
    yield (
        "Left out: a fit that has seen no row of the model, on any GPU, to first order. A band\n"
        "says that nine of ten runs of fitted families lie inside when left out; of judged ones\n"
        "fewer do.\n"
    )
    yield "| class | rows | fitted: mean, worst | left out: mean, worst | band |"
    yield "|---|---|---|---|---|"
    for kind, words in _CLASSES.items():
        of_it = [i for i, target in enumerate(done.targets) if target.kind is kind]
        fitted = _two(done.fit_errors[i] for i in of_it)
        unseen = _two(done.left_out_errors[i] for i in of_it)
        yield f"| {words} | {len(of_it)} | {fitted} | {unseen} | ±{done.band(kind):.0%} |"


def _two(off: Iterable[float]) -> str:
    errors = list(off)
    return f"{fmean(map(abs, errors)):.1%}, {max(errors, key=abs):+.0%}"


def _decisions(scored: Sequence[Scored]) -> Iterator[str]:
    comparable = [one for one in scored if one.target.comparable]
    made, moved = choices(comparable), changes(comparable)
    regrets = [choice.regret for choice in made]
    ranked = [choice.rank_correlation for choice in made if len(choice.alternatives) > 2]
    right = fmean(change.is_right for change in moved)
    rank = fmean(ranked)
    yield (
        f"\nOf {len(made)} jobs that were measured in two ways or more, the way that is predicted\n"
        f"to be the fastest costs {fmean(regrets):.1%} over the fastest in the mean, at most\n"
        f"{max(regrets):.1%}; the rank correlation is {rank:.2f} where there are three or more.\n"
        f"Of {len(moved)} measured changes of more than 2 %, {right:.0%} are predicted to go that\n"
        "way."
    )


def _differences() -> Iterator[str]:
    """Widths that say which choice is a toss, and what learns from measured runs."""
    found = tuple(differences())
    here = [one for one in found if one.kind == MEASURED_HERE]
    published = [one for one in found if one.kind != MEASURED_HERE]
    terms = ", ".join(
        f"{getattr(WIDTHS, name):.0%} of {words}"
        for name, words in (
            ("recompute", "replays"),
            ("communication", "exposed communication"),
            ("host", "waiting for the host"),
        )
    )
    text = (
        "Two settings of one job share most of what errs: their difference is better known than "
        "either. Standard deviations of what they do not share, fitted by "
        f"`python{_WHOLE}-m{_WHOLE}harness.calibration.step_differences` on the rows above and on "
        f"what was measured here, times {WIDENED:g} as fitted rows err less than others: {terms}, "
        f"each by the difference of their shares of the step; {WIDTHS.job:.1%} a layout or batch, "
        f"{WIDTHS.setting:.1%} a setting that recomputes. "
        f"Of {len(published)} published differences {inside(published):.0%} lie within the band "
        f"that nine of ten should, of {len(here)} measured here {inside(here):.0%}. An answer "
        'says "measure these two" where the second of two rows that fit is the faster by 1 % or '
        "more with a probability of at least 20 %. docs/learning.md says what learns from runs."
    )
    yield fill(text, 98).replace(_WHOLE, " ")


_WHOLE: Final = "\xa0"
"""A blank at which no line breaks."""


def _step_constants(done: Report) -> Iterator[str]:
    families = len({target.family for target in done.targets})
    yield (
        f"{len(done.fit.widths)} numbers on {len(done.targets)} rows of {families} families. One\n"
        "value in a row stands for all GPUs. Left: how much of the prior's width the rows leave;\n"
        "100 % is a constant that they say nothing of.\n"
    )
    yield "| constant | unit | " + " | ".join(_GPUS.values()) + " | prior | left | source |"
    yield "|---|---|" + "---|" * len(_GPUS) + "---|---|---|"
    for constant in CONSTANTS:
        values = [f"{getattr(done.fit.calibrations[g], constant.field):.3g}" for g in GENERATIONS]
        names = [constant.field] if constant.shared else [f"{constant.field} {g}" for g in _GPUS]
        left = ", ".join(f"{done.fit.widths[name]:.0%}" for name in names)
        cells = [values[0], "", ""] if constant.shared else values
        prior = f"{constant.value:g} ±{constant.sigma:.0%}"
        yield (
            f"| `{constant.field}` | {constant.unit or 'times'} | {' | '.join(cells)} | {prior} | "
            + (f"{left} | {constant.reason} |")
        )


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
        about = ", ".join(dict.fromkeys(about for _, about in of_it.values()))
        yield f"| `{field}` | {values} | {about} |"


def _families(scored: Sequence[Scored]) -> Iterator[str]:
    groups: dict[tuple[str, ...], list[Scored]] = defaultdict(list)
    for one in scored:
        key = family(one.target)
        assert isinstance(key, tuple)
        judged = "judged" if one.target.judged_only else "fitted"
        groups[(*map(str, key), judged)].append(one)
    yield "| table | model | GPU | precision | framework | | rows | mean | worst | inside |"
    yield "|---|---|---|---|---|---|---|---|---|---|"
    for key in sorted(groups):
        rows = groups[key]
        errors = [row.error for row in rows]
        inside = fmean(row.is_inside for row in rows)
        figures = f"{fmean(map(abs, errors)):.1%} | {max(errors, key=abs):+.0%} | {inside:.0%}"
        yield f"| {' | '.join(key)} | {len(rows)} | {figures} |"


def _known_classes(done: Report) -> Iterator[str]:
    """What every answer of such a job says as well: it is in the files of the calibrations."""
    models: dict[JobClass, dict[str, None]] = defaultdict(dict)
    for target in filter(tells, all_targets()):
        models[job_class(target.job)][target.job.model.name] = None
    yield (
        f"Classes of {LEAST_ROWS} rows or more that all lie on one side, by {LEAST_ERROR:.0%} or\n"
        "more in the mean. An answer for such a job says so.\n"
    )
    for error in (error for name in GENERATIONS for error in done.known_errors[name]):
        rows = f"{error.rows} rows: {', '.join(models[error.of])}"
        yield fill(f"- {error.of.words}: {error.words} ({rows})", 98, subsequent_indent="  ")
    yield "\nBeside them:\n"


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
- gpt-oss 120B in bf16 on GB200 is judged, not fitted on: neither another dispatcher nor overlap
  moved the measured step, so that something bounds it that no row tells.
- MPT at long sequences is up to {mpt:.0%} too fast: its attention (2023) was slower than
  FlashAttention-2. Rows where attention weighs more than a tenth are judged, not fitted on.
- B300 and GB300 share B200's constants: attention there is up to 20 % faster.
- Megatron-FSDP's own overlap, `delay_wgrad_compute` and the number of SMs of HybridEP are not told
  from what is without them. Asynchronous TP of torchtitan is predicted to take {predicted:.0%} off
  a step where one pair of runs has {measured:.0%} less.
- Data loading, logging, checkpoints and evaluation are left out.
"""


def main() -> None:
    """Write the page."""
    PAGE.write_text(page(report(), tuple(score(all_targets()))), encoding="utf-8")


if __name__ == "__main__":
    main()
