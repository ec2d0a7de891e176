"""Published runs of one model on the same GPUs, before and after EP overlap, a flex dispatcher or
CUDA graphs: what the change gave, and what is predicted without these rows.

Rows of two releases differ in software as well, and a recipe often changes several options at once.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct

from advisor.job.job import Job
from advisor.search.step_time_band import unproven_gains
from research.rows.targets import Target

LEAST_CHANGE: Final = 0.05
"""Throughput repeats to that within a source (results/published/README.md)."""
_SKILLS: Final = "Qwen3-30B 16xH100"
_GPT: Final = "GPT OSS 120B GB200 64 BF16"
_QWEN: Final = "Qwen3_30B_a3B"
_NAMES: Final = (
    (f"{_SKILLS} EP overlap off, iters 5-20", f"{_SKILLS} EP overlap on, search run, iters 5-20"),
    (f"{_SKILLS} alltoall, no EP overlap", f"{_SKILLS} alltoall, EP overlap"),
    (
        f"{_SKILLS} alltoall, no EP overlap",
        f"{_SKILLS} 2026-05-17 short smoke, 5 steps, mean after warmup",
    ),
    ("", f"{_SKILLS} TE CUDA graph attn+moe_router+moe_preprocess"),
    (f"{_GPT} 26.02.01", f"{_GPT} 26.04.01"),
    (f"{_GPT} 26.02.01", f"{_GPT} 26.04"),
    (f"{_QWEN} H100 16 FP8 26.02", f"{_QWEN} H100 16 FP8 26.04"),
    (f"{_QWEN} H100 16 FP8 26.02", f"{_QWEN} H100 16 FP8 26.02.01"),
    *(
        (f"{_QWEN} {gpu} 8 MXFP8 26.04", f"{_QWEN} {gpu} 8 MXFP8 26.06")
        for gpu in ("GB200", "GB300", "B300")
    ),
    ("DeepSeekV3 GB200 256 MXFP8 26.04", "DeepSeekV3 GB200 256 MXFP8 26.06"),
    ("DeepSeekV3 B200 256 MXFP8 26.04", "DeepSeekV3 B200 256 MXFP8 26.04.01"),
    ("DeepSeekV3 (w/ MTP) B200 256 FP8-MX 25.11", "DeepSeekV3 B200 256 MXFP8 26.02"),
    (f"{_QWEN} B200 8 MXFP8 26.02", f"{_QWEN} B200 8 MXFP8 26.02.01"),
)
"""Before and after; no name: the other half of a ratio."""

DOUBTFUL: Final = {
    f"{_SKILLS} 2026-05-17 short smoke, 5 steps, mean after warmup": "a smoke test of five steps, "
    "11 % slower with graphs; Bridge PR 3868 has them slightly slower with all-to-all too, and no "
    "part of the model lets graphs cost time",
    f"{_QWEN} H100 16 FP8 26.02.01": "the table still prints PP2 VPP12 EP8, the recipe at its tag "
    "has other degrees; it is as fast as the next releases with PP1 EP16",
}
"""Rows after a change of which it is not known what ran or what slowed it: no pair counts them."""


class Pair(Struct, frozen=True, kw_only=True):
    """Seconds of a token after over before, less one. changed: options that only one of both has;
    alone: one of them, and layout and micro batch stay. doubt: why it tells nothing."""

    name: str
    changed: frozenset[str]
    alone: bool
    measured: float
    predicted: float
    doubt: str = ""

    @property
    def is_right(self) -> bool:
        """Whether the prediction goes the same way; any does where little changed."""
        return abs(self.measured) < LEAST_CHANGE or self.measured * self.predicted > 0


def pair_rows() -> frozenset[str]:
    """Names of the rows of pairs that tell something."""
    named = (pair for pair in _NAMES if pair[1] not in DOUBTFUL)
    return frozenset(name for pair in named for name in pair if name)


def pairs(targets: Iterable[Target], errors: Mapping[str, float]) -> tuple[Pair, ...]:
    """Every pair. errors: by a target's name, predicted over measured, less one."""
    known = {target.name: target for target in targets}
    return tuple(_pair(known.get(before), known[after], errors) for before, after in _NAMES)


def _pair(before: Target | None, after: Target, errors: Mapping[str, float]) -> Pair:
    ratio, off = after.seconds, 1 + errors[after.name]
    if before is not None:
        tokens = after.job.config.global_batch_size / before.job.config.global_batch_size
        ratio /= before.seconds * tokens
        off /= 1 + errors[before.name]
    job = after.baseline if before is None else before.job
    assert job is not None
    changed = frozenset(unproven_gains(job)) ^ frozenset(unproven_gains(after.job))
    return Pair(
        name=f"{before.name if before else 'without'} -> {after.name}",
        changed=changed,
        alone=len(changed) == 1 and _degrees(job) == _degrees(after.job),
        measured=ratio - 1,
        predicted=ratio * off - 1,
        doubt=DOUBTFUL.get(after.name, ""),
    )


def _degrees(job: Job) -> tuple[int, ...]:
    layout = job.layout
    return (
        layout.pipeline_model_parallel_size,
        layout.virtual_pipeline_model_parallel_size,
        layout.expert_model_parallel_size,
        job.config.micro_batch_size,
    )
